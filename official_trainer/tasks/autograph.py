"""What AutoGraph rewrites while a step is traced: the functions of users, and none of the engine's.

Owns: both marks. Does not own: how functions are traced (`engine/windows.py`).

AutoGraph rewrites each function that a traced one calls, and each that those call. Finding, parsing and rewriting the
source of one takes a tenth of a second, so the engine's own would delay the first step by more than a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from official_trainer.lazy import tf

Function = TypeVar("Function", bound=Callable[..., Any])


def do_not_convert(function: Function) -> Function:
    """Marks a function of the engine: AutoGraph calls it as it is, and so all that it calls but for `convert`.

    A method that overrides it is a user's, and convert.
    """
    function.autograph_info__ = None  # type: ignore[attr-defined]  # TensorFlow's own mark on what it has convert
    return function


def convert(function: Function) -> Function:
    """Returns a user's function as AutoGraph calls it, if it is at work where this is called; else as it is."""
    autograph = tf.__internal__.autograph
    converted: Function = autograph.tf_convert(function, autograph.control_status_ctx())
    return converted
