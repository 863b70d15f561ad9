"""New values for the variables of a train state: which are accepted.

Owns: the checks, and the error that names each variable and what it expects. Does not own: which variables there are
and assigning them (`checkpoint_state.py`), when an action hands values back (`actions/schedule.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from official_trainer.errors import UserError
from official_trainer.nearest import nearest
from official_trainer.shown import first_few

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf


class AssignError(UserError, ValueError):
    """New values of variables do not fit."""


def checked(values: Mapping[str, Any], variables: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    """Returns new values as arrays.

    Args:
      values: arrays or tensors by the paths of variables.
      variables: those that may be changed, by path.

    Raises:
      AssignError: a name is unknown, a shape or a dtype is another, or a value is not finite.
    """
    import numpy as np

    arrays = {path: np.asarray(value) for path, value in values.items()}
    if problems := list(filter(None, (_problem(path, array, variables) for path, array in arrays.items()))):
        raise AssignError(
            f"new values are refused, and nothing is changed: {'; '.join(problems[:_SHOWN])}"
            f"{f'; and {len(problems) - _SHOWN} more' if len(problems) > _SHOWN else ''}"
        )
    return arrays


_SHOWN = 5


def _problem(path: str, array: np.ndarray, variables: Mapping[str, tf.Variable]) -> str:
    """Returns what is wrong with a value; empty if nothing is."""
    import numpy as np

    if path not in variables:
        near = nearest(path, variables)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {first_few(list(variables))}"
        return f"{path!r} is no variable that an action may change; {hint}"
    variable = variables[path]
    expected = f"{variable.dtype.name} {list(variable.shape)}"
    if (found := f"{array.dtype.name} {list(array.shape)}") != expected:
        return f"{path!r} is {found}; expected {expected}"
    kind, count = array.dtype.kind, 0
    if kind in "fcV":
        count = int(array.size - np.isfinite(array.astype(np.float32) if kind == "V" else array).sum())
    if count:
        return f"{path!r} has {count} values that are not finite, of {array.size}; expected finite ones"
    return ""
