"""Control over tracing: AutoGraph converts the functions of users, and none of the engine's; each is counted by itself.

Owns: what is done to a function before it is traced. Does not own: how functions are traced (`engine/windows.py`).

AutoGraph converts each function that a traced one calls, recursively. Converting the source of one takes a tenth of a
second, so the engine's own functions would delay the first step by more than a second. What `tf.function` gets is left
as it is (`engine_function`), and with it all that the engine calls, but for users' methods, by `convert`. A mark is on
what users' methods call in turn, and on what a strategy calls, which both convert it.
"""

from __future__ import annotations

import functools
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


def engine_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of the engine for `tf.function`: not converted, and its traces are counted by themselves.

    TensorFlow counts by the code of a function, and warns of five traces in a few calls. The first traces of five
    trainers, which share their code, would count as one function that is traced again and again.
    """
    alone = functools.partial(function)
    alone.__name__ = function.__name__  # type: ignore[attr-defined]  # what profiles and graphs call it
    return do_not_convert(alone)
