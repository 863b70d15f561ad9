"""The lines of the user's code that an error came through, behind what AutoGraph, Keras and graphs make of it.

Owns: finding the error that was raised first, and the user's frames, in its traceback, in AutoGraph's record of it, or
in the text of an error of a graph. Does not own: which files are the user's (`user_code.py`). Imports no TensorFlow.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from traceback import FrameSummary
from typing import Any

from official_trainer.config.errors import line_of_class
from official_trainer.errors import text_of
from official_trainer.user_code import definition_of, is_ours, is_users

_IN_TEXT = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
RAISED_IN_PYTHON = "Traceback (most recent call last)"
"""In the text of an error of a graph that comes from Python which the graph called."""
_OF_LOOP = "Stack trace for op definition"
_MOST_COPIES = 20


def copies_of(error: BaseException) -> list[BaseException]:
    """Returns an error and what it is a copy of, in AutoGraph or Keras, which add text; the last was raised first.

    An error that a user raised while another was handled is no copy.
    """
    copies = [error]
    while (inner := copies[-1].__context__) is not None and len(copies) < _MOST_COPIES:
        pair = copies[-1], inner
        is_keras, was_keras = (getattr(copy, "_keras_call_info_injected", False) for copy in pair)
        cause, former = (getattr(getattr(copy, "ag_error_metadata", None), "cause_message", None) for copy in pair)
        if not (is_keras and not was_keras) and (cause is None or cause != former):
            break
        copies.append(inner)
    return copies


def is_of_graph(error: BaseException) -> bool:
    """Whether an error was raised by an operation of TensorFlow, which is not imported to tell."""
    return any(cls.__name__ == "OpError" for cls in type(error).__mro__)


def users_frames(error: BaseException, module: str = "") -> list[FrameSummary]:
    """Returns the user's frames that the error came through last, outermost first; empty if there are none.

    Args:
      error: what was raised.
      module: of the user's, which may be in an installed package.
    """
    for stack in stacks_of(error):
        users: list[FrameSummary] = []
        was_ours = False
        for frame in stack:
            if is_ours(frame.filename):
                was_ours = True
            elif is_users(frame.filename, module) and "__autograph_generated_file" not in frame.filename:
                users = [frame] if was_ours else [*(user for user in users if not _is_around(user, frame)), frame]
                was_ours = False
        if users:
            return users
    return []


def stacks_of(error: BaseException) -> Iterator[Sequence[FrameSummary]]:
    """Yields what is known of where the error was raised, outermost frames first; the best first."""
    text, copies = text_of(error), copies_of(error)
    if RAISED_IN_PYTHON in text:  # in a process or thread of its own, as by `tf.numpy_function`
        yield _in_text(text.partition(RAISED_IN_PYTHON)[2])
    if len(copies) == 1 and is_of_graph(error):
        yield _inside_ours(_in_text(text))  # where the operation of a graph was defined
    converted: list[FrameSummary] = []
    for copy in copies:  # one of Keras's has only the lines of its callers
        stack = getattr(getattr(copy, "ag_error_metadata", None), "translated_stack", ())
        frames = (FrameSummary(frame.filename, frame.lineno, frame.function_name) for frame in reversed(stack))
        converted += [frame for frame in frames if frame not in converted]
    yield converted
    for copy in reversed(copies):
        yield _inside_ours(traceback.extract_tb(copy.__traceback__))


def _is_around(outer: FrameSummary, inner: FrameSummary) -> bool:
    """Whether a line is the `if` or the loop around another: AutoGraph makes functions of their bodies."""
    is_same = (outer.filename, outer.name) == (inner.filename, inner.name)
    is_block = (outer.line or "").startswith(("if ", "elif ", "else:", "for ", "while ", "with "))
    return is_same and (outer.lineno == inner.lineno or is_block)


def computed_at(error: BaseException, module: str = "") -> FrameSummary | None:
    """Returns the user's line that computed the tensor that an error of TensorFlow is about, if its text has that."""
    stack = _inside_ours(_in_text(text_of(copies_of(error)[-1]).partition("was defined here:")[2]))
    return next((frame for frame in reversed(stack) if is_users(frame.filename, module)), None)


def _in_text(text: str) -> list[FrameSummary]:
    return [FrameSummary(file, int(line), name) for file, line, name in _IN_TEXT.findall(text.partition(_OF_LOOP)[0])]


def _inside_ours(frames: Sequence[FrameSummary]) -> Sequence[FrameSummary]:
    """Returns the frames behind the first of this package: before it is the script that called it, or a test."""
    first = next((number for number, frame in enumerate(frames) if is_ours(frame.filename)), len(frames))
    return frames[first:]


def line_of(task: Any, method: str) -> FrameSummary | None:
    """Returns the line of a method of the user's that decides what it returns: its only `return`, or else its `def`.

    Returns None if the method is inherited from others' classes, or there is none.
    """
    defined = definition_of(task, method)
    if defined is None:
        return None
    try:
        lines, first = inspect.getsourcelines(inspect.unwrap(getattr(type(task), method)))
        (definition,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, SyntaxError, ValueError):
        return FrameSummary(*defined)
    nodes = list(ast.walk(definition))
    inner = {id(node) for function in nodes[1:] if isinstance(function, ast.FunctionDef) for node in ast.walk(function)}
    values = [node for node in nodes if isinstance(node, ast.Return) and node.value is not None]
    returns = [node for node in values if id(node) not in inner]
    line = (returns[0] if len(returns) == 1 else definition).lineno
    return FrameSummary(defined[0], first + line - 1, method)


def line_of_task(task: Any) -> FrameSummary | None:
    """Returns the line at which the class of a task begins; None if it is not the user's, or has no source."""
    line = line_of_class(type(task))
    return None if line is None else FrameSummary(line.name, line.line, type(task).__name__)
