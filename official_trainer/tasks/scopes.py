"""Where a step is being traced: the graph, and values that hold inside a `with` block, in one thread.

Owns: setting a context variable for a block, and whether code is in a loop. Does not own: the variables. Replicas are
traced in threads of their own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from official_trainer.lazy import tf
from official_trainer.tasks.autograph import do_not_convert

Value = TypeVar("Value")


@do_not_convert
@contextlib.contextmanager
def during(variable: ContextVar[Value], value: Value) -> Iterator[Value]:
    """Sets `variable` to `value` for a `with` block, which gets the value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def current_graph() -> Any:
    """Returns the graph that is being traced; None if nothing is."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def turns(outer: Any) -> list[tf.Tensor] | None:
    """Returns the number of the turn in each loop that code here is in, from the innermost one to the graph `outer`.

    None if code here is in a function that may have other callers.
    """
    branch, loop = _kinds_of_graphs()
    graph, found = current_graph(), []
    while graph is not outer and isinstance(graph, (branch, loop)):
        if isinstance(graph, loop):
            found.append(graph.inputs[0])  # which gradients need
        graph = graph.outer_graph
    return found if graph is outer else None


@functools.cache
def _kinds_of_graphs() -> tuple[Any, Any]:
    """Returns the classes of the graphs of a branch and of a loop's body, which have no public names.

    A branch, a loop and a function are graphs alike: only their class tells which.
    """
    kinds: dict[str, Any] = {}

    def kept(name: str, value: tf.Tensor) -> tf.Tensor:
        kinds[name] = type(current_graph())
        return value

    with tf.Graph().as_default():
        zero = tf.constant(0)
        tf.cond(zero < 1, lambda: kept("branch", zero), lambda: zero)
        tf.while_loop(lambda turn: turn < 1, lambda turn: kept("loop", turn + 1), [zero])
    return kinds["branch"], kinds["loop"]
