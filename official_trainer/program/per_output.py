"""Arguments that say something of each output: one value for all, a list in their order, or a dict by their names.

Owns: what such an argument says of which output, and what is said when it does not fit the model. Does not own: what
the values mean (`rewards.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.errors import nearest
from official_trainer.lazy import keras
from official_trainer.program.data import ArgumentError


def names_of(model: keras.Model) -> list[str] | None:
    """Returns the names of a model's outputs in the order of their structure; None if only a batch tells."""
    if model.output_names is None:
        return None
    return sorted(model.output) if isinstance(model.output, Mapping) else list(model.output_names)


def items(given: Any) -> list[tuple[Any, Any]]:
    """Returns the values of an argument with their keys: names, numbers, or None for what is for all outputs."""
    if isinstance(given, Mapping):
        return list(given.items())
    return list(enumerate(given)) if isinstance(given, list | tuple) else [(None, given)]


def keys(given: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns for each output the key under which an argument would say something of it."""
    if isinstance(given, Mapping):
        return {name: name for name in names}
    return {name: number if isinstance(given, list | tuple) else None for number, name in enumerate(names)}


def by_name(given: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns what an argument says of each output; None for nothing."""
    found = dict(items(given))
    return {name: found.get(key) for name, key in keys(given, names).items()}


def check(argument: str, given: Any, names: Sequence[str], *, which: str = "outputs") -> None:
    """Refuses a dict with other names, or a list of another length.

    Args:
      argument: its name.
      given: its value.
      names: those allowed.
      which: whose names they are.

    Raises:
      ArgumentError: lists what is allowed.
    """
    if isinstance(given, list | tuple) and len(given) != len(names):
        raise ArgumentError(
            f"{argument} has {len(given)} entries, and the {which} are {len(names)}: {', '.join(names)}; "
            "give one for each, None for none"
        )
    for name in given if isinstance(given, Mapping) else ():
        if name not in names:
            near = nearest(str(name), names)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ArgumentError(f"{argument}[{name!r}]: the {which} are {', '.join(names)}{hint}")
