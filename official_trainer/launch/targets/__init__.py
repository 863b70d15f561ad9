"""The targets, by name.

Owns: finding them: a file of this folder with a subclass of `Target` is a target with the file's name, and so is such a
module of an installed package, with the name of its entry point `official_trainer.launch_targets`. Only the requested
one is imported.
Does not own: the contract of a target (`launch/target.py`), how entry points are read (`config/installed.py`).
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from official_trainer.config import installed
from official_trainer.launch.target import Target

GROUP = "official_trainer.launch_targets"
_NAMED = re.compile(
    r'^class \w+\([\w.]*(?:Target\[\w+\]|Kubernetes)\):\n    """.*"""\n\n    name = "(\w+)"$', flags=re.MULTILINE
)


def own_names() -> tuple[str, ...]:
    """Returns the names of the targets in this folder, in alphabetical order."""
    paths = sorted(pathlib.Path(__file__).parent.glob("*.py"))
    return tuple(path.stem for path in paths if path.stem in _NAMED.findall(path.read_text(encoding="utf-8")))


def names() -> tuple[str, ...]:
    """Returns the names of all targets, in alphabetical order."""
    return tuple(sorted({*own_names(), *(point.name for point in installed.points(GROUP))}))


def get(name: str) -> type[Target[Any]]:
    """Returns a target by its name, one of `names`.

    Raises:
      PackageError: it is of an installed package, and is not there, or cannot be imported; or two packages have it.
    """
    what = f"the launch target {name}"
    is_own = name in own_names()
    module = importlib.import_module(f"{__package__}.{name}") if is_own else installed.load(GROUP, name, what)
    assert module is not None, f"{name} is none of names()"
    found = (each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Target))
    for target in found:
        if getattr(target, "name", None) == name:
            return target
    raise installed.PackageError(f'{what}: {module.__name__} must define a subclass of Target with name = "{name}"')


def importable() -> Iterator[type[Target[Any]]]:
    """Yields all targets but those of installed packages that cannot be used."""
    for name in names():
        with contextlib.suppress(installed.PackageError):
            yield get(name)
