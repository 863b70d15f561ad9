"""Where a step is being traced: the graph, and values that hold inside a `with` block, in one thread.

Owns: setting a context variable for a block. Does not own: the variables. Replicas are traced in threads of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from official_trainer.lazy import tf

Value = TypeVar("Value")


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
