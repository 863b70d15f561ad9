"""The targets, by name.

Owns: the table of our own, and those that installed packages add: an entry point of the group
`official_trainer.launch_targets` names a module with a subclass of `Target` that has the entry point's name.
Does not own: the contract of a target (`launch/target.py`), how entry points are read (`config/installed.py`).
"""

from __future__ import annotations

from typing import Any

from official_trainer.config import installed
from official_trainer.launch.target import Target
from official_trainer.launch.targets.kubernetes import Kubernetes
from official_trainer.launch.targets.slurm import Slurm
from official_trainer.launch.targets.tpu import CloudTpu

GROUP = "official_trainer.launch_targets"
_OURS: dict[str, type[Target[Any]]] = {target.name: target for target in (Kubernetes, Slurm, CloudTpu)}


def names() -> tuple[str, ...]:
    """Returns the names of all targets, in alphabetical order."""
    return tuple(sorted({*_OURS, *(point.name for point in installed.points(GROUP))}))


def get(name: str) -> type[Target[Any]]:
    """Returns a target by its name, one of `names`.

    Raises:
      PackageError: it is of an installed package, and is not there, or cannot be imported; or two packages have it.
    """
    if name in _OURS:
        return _OURS[name]
    what = f"the launch target {name}"
    module = installed.load(GROUP, name, what)
    assert module is not None, f"{name} is none of names()"
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Target) and getattr(value, "name", None) == name:
            return value
    raise installed.PackageError(f'{what}: {module.__name__} must define a subclass of Target with name = "{name}"')
