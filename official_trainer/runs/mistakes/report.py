"""What is said of an error in the user's code: the line, the phase, the batch, what it probably means; its exit code.

Owns: finding the user's lines, in the text of the error or in its traceback, the message, the file with the traceback.
Does not own: noting what was being done (`user_code.py`), the meanings (`meanings.py`), printing (`cli/dispatch.py`),
errors that are meant for users as they are (`UserError`). Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import os
import re
import tempfile
import textwrap
import traceback
from collections.abc import Iterator, Mapping, Sequence
from traceback import FrameSummary
from typing import Any

from official_trainer import files, lazy
from official_trainer.config.errors import line_of_class
from official_trainer.errors import ExitCode, UserError, describe_error, first_line, text_of, without_arrays
from official_trainer.inputs.reader import ExampleError
from official_trainer.runs.mistakes.meanings import meaning_of, swap_of
from official_trainer.user_code import definition_of, is_ours, is_users, note, notes_on

_logger = logging.getLogger(__name__)

TRACEBACK_FILE = "traceback.txt"
"""In a run directory: the traceback of the error that ended its last process."""

_WIDTH = 108  # of a line of the message, without its indentation
_MOST_CALLERS = 2
_MOST_COPIES = 20

_COPIED = re.compile(r"^in user code:|Exception encountered when calling|Call arguments received by", re.MULTILINE)
"""In the text of an error that AutoGraph or Keras has made of another."""
_IN_TEXT = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_RAISED_IN_PYTHON = "Traceback (most recent call last)"
"""In the text of an error of a graph that comes from Python which the graph called, in a thread of its own."""
_DEFINED_AT = "was defined here:"
"""Behind it are the lines that computed the tensor that an error of TensorFlow is about."""
_OF_LOOP = "Stack trace for op definition"
_READS = re.compile(r"(\{\{node |\[\[|Op:)[\w/]*(IteratorGetNext|MakeIterator)\w*(\}\}|\])")
"""In the text of an error of a graph: the operation that reads the data, or begins to."""
_OF_EXAMPLE = f"{ExampleError.__module__}.{ExampleError.__qualname__}: "
"""In the text of an error of a graph that has read an example outside of the run, such as by `adapt` of a layer."""
_CONVERTED = re.compile(r"outer_factory\.<locals>\.inner_factory\.<locals>\.tf__")
"""In front of the name of a function that AutoGraph has converted."""

_TASK = os.path.join("tasks", "task.py")
_MADE_BY = {
    "process_metrics": "build_metrics",
    "total_loss": "build_losses",
    "update": "build_losses",
    "split_inputs": "build_inputs",
    "train_step": "build_model",
    "validation_step": "build_model",
    "inference_step": "build_model",
}
"""Methods that this package defines for a Task, each with the one in which the user decided what failed there."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What is said of an error in the user's code.

    Attributes:
      message: at most 15 lines.
      exit_code: of the process.
    """

    message: str
    exit_code: ExitCode


def report_of(error: BaseException, directory: str = "") -> Report | None:
    """Returns the report of an error in the user's code; None for any other error.

    Errors that are meant for users as they are have none, nor has one that no line of the user's led to.

    Args:
      error: what was raised.
      directory: of the run, where the traceback goes; empty for a temporary file, unless it was written before.
    """
    try:
        return _report(error, directory)
    except Exception:  # a value of the user's that cannot even be shown; the error itself has to reach the record
        _logger.debug("no report of %s", type(error).__name__, exc_info=True)
        return None


def as_recorded(error: BaseException, directory: str) -> tuple[ExitCode, str]:
    """Returns the exit code of a process that an error ends, and the message for its record in `directory`."""
    if (report := report_of(error, directory)) is not None:
        return report.exit_code, report.message
    return error.exit_code if isinstance(error, UserError) else ExitCode.FAILED, describe_error(error)


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """For a call from Python: an error in the user's code goes on as it is, and Python shows the report below it."""
    try:
        yield
    except Exception as error:
        if (notes := notes_on(error)) and not isinstance(_first_raised(error), UserError):
            message = _of_users_code(error, notes).message
            if message not in getattr(error, "__notes__", ()):
                error.add_note(message)
        raise


def _report(error: BaseException, directory: str) -> Report | None:
    if not isinstance(error, Exception):  # Ctrl-C, wherever it came
        return None
    if (bug := getattr(error, "bug", None)) is not None:
        return report_of(bug, directory)
    first, notes = _first_raised(error), notes_on(error)
    if isinstance(first, UserError) and first is not error:  # AutoGraph has made another error of it
        return Report(str(first), first.exit_code)
    lines = _users_lines(error, notes)
    if isinstance(error, UserError):
        indented = str(error).replace("\n", "\n  ")
        message = "\n".join([*_location(lines, notes), f"  {indented}"])
        return Report(message, error.exit_code) if lines and error.names_line else None
    if not lines and not (_is_of_graph(error) and notes):
        return None
    report = _of_users_code(error, notes)
    path = _relative(_traceback_file(error, notes, directory))
    return Report(f"{report.message}\n  traceback: {path} (--traceback prints it)", report.exit_code)


def _of_users_code(error: BaseException, notes: Mapping[str, Any]) -> Report:
    """Returns the report of an error without the line of its file."""
    first, task = _first_raised(error), notes.get("task")
    meaning, is_data = meaning_of(first)
    meaning = swap_of(first, notes.get("batch", "")) or meaning
    lines = [*_location(_users_lines(error, notes), notes), f"  {_cut(_in_one_line(first), 2)}"]
    if meaning:
        lines.append(f"  {_cut(meaning, 2)}")
    defined = _users(_in_text(text_of(first).partition(_DEFINED_AT)[2]), type(task).__module__)
    lines += [f"  computed at {_shown(frame)}: {_cut(frame.line or '')}" for frame in defined[-1:]]
    if notes.get("batch"):
        lines.append(f"  batch: {_cut(notes['batch'])}")
    text = text_of(error)
    is_data = is_data or _OF_EXAMPLE in text or (_is_read(error) and _RAISED_IN_PYTHON not in text)
    return Report("\n".join(lines), ExitCode.DATA if is_data else ExitCode.FAILED)


def _in_one_line(error: BaseException) -> str:
    """Returns class and message of an error, without the names of nodes."""
    text, name = _CONVERTED.sub("", first_line(error)), type(error).__name__
    if _OF_EXAMPLE in text:
        return text.partition(_OF_EXAMPLE)[2]
    return text if text.startswith(f"{name}: ") else f"{name}: {text}" if text else name


# Where it was.


def _first_raised(error: BaseException) -> BaseException:
    """Returns the error of which AutoGraph and Keras have made others, with more text."""
    for _ in range(_MOST_COPIES):
        inner = error.__context__
        text = text_of(error)
        if inner is None or not _COPIED.search(text) or text_of(inner).strip().partition("\n")[0] not in text:
            break
        error = inner
    return error


def _users_lines(error: BaseException, notes: Mapping[str, Any]) -> Sequence[FrameSummary]:
    """Returns the user's lines, the outermost first: where it was decided what failed, or what was called last."""
    if "line" in notes:
        return [FrameSummary(*notes["line"])]
    task = notes.get("task")
    module, stacks = type(task).__module__, list(_stacks(error))
    method = "" if task is None else _made_by(stacks, module)
    line = _line_of(task, method)
    if line is None and (users := next(filter(None, (_users(stack, module) for stack in stacks)), None)):
        return users
    read = error.__cause__ if isinstance(error, UserError) else error
    is_of_data = read is not None and _is_read(read) and "source" not in notes  # else the data is no method's
    method = method or ("build_inputs" if is_of_data else notes.get("method", ""))
    if task is None or not (method or _is_of_graph(error)):
        return []
    line = line or _line_of(task, method) or _line_of_task(task)
    return [] if line is None else [line]


def _stacks(error: BaseException) -> Iterator[Sequence[FrameSummary]]:
    """Yields the frames that the error came through, outermost first: as its text has them, and as Python has."""
    text = text_of(error)
    yield _in_text(text.partition(_RAISED_IN_PYTHON)[2] or text.partition(_DEFINED_AT)[0])
    yield traceback.extract_tb(_first_raised(error).__traceback__)
    yield traceback.extract_tb(error.__traceback__)


def _in_text(text: str) -> list[FrameSummary]:
    return [FrameSummary(file, int(line), name) for file, line, name in _IN_TEXT.findall(text.partition(_OF_LOOP)[0])]


def _users(stack: Sequence[FrameSummary], module: str) -> list[FrameSummary]:
    """Returns the user's frames behind the last of this package that has some behind it.

    Before the first of this package is the script that called it, or a test. The lines around another, such as an `if`,
    are left out: AutoGraph makes functions of their bodies.
    """
    users: list[FrameSummary] = []
    is_ours_before = False
    stack = [frame for frame in stack if frame.filename != lazy.__file__]  # it stands for the module in the line before
    first = next((number for number, frame in enumerate(stack) if is_ours(frame.filename)), 0)
    for frame in stack[first:]:
        if is_ours(frame.filename):
            is_ours_before = True
        elif is_users(frame.filename, module) and "__autograph_generated_file" not in frame.filename:
            users = [] if is_ours_before else [user for user in users if not _is_around(user, frame)]
            users, is_ours_before = [*users, frame], False
    return users


def _is_around(outer: FrameSummary, inner: FrameSummary) -> bool:
    is_same = (outer.filename, outer.name) == (inner.filename, inner.name)
    return is_same and (outer.lineno == inner.lineno or (outer.line or "").endswith(":"))


def _made_by(stacks: Sequence[Sequence[FrameSummary]], module: str) -> str:
    """Returns the method in which the user decided what failed in a method of ours; empty if it failed in theirs."""
    for frame in (frame for stack in stacks for frame in reversed(stack)):
        if frame.filename.endswith(_TASK) and frame.name in _MADE_BY:
            return _MADE_BY[frame.name]
        if is_users(frame.filename, module):
            break
    return ""


def _line_of(task: Any, method: str) -> FrameSummary | None:
    """Returns the line of a user's method that decides what it returns: its only `return`, or else its `def`."""
    if (defined := definition_of(task, method)) is None:
        return None
    lines = inspect.getsourcelines(inspect.unwrap(getattr(type(task), method)))[0]
    returns = [number for number, line in enumerate(lines) if line.split()[:1] == ["return"]]
    definitions = [number for number, line in enumerate(lines) if line.split()[:1] == ["def"]]
    number = returns[0] if len(returns) == 1 else next(iter(definitions), 0)
    return FrameSummary(defined[0], defined[1] + number, method)


def _line_of_task(task: Any) -> FrameSummary | None:
    """Returns the line at which the class of a task begins; None if it is not the user's, or has no source."""
    line = line_of_class(type(task))
    return None if line is None else FrameSummary(line.name, line.line, type(task).__name__)


def _is_of_graph(error: BaseException) -> bool:
    """Whether an error was raised by an operation of TensorFlow, which is not imported to tell."""
    return any(cls.__name__ == "OpError" for cls in type(error).__mro__)


def _is_read(error: BaseException) -> bool:
    return _is_of_graph(error) and bool(_READS.search(text_of(error)))


# The message.


def _location(lines: Sequence[FrameSummary], notes: Mapping[str, Any]) -> list[str]:
    """Returns what is said of where it was, and meanwhile what was done."""
    phase = f"while {notes['phase']}" if notes.get("phase") else ""
    if not lines:
        return [phase] if phase else []
    *callers, last = lines
    said = [", ".join(filter(None, [_shown(last), phase]))]
    said += [f"    {_cut(last.line)}"] if last.line else []
    return said + [f"  called from {_shown(caller)}" for caller in reversed(callers[-_MOST_CALLERS:])]


def _shown(line: FrameSummary) -> str:
    return f"{_relative(line.filename)}:{line.lineno} in {line.name}"


def _relative(path: str) -> str:
    """Returns a path from the current folder on, if it lies in it."""
    return os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path


def _cut(text: str, most_lines: int = 1) -> str:
    """Returns a text on one line, cut to about so many lines of a screen."""
    return textwrap.shorten(text, _WIDTH * most_lines, placeholder=" …")


def _traceback_file(error: BaseException, notes: Mapping[str, Any], directory: str) -> str:
    """Returns the file with the traceback: in the run directory, or else a temporary one; it is written once."""
    if "traceback" in notes:
        return str(notes["traceback"])
    text = without_arrays("".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace").decode())
    path = ""
    with contextlib.suppress(OSError):
        if directory:
            files.write_text_atomically(files.join(directory, TRACEBACK_FILE), text, durable=False)
            path = files.join(directory, TRACEBACK_FILE)
    if not path:
        descriptor, path = tempfile.mkstemp(prefix="official-trainer-", suffix=".txt")
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    note(error, traceback=path)
    return path
