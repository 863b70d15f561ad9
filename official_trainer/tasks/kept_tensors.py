"""A tensor of one trace that another one uses: found while TensorFlow traces, with the user's lines.

Owns: finding it in the graph of a step, where it was computed and what keeps it. Does not own: such a tensor in code
that is not traced, which TensorFlow refuses itself (`runs/mistakes/meanings.py` says what that means).

TensorFlow takes such a tensor as an argument of the graph, and fails when that is called: without a line of the user's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from official_trainer.config.errors import line_of_code
from official_trainer.errors import UserError
from official_trainer.lazy import tf
from official_trainer.tasks.autograph import do_not_convert
from official_trainer.tasks.explained import at_line, at_method
from official_trainer.user_code import is_ours, is_users

_FIX = (
    "a tensor has no value outside of the trace that it was computed in: return it in the logs of the step, or assign "
    "it to a tf.Variable"
)


class KeptTensorError(UserError, TypeError):
    """A step uses a tensor that was kept from another trace."""


@do_not_convert
def check(task: Any, method: str, outputs: Any, *parts: Any) -> None:
    """Refuses a step that uses or returns tensors of another trace; called in the trace, behind the step.

    Args:
      task: whose step it is.
      method: of the task, for a line if that of the use is not known.
      outputs: nests of tensors that it has returned.
      *parts: objects that may keep the tensor: the model, metrics.

    Raises:
      KeptTensorError: names where it is used, where it was computed, and what keeps it.
    """
    if tf.executing_eagerly():
        return
    graph: Any = tf.compat.v1.get_default_graph()
    outer, around = graph, set()
    while outer is not None:
        around.add(id(outer))
        outer = getattr(outer, "outer_graph", None)
    used = [(tensor, inside.consumers()) for tensor, inside in getattr(graph, "captures", ())]
    for tensor, users in [*used, *((output, ()) for output in tf.nest.flatten(outputs))]:
        if tf.is_symbolic_tensor(tensor) and id(tensor.graph) not in around:
            raise KeptTensorError(_message(task, method, tensor, users, (task, *parts)))


def _message(task: Any, method: str, tensor: Any, users: Iterable[Any], parts: Iterable[Any]) -> str:
    module = type(task).__module__
    computed, name = line_of(tensor.op, module), _name_of(tensor, task, parts)
    what = "a tensor of another trace is used here"
    what += f", which {name} has kept" if name else ""
    what += f"; it was computed at {line_of_code(*computed[:2]).brief} in {computed[2]}" if computed else ""
    what = f"{what}; {_FIX}"
    used = next(filter(None, (line_of(operation, module) for operation in users)), None)
    if used is None:
        return at_method(type(task), method, what)
    return at_line(line_of_code(*used[:2]), used[2], what)


def line_of(operation: Any, module: str) -> tuple[str, int, str] | None:
    """Returns file, line and function of the user's last frame that made an operation, behind one of this package."""
    frames = list(operation.traceback)
    first = next((number for number, frame in enumerate(frames) if is_ours(frame.filename)), len(frames))
    users = [frame for frame in frames[first:] if is_users(frame.filename, module)]
    return (users[-1].filename, users[-1].lineno, users[-1].name) if users else None


def _name_of(tensor: Any, task: Any, parts: Iterable[Any]) -> str:
    """Returns what keeps a tensor, such as `self.seen`; empty if it is not found."""
    for part in parts:
        for name, value in vars(part).items():
            if _holds(value, tensor):
                return f"self.{name}" if part is task else f"{type(part).__name__}.{name}"
    for name, value in vars(sys.modules.get(type(task).__module__, object)).items():
        if _holds(value, tensor):
            return name
    return ""


def _holds(value: Any, tensor: Any) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple | set) else ()
    return value is tensor or any(each is tensor for each in inner)
