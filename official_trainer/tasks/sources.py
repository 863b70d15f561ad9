"""Modules that register experiments when they are imported, such as a package of the user's.

Owns: which modules these are (`--import`, `pyproject.toml` of the workspace, entry points of installed packages), what
their source says, importing one, the message if that fails.
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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from official_trainer.config import ConfigError, Origin, Problem, installed
from official_trainer.config.errors import line_of_class
from official_trainer.garden import index as garden_index
from official_trainer.garden.scan import FOLDER, Scanned, scan
from official_trainer.lazy import importing_users_module
from official_trainer.nearest import mistyped

GROUP = "official_trainer.experiments"
"""The group of entry points with which an installed package names its modules."""
PYPROJECT = "pyproject.toml"
_TABLE = "official-trainer"
_KEY = "experiments"
_NOT_READ = {"__main__", "official_trainer", garden_index.PACKAGE, FOLDER, *sys.stdlib_module_names}
"""Packages in which no experiment of a user's is searched."""


@dataclasses.dataclass(frozen=True)
class NamedModule:
    """A module to import for the experiments that it, or what it imports, registers.

    Attributes:
      name: with its packages.
      named_by: what names it, for messages.
    """

    name: str
    named_by: Origin

    @property
    def package(self) -> str:
        """The package at the top, whose source has the names of the experiments."""
        return self.name.partition(".")[0]


# Which modules.


def given(imports: Iterable[str]) -> list[NamedModule]:
    """Returns the modules that `--import` names.

    Raises:
      ConfigError: a value is no name of a module.
    """
    return [_module(name, Origin("flag", f"--import={name}")) for name in dict.fromkeys(imports)]


def declared(workspace: Path | None) -> tuple[list[NamedModule], list[Problem]]:
    """Returns the modules that the workspace's `pyproject.toml` and installed packages name, and what is wrong there.

    Raises:
      ConfigError: `pyproject.toml` cannot be read, or has a mistake where it names them.
    """
    modules = [*(_of_pyproject(workspace) if workspace is not None else ())]
    problems: list[Problem] = []
    for point in installed.points(GROUP):
        origin = Origin("file", f"entry point {point.name} of {installed.package_of(point)}")
        try:
            modules.append(_module(point.value.strip(), origin))
        except ConfigError as error:
            problems += error.problems
    first_by_name = {module.name: module for module in reversed(modules)}
    return [*reversed(first_by_name.values())], problems


def declares(folder: Path) -> bool:
    """Returns whether the `pyproject.toml` of a folder has a table for us."""
    try:
        return bool(_table(folder))
    except ConfigError:
        return False


def _of_pyproject(workspace: Path) -> Iterator[NamedModule]:
    table, origin = _table(workspace), Origin("file", PYPROJECT)
    names = table.get(_KEY, [])
    if table.keys() - {_KEY} or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        what, fix = "expected a list of modules", f'such as {_KEY} = ["my_project.experiments"]'
        raise ConfigError([Problem(what, f"tool.{_TABLE}", got=repr(table), fix=fix, origin=origin)])
    lines = (workspace / PYPROJECT).read_text(encoding="utf-8").splitlines() if names else []
    for name in names:
        quoted = re.compile(f"[\"']{re.escape(name)}[\"']")
        line = next((number for number, text in enumerate(lines, 1) if quoted.search(text)), 0)
        yield _module(name, dataclasses.replace(origin, line=line))


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


def _module(name: str, named_by: Origin) -> NamedModule:
    """Returns the module of a name.

    Raises:
      ConfigError: it is no name of a module.
    """
    if _is_name(name):
        return NamedModule(name, named_by)
    near = name.partition(":")[0].removesuffix(".py").strip("./").replace("/", ".").replace("-", "_")
    what, allowed = f"'{name}' is not the name of a module", "names with dots, such as my_project.experiments"
    raise ConfigError([Problem(what, allowed=allowed, near=near if _is_name(near) else "", origin=named_by)])


def _is_name(text: str) -> bool:
    return all(word.isidentifier() for word in text.split("."))


# What their source says.


def read(module: NamedModule, workspace: Path | None) -> Scanned:
    """Returns what the source of a module's package says, without an import.

    Raises:
      ConfigError: the module is not there.
    """
    scanned, folders = Scanned(), _folders(workspace)
    if module.package in _NOT_READ:
        return scanned
    spec = importlib.machinery.PathFinder.find_spec(module.package, folders)
    if spec is None:  # packages that are installed as editable may have their own way
        spec = importlib.util.find_spec(module.package)
    if spec is None:
        raise ConfigError([_not_there(module, module.package, folders)])
    for path in spec.submodule_search_locations or [str(spec.origin)]:
        if path.endswith(".py") or Path(path).is_dir():
            scanned.add(scan(Path(path), module.package))
    return scanned


def _folders(workspace: Path | None) -> list[str]:
    """Returns where modules are searched; a workspace need not be entered for that."""
    return list(dict.fromkeys([str(workspace or Path.cwd()), *filter(os.path.isdir, sys.path)]))


def _not_there(module: NamedModule, missing: str, folders: list[str]) -> Problem:
    """Returns the problem that a module, or a package around it, is not there, with the nearest that is."""
    fix, near = f"searched: {', '.join(folders)}", _near(missing, folders)
    near = near and near + module.name.removeprefix(missing)
    return Problem(f"there is no module '{missing}'", near=near, fix=fix, origin=module.named_by)


def _near(name: str, folders: Iterable[str]) -> str:
    """Returns the module in some folders that a name, whose last word is not there, may mean; empty for none."""
    package, _, last = name.rpartition(".")
    there = {module.name for module in pkgutil.iter_modules(folders)}
    near = mistyped(last, sorted(there if package else there | sys.stdlib_module_names))
    return f"{package}.{near}" if package and near else near


# Importing one.


def load(module: NamedModule) -> None:
    """Imports a module for the experiments that it registers. What it prints goes to standard error.

    Raises:
      ConfigError: there is no such module, or it cannot be imported; names the user's line.
    """
    importlib.invalidate_caches()
    try:
        with contextlib.redirect_stdout(sys.stderr), importing_users_module(module.name):
            importlib.import_module(module.name)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        from official_trainer.tasks import contract  # which a list of names does not need

        missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        package = sys.modules.get(missing.rpartition(".")[0])
        folders = getattr(package, "__path__", []) if "." in missing else _folders(None)
        if missing and f"{module.name}.".startswith(f"{missing}."):
            raise ConfigError([_not_there(module, missing, [*folders])]) from error
        what = f"{module.name} cannot be imported (named by {module.named_by.brief})"
        what = "cannot be imported" if module.package == FOLDER else what
        problem = contract.failure(what, error, module.name, module.named_by)
        if missing:
            beside = [] if "." in missing else getattr(sys.modules.get(FOLDER), "__path__", [])
            near = _near(f"{FOLDER}.{missing}", beside) or _near(missing, folders)
            fix = "" if near or "." in missing else f"if it is a package, install it: pip install {missing}"
            problem = dataclasses.replace(problem, near=near, fix=fix)
        raise ConfigError([problem]) from error


def registered_twice(what: str, first: Origin, second: Origin) -> Problem:
    """Returns the problem that two places register the same."""
    return Problem(f"{what} is registered twice, at {first} and {second}", fix="rename one")


def line_of(factory: Any) -> Origin:
    """Returns the line of a factory or a class, or where Python does not know it, its name."""
    function = garden_index.function_of(factory)
    if code := getattr(function, "__code__", None):
        return Origin("file", code.co_filename, code.co_firstlineno)
    name = f"{function.__module__}.{function.__qualname__}"
    return (line_of_class(function) if isinstance(function, type) else None) or Origin("file", name)


def make_importable(folder: Path) -> None:
    """Makes modules of a folder importable, before others of the same names, as `python -m` does."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
