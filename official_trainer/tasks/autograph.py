"""Control over AutoGraph: while a step is traced it converts the functions of users, and none of the engine's.

Owns: both decorators. Does not own: how functions are traced (`engine/windows.py`).

AutoGraph converts each function that a traced one calls, recursively. Converting the source of one takes a tenth of a
second, so the engine's own functions would delay the first step by more than a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from official_trainer.lazy import tf

Function = TypeVar("Function", bound=Callable[..., Any])


def do_not_convert(function: Function) -> Function:
    """Marks a function of the engine: AutoGraph converts neither it nor the functions that it calls without `convert`.

    A method that overrides it is a user's, and is converted.
    """
    function.autograph_info__ = None  # type: ignore[attr-defined]  # TensorFlow's own mark on converted functions
    return function


def convert(function: Function) -> Function:
    """Returns a user's function as AutoGraph converts it, if AutoGraph is active in the caller; else the function."""
    if tf.executing_eagerly():  # then AutoGraph would convert it all the same, and a debugger would show other lines
        return function
    autograph = tf.__internal__.autograph
    converted: Function = autograph.tf_convert(function, autograph.control_status_ctx())
    return converted
