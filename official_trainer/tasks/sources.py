"""Modules that register experiments when they are imported, such as a package of the user's.

Owns: which modules these are (`--import`, `pyproject.toml` of the workspace, entry points of installed packages),
importing one, and the message if that fails.
Does not own: what they register (`registry.py`), what is known of them without an import (`listings.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import pkgutil
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from official_trainer import files
from official_trainer.config import ConfigError, Origin, Problem
from official_trainer.garden import index as garden
from official_trainer.lazy import select
from official_trainer.nearest import mistyped, nearest
from official_trainer.shown import first_few
from official_trainer.tasks import explained
from official_trainer.user_code import is_users

GROUP = "official_trainer.experiments"
"""The group of entry points with which an installed package names its modules."""
PYPROJECT = "pyproject.toml"
_TABLE = "official-trainer"
_KEY = "experiments"


@dataclasses.dataclass(frozen=True)
class Source:
    """A module to import for the experiments that it registers.

    Attributes:
      module: its name.
      named_by: what names it, for messages.
      is_required: whether a command fails that cannot import it; if not, it is warned.
    """

    module: str
    named_by: Origin
    is_required: bool = False


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment of a workspace or of an importable module.

    Attributes:
      name: the name for `--experiment`.
      module: the module to import, which registers it, such as `experiments.digits`.
      path: its file.
      line: line of the factory.
      summary: first line of the factory's docstring.
      imports_garden: whether the module imports Model Garden, and with it TensorFlow.
    """

    name: str
    module: str
    path: Path
    line: int
    summary: str
    imports_garden: bool = False


# Which modules.


def given(imports: Iterable[str]) -> list[Source]:
    """Returns the modules that `--import` names.

    Raises:
      ConfigError: a value is no name of a module.
    """
    found = [Source(module, Origin("flag", f"--import={module}"), is_required=True) for module in imports]
    if problems := [_not_a_name(source) for source in found if not _is_name(source.module)]:
        raise ConfigError(problems)
    return list({source.module: source for source in found}.values())


def declared(workspace: Path | None) -> tuple[list[Source], list[Problem]]:
    """Returns the modules that the workspace's `pyproject.toml` and installed packages name, and what is wrong there.

    Raises:
      ConfigError: `pyproject.toml` cannot be read, or has a mistake where it names them.
    """
    found = [*(_of_pyproject(workspace) if workspace is not None else ())]
    problems = []
    for point in _entry_points():
        place = Origin("file", f"entry point {point.name} of {point.dist.name if point.dist else 'a package'}")
        source = Source(point.value.strip(), place)
        if _is_name(source.module):
            found.append(source)
        else:
            problems.append(_not_a_name(source))
    return list({source.module: source for source in reversed(found)}.values())[::-1], problems


def declares(folder: Path) -> bool:
    """Returns whether the `pyproject.toml` of a folder has a table for us."""
    try:
        return bool(_table(folder))
    except ConfigError:
        return False


def _entry_points() -> Iterable[Any]:
    return _entry_points_on(tuple(sys.path))


@functools.cache  # reading the metadata of all packages takes as long as all else that finds an experiment
def _entry_points_on(path: tuple[str, ...]) -> Iterable[Any]:
    if not any(map(_may_name_modules, path)):
        return ()
    from importlib import metadata  # takes as long as the rest of a command; only those that need it wait

    return metadata.entry_points(group=GROUP)


def _may_name_modules(folder: str) -> bool:
    """Returns whether a package that is installed in a folder of `sys.path` may have an entry point of the group."""
    if os.path.isfile(folder):  # a zip file
        return True
    try:
        inside = list(os.scandir(folder or "."))
    except OSError:
        return False
    installed = [each.path for each in inside if each.name.lower().endswith(("dist-info", "egg-info"))]  # also of eggs
    return any(GROUP.encode() in _content(os.path.join(each, "entry_points.txt")) for each in installed)


def _content(path: str) -> bytes:
    try:
        return files.read_bytes(path)
    except OSError:
        return b""


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
        source = Source(module, Origin("file", PYPROJECT, line))
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


# Importing one.


def load(source: Source) -> None:
    """Imports a module for the experiments that it registers. What it prints goes to standard error.

    Raises:
      ConfigError: there is no such module, or it cannot be imported; names the user's line.
    """
    select()
    importlib.invalidate_caches()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            importlib.import_module(source.module)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{source.module}.".startswith(f"{missing}."):
            raise ConfigError([_not_found(source, missing)]) from error
        raise ConfigError([_failure(error, source)]) from error


def _failure(error: BaseException, source: Source) -> Problem:
    line = line_of(error, source.module)
    if (again := garden.taken(error)) is not None:
        name, first = again
        return registered_twice(f"experiment '{name}'", place_of(first), line or source.named_by)
    what = f"{source.module} cannot be imported" + (f" (named by {source.named_by.brief})" if line is not None else "")
    return explained.problem(what, error, line or source.named_by)


def registered_twice(what: str, first: Origin, second: Origin) -> Problem:
    """Returns the problem that two places register the same."""
    return Problem(f"{what} is registered twice, at {first} and {second}", fix="rename one")


def place_of(factory: Any) -> Origin:
    """Returns the place of a factory."""
    function = garden.function_of(factory)
    code = getattr(function, "__code__", None)
    named = Origin("file", f"{function.__module__}.{function.__qualname__}")
    return Origin("file", code.co_filename, code.co_firstlineno) if code else named


def line_of(error: BaseException, module: str) -> Origin | None:
    """Returns the innermost line in the traceback of an error that is the user's; None if none is.

    Args:
      error: what was raised.
      module: whose package is the user's, also where it is installed.
    """
    frames = [(frame.filename, frame.lineno or 1) for frame in traceback.extract_tb(error.__traceback__)]
    own = [(file, line) for file, line in frames if is_users(file, module)]
    if isinstance(error, SyntaxError) and error.filename:
        own.append((error.filename, error.lineno or 1))
    if not own:
        return None
    file, line = own[-1]
    inside = file.startswith(os.getcwd() + os.sep)
    return Origin("file", os.path.relpath(file) if inside else file, line)


def _folders(package: str) -> list[str]:
    module = sys.modules.get(package)
    return [str(folder) for folder in getattr(module, "__path__", ())]


def _not_found(source: Source, missing: str) -> Problem:
    """Returns the problem of a module that is not there, with the nearest that is, and where it was searched."""
    parent = missing.rpartition(".")[0]
    folders = _folders(parent) if parent else searched()
    names = [f"{parent}.{each.name}" if parent else each.name for each in pkgutil.iter_modules(folders)]
    near = mistyped(missing, names)
    rest = source.module.removeprefix(missing)
    if near and rest and importlib.machinery.PathFinder.find_spec(near, folders) is not None:
        near += rest
    beside = _beside(missing) if not parent else None
    fix = f"PYTHONPATH={beside} finds the one there" if beside else explained.how_to_install(missing)
    fix = fix or f"searched: {', '.join(folders)}"
    return Problem(f"there is no module '{missing}'", near=near, fix=fix, origin=source.named_by)


def registers_nothing(source: Source) -> Problem:
    """Returns the problem of a module that registers no experiment, with those inside it that would."""
    package, *parts = source.module.split(".")
    spec = importlib.util.find_spec(package)  # that of an inner module would import its package
    folders = [Path(each, *parts) for each in (spec.submodule_search_locations or () if spec is not None else ())]
    found = [
        ".".join((source.module, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        if garden.DECORATOR.encode() in path.read_bytes()
    ]
    fix = f"import {first_few(found)} in it" if found else f"call {garden.DECORATOR} in it"
    return Problem(f"importing {source.module} registers no experiment", fix=fix, origin=source.named_by)


def searched() -> list[str]:
    """Returns the folders in which Python searches modules that are not its own."""
    standard = sysconfig.get_paths()["stdlib"]
    own = (standard, os.path.join(standard, "lib-dynload"))
    paths = [os.path.abspath(path) for path in sys.path]
    return list(dict.fromkeys(path for path in paths if path not in own and os.path.isdir(path)))


def _beside(package: str) -> str | None:
    """Returns a folder that Python does not search, and in which the package lies: `src`, or one upwards."""
    here, known = Path.cwd(), searched()
    folders = [str(each) for each in (here / "src", here, here.parent, here.parent / "src") if str(each) not in known]
    return next((each for each in folders if _holds(Path(each), package)), None)


def _holds(folder: Path, package: str) -> bool:
    return (folder / f"{package}.py").is_file() or any((folder / package).glob("*.py"))


def enter_here() -> None:
    """Makes modules of the current folder importable, as `python -m` does."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
