"""The lines of the user's code that an error came through, behind what AutoGraph, Keras and graphs make of it.

Owns: finding the error that was raised first, and the user's frames, in its traceback, in AutoGraph's record of it, or
in the text of an error of a graph. Does not own: which files are the user's (`user_code.py`). Imports no TensorFlow.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import linecache
import os
import re
import traceback
import types
from collections.abc import Iterator, Sequence
from typing import Any

from official_trainer.errors import text_of
from official_trainer.user_code import is_ours, is_users

_IN_TEXT = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
RAISED_IN_PYTHON = "Traceback (most recent call last)"
"""In the text of an error of a graph that comes from Python which the graph called."""

_NODE = re.compile(r"\{\{node ([\w./-]+)\}\}")
_OF_LOOP = "Stack trace for op definition"
_OF_TENSOR = "was defined here:"
_MOST_COPIES = 20
_HOLDING_VALUES = os.path.join("tasks", "task.py"), os.path.join("program", "trainer.py")
"""Modules of this package whose steps a user inherits."""


@dataclasses.dataclass(frozen=True)
class Frame:
    """A line of code that was running.

    Attributes:
      file: absolute path.
      line: number, from 1.
      function: its name, without that of its class.
    """

    file: str
    line: int
    function: str

    @property
    def code(self) -> str:
        """The text of the line; empty if the file is not there."""
        return linecache.getline(self.file, self.line).strip()


def copies_of(error: BaseException) -> list[BaseException]:
    """Returns an error and what it is a copy of, in AutoGraph or Keras, which add text; the last was raised first.

    An error that a user raised while another was handled is no copy.
    """
    found = [error]
    while (inner := found[-1].__context__) is not None and len(found) < _MOST_COPIES:
        pair = found[-1], inner
        is_keras, was_keras = (getattr(each, "_keras_call_info_injected", False) for each in pair)
        cause, former = (getattr(getattr(each, "ag_error_metadata", None), "cause_message", None) for each in pair)
        if not (is_keras and not was_keras) and (cause is None or cause != former):
            break
        found.append(inner)
    return found


def is_of_graph(error: BaseException) -> bool:
    """Whether an error was raised by an operation of TensorFlow, which is not imported to tell."""
    return any(cls.__name__ == "OpError" for cls in type(error).__mro__)


def users_frames(error: BaseException, module: str = "") -> list[Frame]:
    """Returns the user's frames that the error came through last, outermost first; empty if there are none.

    Args:
      error: what was raised.
      module: of the user's, which may be in an installed package.
    """
    for frames in lists_of_frames(error):
        found: list[Frame] = []
        was_ours = False
        for frame in frames:
            if is_ours(frame.file):
                was_ours = True
            elif is_users(frame.file, module) and "__autograph_generated_file" not in frame.file:
                found = [frame] if was_ours else [*(each for each in found if not _holds(each, frame)), frame]
                was_ours = False
        if found:
            return found
    return []


def lists_of_frames(error: BaseException) -> Iterator[Sequence[Frame]]:
    """Yields what is known of where the error was raised, outermost frames first; the best first."""
    text = text_of(error)
    if RAISED_IN_PYTHON in text:  # in a process or thread of its own, as by `tf.numpy_function`
        yield list(_in_text(text.partition(RAISED_IN_PYTHON)[2]))
    copies = copies_of(error)
    if len(copies) == 1 and is_of_graph(error):
        yield _inside_ours(list(_in_text(text)))  # where the operation of a graph was defined
    converted: dict[Frame, None] = {}  # in their order; a copy of Keras's has only those of its callers
    for copy in copies:
        stack = getattr(getattr(copy, "ag_error_metadata", None), "translated_stack", ())
        inside = (Frame(each.filename, each.lineno, each.function_name) for each in reversed(stack))
        converted |= dict.fromkeys(inside)
    yield list(converted)
    for copy in reversed(copies):
        stack = traceback.extract_tb(copy.__traceback__)
        yield _inside_ours([Frame(each.filename, each.lineno or 1, each.name) for each in stack])


def _in_text(text: str) -> Iterator[Frame]:
    """Yields the frames in a text; XLA leaves out the folder that all have in common, and then adds those of a loop."""
    found = _IN_TEXT.findall(text.partition(_OF_LOOP)[0])
    folder = next(filter(None, (_left_out(file) for file, _, _ in found)), "")
    for file, line, function in found:
        yield Frame(file if os.path.isabs(file) else folder + file, int(line), function)


def _left_out(file: str) -> str:
    """Returns the folder in front of the relative path of a file of this package; empty for any other path."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    inside = file.partition(f"{os.path.basename(package)}{os.sep}")[2]
    whole = os.path.join(package, inside)
    is_relative = bool(inside) and not os.path.isabs(file) and whole.endswith(os.sep + file)
    return whole.removesuffix(file) if is_relative else ""


def computed_at(error: BaseException, module: str = "") -> Frame | None:
    """Returns the user's line that computed the tensor that an error of TensorFlow is about, if its text has that."""
    trace = text_of(copies_of(error)[-1]).partition(_OF_TENSOR)[2]
    users = [frame for frame in _inside_ours(list(_in_text(trace))) if is_users(frame.file, module)]
    return users[-1] if users else None


def _inside_ours(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Returns the frames behind the first of this package: before it is the script that called it, or a test."""
    first = next((number for number, frame in enumerate(frames) if is_ours(frame.file)), len(frames))
    return frames[first:]


def _holds(outer: Frame, inner: Frame) -> bool:
    """Whether a frame is the `if` or the loop around a line: AutoGraph makes functions of their bodies."""
    is_same = (outer.file, outer.function) == (inner.file, inner.function)
    return is_same and (outer == inner or outer.code.startswith(("if ", "elif ", "else:", "for ", "while ", "with ")))


def python_frames(error: BaseException) -> list[types.FrameType]:
    """Returns the running frames of the error and its copies that hold values, outermost first.

    Only those of the user and of the methods that a Task inherits: what Keras calls `y_pred` is something else.
    """
    found = []
    for copy in copies_of(error):
        for frame, _ in traceback.walk_tb(copy.__traceback__):
            file = frame.f_code.co_filename
            if file.endswith(_HOLDING_VALUES) or is_users(file):
                found.append(frame)
    return found


def definition(task: Any, method: str) -> Frame | None:
    """Returns the first line of a method where the user's class defines it; None if it is inherited from others'."""
    for cls in type(task).__mro__:
        if method in vars(cls):
            function = inspect.unwrap(getattr(vars(cls)[method], "__func__", vars(cls)[method]))
            code = getattr(function, "__code__", None)
            if code is not None and is_users(code.co_filename, type(task).__module__):
                lines = range(code.co_firstlineno, code.co_firstlineno + 20)  # behind the decorators
                texts = ((line, linecache.getline(code.co_filename, line).lstrip()) for line in lines)
                found = (line for line, text in texts if text.startswith(("def ", "async def ")))
                return Frame(code.co_filename, next(found, code.co_firstlineno), method)
            return None
    return None


def line_of_operation(error: BaseException, task: Any) -> Frame | None:
    """Returns the line of a task's module that calls the function of TensorFlow which failed, if it is the only one.

    An operation of a pipeline knows no lines, but has the name of its function: `DecodeCSV` is of `tf.io.decode_csv`.
    """
    node = _NODE.search(text_of(error))
    try:
        file = inspect.getsourcefile(type(task)) or ""
        tree = ast.parse("".join(linecache.getlines(file)))
    except (TypeError, SyntaxError):
        return None
    if node is None or not is_users(file, type(task).__module__):
        return None
    parts = [re.sub(r"(v\d+)?(_\d+)?$", "", part.lower()) for part in node[1].split("/")]
    found: dict[int, str] = {}  # the innermost function of each line
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for call in ast.walk(function):
                name = getattr(getattr(call, "func", None), "attr", "").replace("_", "")
                if isinstance(call, ast.Call) and len(name) > 3 and any(part.endswith(name) for part in parts):
                    found[call.lineno] = function.name
    return Frame(file, *next(iter(found.items()))) if len(found) == 1 else None


def class_definition(task: Any) -> Frame | None:
    """Returns the line at which the class of a task begins; None if its source is not there."""
    try:
        lines, number = inspect.getsourcelines(type(task))
    except (OSError, TypeError):
        return None
    file = inspect.getsourcefile(type(task)) or ""
    if not is_users(file, type(task).__module__):
        return None
    before = next((i for i, line in enumerate(lines) if line.lstrip().startswith("class ")), 0)
    return Frame(file, number + before, type(task).__name__)
