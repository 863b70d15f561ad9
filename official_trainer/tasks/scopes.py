"""Values that hold inside a `with` block, in one thread; replicas are traced in threads of their own.

Owns: setting a context variable for a block. Does not own: the variables.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

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
