"""The targets, by name.

Owns: finding them: a file of this folder with a subclass of `Target` is a target with the file's name. Only the
requested one is imported.
Does not own: the contract of a target (`launch/target.py`).
"""

from __future__ import annotations

import importlib
import pathlib
import re
from typing import Any

from official_trainer.launch.target import Target

_NAMED = re.compile(r'^class \w+\([\w.]*Target\[\w+\]\):\n    """.*"""\n\n    name = "(\w+)"$', flags=re.MULTILINE)


def names() -> tuple[str, ...]:
    """Returns the names of all targets, in alphabetical order."""
    paths = sorted(pathlib.Path(__file__).parent.glob("*.py"))
    return tuple(path.stem for path in paths if path.stem in _NAMED.findall(path.read_text(encoding="utf-8")))


def get(name: str) -> type[Target[Any]]:
    """Returns a target by its name, one of `names`."""
    module = importlib.import_module(f"{__package__}.{name}")
    found: list[type[Target[Any]]] = [each for each in vars(module).values() if getattr(each, "name", None) == name]
    return found[0]
