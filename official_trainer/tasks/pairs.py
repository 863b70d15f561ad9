"""Losses that combine each label with each output by mistake: labels `[batch]` and outputs `[batch, 1]`.

TensorFlow extends both to `[batch, batch]`, the loss falls all the same, and the model learns the mean of the labels.
Owns: finding this in the operations of a loss, and the warning. Does not own: calling the loss (`task.py`).
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from official_trainer.lazy import tf

_logger = logging.getLogger(__name__)

_COMBINING = ("SquaredDifference", "Sub", "Mul")


def operations() -> list[Any]:
    """Returns the operations of the graph that is traced now; none where there is no graph."""
    return [] if tf.executing_eagerly() else tf.compat.v1.get_default_graph().get_operations()


def warn_of_pairs(task: Any, labels: Any, outputs: Any, before: int) -> None:
    """Warns once for a class if a loss has combined all labels with all outputs.

    Args:
      task: whose `build_losses` was called.
      labels: that it was called with.
      outputs: that it was called with.
      before: how many operations there were before.
    """
    if not all(isinstance(each, tf.Tensor) for each in (labels, outputs)):
        return
    if sorted([_columns(labels), _columns(outputs)]) != [0, 1]:
        return
    for operation in operations()[before:]:
        if operation.type in _COMBINING and sorted(map(_columns, operation.inputs)) == [0, 1]:
            cls: Any = type(task)
            _warn(cls, f"{labels.dtype.name}{_shown(labels)}", f"{outputs.dtype.name}{_shown(outputs)}")
            return


def _columns(tensor: Any) -> int:
    """Returns 0 for a tensor `[batch]` and 1 for `[batch, 1]`; 2 for any other."""
    shape = tensor.shape
    if shape.rank == 1 and shape[0] != 1:
        return 0
    return 1 if shape.rank == 2 and shape[1] == 1 and shape[0] != 1 else 2


def _shown(tensor: Any) -> str:
    return "[" + ",".join("?" if size is None else str(size) for size in tensor.shape) + "]"


@functools.cache
def _warn(cls: type, labels: str, outputs: str) -> None:
    _logger.warning(
        "%s.build_losses combines labels %s and outputs %s: each label with each output, which is rarely meant. Give "
        "both the same shape, with labels[:, None] or outputs[:, 0]",
        cls.__name__,
        labels,
        outputs,
    )
