"""Modules that register experiments when they are imported, such as a package of the user's.

Owns: which modules these are (`--import`, `pyproject.toml` of the workspace, entry points of installed packages, files
of `experiments/` that import a package of the user's), what source says, importing one, the message if that fails.
Does not own: what they register (`registry.py`), how source is read (`garden/scan.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.machinery
import importlib.util
import os
import pkgutil
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from official_trainer.config import ConfigError, Origin, Problem, components, installed
from official_trainer.garden import index as garden_index
from official_trainer.garden.scan import DECORATOR, FOLDER, Scanned, scan
from official_trainer.lazy import importing_users_module
from official_trainer.nearest import mistyped, nearest
from official_trainer.tasks import explained
from official_trainer.user_code import is_users

GROUP = "official_trainer.experiments"
"""The group of entry points with which an installed package names its modules."""
PYPROJECT = "pyproject.toml"
_TABLE = "official-trainer"
_KEY = "experiments"
_IMPORTED = re.compile(rb"^\s*(?:from|import)\s+(\w+)", re.MULTILINE)
_NOT_READ = {"official_trainer", garden_index.PACKAGE, FOLDER, *components.FOLDERS, *sys.stdlib_module_names}
"""Packages in which no experiment of a user's is searched."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A module to import for the experiments that it registers.

    Attributes:
      module: its name.
      named_by: what names it, for messages.
      package: whose source has the names; the module's own, or one that the module imports.
    """

    module: str
    named_by: Origin
    package: str


# Which modules.


def given(imports: Iterable[str]) -> list[Source]:
    """Returns the modules that `--import` names.

    Raises:
      ConfigError: a value is no name of a module.
    """
    found = [_named(module, Origin("flag", f"--import={module}")) for module in imports]
    if problems := [_not_a_name(source) for source in found if not _is_name(source.module)]:
        raise ConfigError(problems)
    return list(dict.fromkeys(found))


def _named(module: str, place: Origin) -> Source:
    return Source(module, place, module.partition(".")[0])


def declared(workspace: Path | None) -> tuple[list[Source], list[Problem]]:
    """Returns the modules that the workspace's `pyproject.toml` and installed packages name, and what is wrong there.

    Raises:
      ConfigError: `pyproject.toml` cannot be read, or has a mistake where it names them.
    """
    found = [*(_of_pyproject(workspace) if workspace is not None else ())]
    problems = []
    for point in installed.points(GROUP):
        named_by = Origin("file", f"entry point {point.name} of {installed.package_of(point)}")
        source = _named(point.value.strip(), named_by)
        if _is_name(source.module):
            found.append(source)
        else:
            problems.append(_not_a_name(source))
    return list({source.module: source for source in reversed(found)}.values())[::-1], problems


def imported_by(workspace: Path) -> Iterator[Source]:
    """Yields the files of `experiments/` that register nothing and import packages of the user's, one for each."""
    for path in sorted((workspace / FOLDER).rglob("*.py")):
        place = path.relative_to(workspace)
        source = b"" if "/." in str(place) else path.read_bytes()
        for name in sorted({name.decode() for name in _IMPORTED.findall(source)} - _NOT_READ):
            if DECORATOR.encode() not in source and any(is_users(str(each)) for each in _places_of(name, workspace)):
                module = ".".join(place.with_suffix("").parts).removesuffix(".__init__")
                yield Source(module, Origin("file", str(place)), name)


def declares(folder: Path) -> bool:
    """Returns whether the `pyproject.toml` of a folder has a table for us."""
    try:
        return bool(_table(folder))
    except ConfigError:
        return False


def _of_pyproject(workspace: Path) -> Iterator[Source]:
    table = _table(workspace)
    place = Origin("file", PYPROJECT)
    where = f"tool.{_TABLE}.{_KEY}"
    if unknown := [key for key in table if key != _KEY]:
        near = _KEY if nearest(unknown[0], [_KEY]) else ""
        what = f"unknown key '{unknown[0]}'"
        raise ConfigError([Problem(what, f"tool.{_TABLE}", allowed=_KEY, near=near, origin=place)])
    modules = table.get(_KEY, [])
    if not isinstance(modules, list) or not all(isinstance(each, str) for each in modules):
        what = "expected a list of modules"
        fix = f'such as {_KEY} = ["my_project.experiments"]'
        raise ConfigError([Problem(what, where, got=repr(modules), fix=fix, origin=place)])
    lines = (workspace / PYPROJECT).read_text(encoding="utf-8").splitlines() if modules else []
    for module in modules:
        quoted = re.compile(f"[\"']{re.escape(module)}[\"']")
        line = next((number for number, text in enumerate(lines, 1) if quoted.search(text)), 0)
        source = _named(module, Origin("file", PYPROJECT, line))
        if not _is_name(module):
            raise ConfigError([_not_a_name(source)])
        yield source


def _table(folder: Path) -> dict[str, Any]:
    """Returns the table of ours in a folder's `pyproject.toml`; empty without one."""
    path = folder / PYPROJECT
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
    except (OSError, UnicodeDecodeError):
        return {}
    if _TABLE not in text:
        return {}
    import tomllib

    try:
        table = tomllib.loads(text).get("tool", {}).get(_TABLE, {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([Problem(f"is not TOML: {error}", origin=Origin("file", PYPROJECT))]) from error
    return table if isinstance(table, dict) else {}


def _is_name(module: str) -> bool:
    return all(part.isidentifier() for part in module.split("."))


def _not_a_name(source: Source) -> Problem:
    text = source.module.partition(":")[0].removesuffix(".py").strip("./").replace("/", ".").replace("-", "_")
    near = text if text and text != source.module and _is_name(text) else ""
    what = f"'{source.module}' is not the name of a module"
    return Problem(what, allowed="names with dots, such as my_project.experiments", near=near, origin=source.named_by)


# What their source says.


def read(source: Source, workspace: Path | None) -> Scanned:
    """Returns what the source of a package says, without an import.

    Raises:
      ConfigError: the module is not there.
    """
    if problem := _missing(source, workspace):
        raise ConfigError([problem])
    scanned = Scanned()
    for place in _places_of(source.package, workspace) if source.package not in _NOT_READ else ():
        scanned.add(scan(place, source.package))
    return scanned


def _places_of(package: str, workspace: Path | None) -> list[Path]:
    """Returns the folders of a package at the top, or the file of such a module; empty without source."""
    spec = _spec(package, workspace)
    if spec is None or spec.submodule_search_locations is None:
        origin = str(spec.origin) if spec is not None else ""
        return [Path(origin)] if origin.endswith(".py") else []
    return [Path(folder) for folder in spec.submodule_search_locations]


def _spec(package: str, workspace: Path | None) -> importlib.machinery.ModuleSpec | None:
    path = [str(workspace or Path.cwd()), *sys.path]  # the workspace need not be entered for its names
    if (spec := importlib.machinery.PathFinder.find_spec(package, path)) is None:
        with contextlib.suppress(ValueError):  # of `__main__`, for example
            return importlib.util.find_spec(package)  # packages that are installed as editable may have their own way
    return spec


def _missing(source: Source, workspace: Path | None) -> Problem | None:
    """Returns the problem that a module is not there, with the nearest that is, and where it was searched."""
    package, *inner = source.module.split(".")
    spec, name, folders = _spec(package, workspace), package, _searched()
    for part in inner:
        if spec is None:
            break
        name, folders = f"{name}.{part}", list(spec.submodule_search_locations or ())
        spec = importlib.machinery.PathFinder.find_spec(name, folders)
    return None if spec is not None else _not_found(source, name, folders)


def registers_nothing(source: Source) -> Problem:
    """Returns the problem of a module whose package registers no experiment."""
    what = f"importing {source.module} registers no experiment"
    return Problem(what, fix=f"call {DECORATOR} in it", origin=source.named_by)


# Importing one.


def load(source: Source, workspace: Path | None = None) -> None:
    """Imports a module for the experiments that it registers. What it prints goes to standard error.

    Raises:
      ConfigError: there is no such module, or it cannot be imported; names the user's line.
    """
    importlib.invalidate_caches()
    try:
        with contextlib.redirect_stdout(sys.stderr), importing_users_module(source.module):
            importlib.import_module(source.module)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and (problem := _missing(source, workspace)):
            raise ConfigError([problem]) from error
        line = explained.line_of(error, source.module, workspace)
        if (again := garden_index.taken(error)) is not None:
            twice = registered_twice(f"experiment '{again[0]}'", place_of(again[1]), line or source.named_by)
            raise ConfigError([twice]) from error
        named_by = f" (named by {source.named_by.brief})" if line is not None else ""
        is_own = source.package == FOLDER
        what = "cannot be imported" if is_own else f"{source.module} cannot be imported{named_by}"
        raise ConfigError([explained.problem(what, error, line or source.named_by)]) from error


def registered_twice(what: str, first: Origin, second: Origin) -> Problem:
    """Returns the problem that two places register the same."""
    return Problem(f"{what} is registered twice, at {first} and {second}", fix="rename one")


def place_of(factory: Any) -> Origin:
    """Returns the place of a factory."""
    function = garden_index.function_of(factory)
    code = getattr(function, "__code__", None)
    named = Origin("file", f"{function.__module__}.{function.__qualname__}")
    return Origin("file", code.co_filename, code.co_firstlineno) if code else named


def _not_found(source: Source, missing: str, folders: list[str]) -> Problem:
    parent = missing.rpartition(".")[0]
    names = [f"{parent}.{each.name}" if parent else each.name for each in pkgutil.iter_modules(folders)]
    near = mistyped(missing, names)
    rest = source.module.removeprefix(missing)
    if near and rest and importlib.machinery.PathFinder.find_spec(near, folders) is not None:
        near += rest
    beside = _beside(missing) if not parent else None
    fix = f"PYTHONPATH={beside} finds the one there" if beside else explained.how_to_install(missing)
    fix = fix or f"searched: {', '.join(folders)}"
    return Problem(f"there is no module '{missing}'", near=near, fix=fix, origin=source.named_by)


def _searched() -> list[str]:
    """Returns the folders in which Python searches modules that are not its own."""
    standard = sysconfig.get_paths()["stdlib"]
    own = (standard, os.path.join(standard, "lib-dynload"))
    paths = [os.path.abspath(path) for path in sys.path]
    return list(dict.fromkeys(path for path in paths if path not in own and os.path.isdir(path)))


def _beside(package: str) -> str | None:
    """Returns a folder that Python does not search, and in which the package lies: `src`, or one upwards."""
    here, known = Path.cwd(), _searched()
    folders = [str(each) for each in (here / "src", here, here.parent, here.parent / "src") if str(each) not in known]
    found = (each for each in folders if Path(each, f"{package}.py").is_file() or any(Path(each, package).glob("*.py")))
    return next(found, None)


def enter_here() -> None:
    """Makes modules of the current folder importable, as `python -m` does."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
