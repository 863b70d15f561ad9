"""What installed packages add by entry points: verbs, actions, trackers, targets of launch, experiments.

Owns: finding the entry points of a group, importing the module that one names, and the message if that fails.
Does not own: the groups, and what such a module has to have (`cli/verbs/`, `config/components.py`, `launch/targets/`,
`tasks/sources.py`).
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from typing import TYPE_CHECKING

from official_trainer.errors import ExitCode, UserError, describe_error

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_OURS = "official-trainer"


class PackageError(UserError, ImportError):
    """What an installed package adds cannot be used."""

    exit_code = ExitCode.CONFIG


def points(group: str) -> list[EntryPoint]:
    """Returns the entry points of a group, of all installed packages."""
    return _points(group, tuple(sys.path))


def load(group: str, name: str, what: str) -> types.ModuleType | None:
    """Imports the module that an installed package adds under a name; None if no package does.

    Args:
      group: of the entry point.
      name: of the entry point; that of this package comes before another's.
      what: it is, for the message.

    Raises:
      PackageError: it cannot be imported, or two packages have the name.
    """
    by_package = {package_of(point): point for point in points(group) if point.name == name}
    if len(by_package) > 1 and _OURS not in by_package:
        packages = sorted(by_package)
        raise PackageError(f"{what} is in two packages, {' and '.join(packages)}: pip uninstall {packages[-1]}")
    package = _OURS if _OURS in by_package else next(iter(by_package), None)
    if package is None:
        return None
    try:
        return importlib.import_module(by_package[package].value)
    except Exception as error:
        raise broken(what, package, f"cannot be imported: {describe_error(error)}") from error


def load_part(module: str, what: str) -> types.ModuleType:
    """Imports a module of a part of this package that can be taken away.

    Args:
      module: its name.
      what: what needs it, for the message.

    Raises:
      PackageError: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise broken(what, _OURS, f"cannot be imported: {describe_error(error)}") from error


def package_of(point: EntryPoint) -> str:
    """Returns the package that has an entry point, by the name that pip knows."""
    assert point.dist is not None, "points() reads them of packages"
    return point.dist.name


def broken(what: str, package: str, why: str) -> PackageError:
    """Returns the error that a part of a package cannot be used, which says how the package is installed again."""
    return PackageError(f"{what} of {package} {why}. Install it again: pip install --force-reinstall {package}")


@functools.cache
def _points(group: str, path: tuple[str, ...]) -> list[EntryPoint]:
    """Reads the entry points of a group; again where `path`, which is Python's search path, has changed."""
    from importlib import metadata  # takes as long as the rest of a command; few need it

    named = metadata.entry_points(group=group)
    return [point for point in named if point.dist and point.dist.name]  # what is left of a removed package has no name
