"""The targets, by name.

Owns: finding them: a file of this folder with a subclass of `Target` is a target with the file's name. Only the
requested one is imported.
Does not own: the contract of a target (`launch/target.py`).
"""

from __future__ import annotations

import importlib
import os
import re
from typing import Any

from official_trainer.launch.target import Target

_SUBCLASS = r"^class \w+\([\w.]*Target\[\w+\]\):$"


def names() -> tuple[str, ...]:
    """Returns the names of all targets, in alphabetical order."""
    here = os.path.dirname(os.path.abspath(__file__))
    return tuple(name[:-3] for name in sorted(os.listdir(here)) if name.endswith(".py") and _is_target(here, name))


def get(name: str) -> Target[Any]:
    """Returns a target by its name, one of `names`."""
    module = importlib.import_module(f"{__package__}.{name}")
    (found,) = (
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Target) and getattr(each, "name", None) == name
    )
    return found()


def _is_target(folder: str, name: str) -> bool:
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        text = file.read()
    is_named = f'\n    name = "{name[:-3]}"\n' in text
    return is_named and re.search(_SUBCLASS, text, flags=re.MULTILINE) is not None
