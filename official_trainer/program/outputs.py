"""The outputs of a model by name: values of arguments for each of them, and tensors of each.

Owns: the value of each output in an argument (one for all, a list in their order, a dict by name), errors for arguments
that do not fit the outputs, and pairing targets with outputs. Does not own: the meaning of values (`rewards.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.errors import nearest
from official_trainer.lazy import keras, load, tf
from official_trainer.program.data import ArgumentError

compile_utils: Any = load("tf_keras.src.engine.compile_utils")  # Keras's own containers have no public name


class Outputs:
    """The outputs of a model.

    Attributes:
      names: in the order of their structure; None until `build`, if only a batch shows them.
    """

    def __init__(self, model: keras.Model) -> None:
        self._container = compile_utils.Container(output_names=model.output_names)
        self.names: list[str] | None = None
        if model.output_names is not None:
            self.names = sorted(model.output) if isinstance(model.output, Mapping) else list(model.output_names)

    def build(self, outputs: Any) -> list[str]:
        """Returns the names of the outputs of a first batch."""
        self._container.build(outputs)
        self.names = list(self.by_name(outputs))
        return self.names

    def by_name(self, outputs: Any) -> dict[str, Any]:
        """Returns the outputs of a batch by their names."""
        names = sorted(outputs) if isinstance(outputs, Mapping) else self._container._output_names
        return dict(zip(names, tf.nest.flatten(outputs), strict=True))

    def paired(self, structure: Any, outputs: Any) -> dict[str, Any]:
        """Returns targets or weights by the names of their outputs; None for each if there are none."""
        names = self.by_name(outputs)
        if structure is None:
            return dict.fromkeys(names)
        return dict(zip(names, tf.nest.flatten(self._container._conform_to_outputs(outputs, structure)), strict=True))


def map_values(argument: Any, function: Callable[[Any, Any], Any]) -> Any:
    """Returns an argument with `function(value, key)` in place of its values; None stays, the key of all is None."""
    if isinstance(argument, Mapping):
        return {key: None if value is None else function(value, key) for key, value in argument.items()}
    if isinstance(argument, list | tuple):
        return [None if value is None else function(value, key) for key, value in enumerate(argument)]
    return function(argument, None)


def by_name(argument: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns the values of an argument by the names of their outputs; an output without a value is left out."""
    if isinstance(argument, Mapping):
        found = {name: argument.get(name) for name in names}
    else:
        found = (
            dict(zip(names, argument, strict=True))
            if isinstance(argument, list | tuple)
            else dict.fromkeys(names, argument)
        )
    return {name: value for name, value in found.items() if value is not None}


def check(place: str, argument: Any, names: Sequence[str], *, which: str = "outputs") -> None:
    """Refuses a dict with other names, or a list of another length.

    Args:
      place: the argument's name.
      argument: its value.
      names: those allowed.
      which: whose names they are.

    Raises:
      ArgumentError: lists what is allowed.
    """
    if isinstance(argument, list | tuple) and len(argument) != len(names):
        raise ArgumentError(
            f"{place} needs one entry for each of the {len(names)} {which} ({', '.join(names)}), None for no value; it "
            f"has {len(argument)}"
        )
    for name in argument if isinstance(argument, Mapping) else ():
        if name not in names:
            near = nearest(str(name), names)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ArgumentError(f"{place}[{name!r}]: the {which} are {', '.join(names)}{hint}")
