"""The report of an error in the user's code: at most 15 lines, for terminal and record; the traceback in a file.

Owns: which errors are reported so, the order of the lines and their lengths, the exit code, the file. Does not own:
what the lines are made of (`frames.py`, `shapes.py`, `meanings.py`), printing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import tempfile
import textwrap
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.errors import ExitCode, UserError, describe_error, text_of, without_arrays
from official_trainer.runs.mistakes import meanings, shapes
from official_trainer.runs.mistakes.frames import (
    RAISED_IN_PYTHON,
    Frame,
    class_definition,
    computed_at,
    copies_of,
    definition,
    is_of_graph,
    line_of_operation,
    lists_of_frames,
    python_frames,
    users_frames,
)
from official_trainer.shown import wrapped
from official_trainer.user_code import is_users, notes_on

_logger = logging.getLogger(__name__)

TRACEBACK_FILE = "traceback.txt"
"""In a run directory: the traceback of the error that ended its last process."""

_WIDTH = 112  # of a line of at most 120 characters, behind `error: `
_MOST_CALLERS = 2
_MOST_SHAPES = 4
_REPORT = "_official_trainer_report"
_NOTED = "_official_trainer_noted"

_READS = re.compile(r"(\{\{node |\[\[|Op:)[\w/]*(IteratorGetNext|MakeIterator)\w*(\}\}|\])")
"""In the text of an error of a graph: the operation that reads the data, or begins to."""
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
      lines: of the message, each of which may take two or three lines of the screen.
      exit_code: of the process.
    """

    lines: tuple[str, ...]
    exit_code: ExitCode

    @property
    def message(self) -> str:
        """At most 15 lines of at most 120 characters, behind `error: `."""
        return self.fitted(None)

    def fitted(self, columns: int | None) -> str:
        """Returns the message with lines that end between words where a terminal, or the record, is too narrow."""
        return _fitted(self.lines, columns)


def report_of(error: BaseException, directory: str = "") -> Report | None:
    """Returns the report of an error in the user's code, the same one for each call; None for any other error.

    Errors that are meant for users as they are have none, nor has one that no line of the user's led to.

    Args:
      error: what was raised.
      directory: of the run, where the traceback goes; empty for a temporary file.
    """
    found: Report | None = vars(error).get(_REPORT)
    if found is None:
        try:
            found = _report(error, directory)
        except Exception:  # a value of the user's that cannot even be shown; the error itself has to reach the record
            _logger.debug("no report of %s", type(error).__name__, exc_info=True)
            return None
        vars(error)[_REPORT] = found
    return found


def as_recorded(error: BaseException, directory: str) -> tuple[ExitCode, str]:
    """Returns the exit code of a process that an error ends, and the message for its record in `directory`."""
    if (found := report_of(error, directory)) is not None:
        return found.exit_code, found.message
    return error.exit_code if isinstance(error, UserError) else ExitCode.FAILED, describe_error(error)


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """For a call from Python: an error in the user's code goes on as it is, and Python shows the report below it."""
    try:
        yield
    except Exception as error:
        if not isinstance(copies_of(error)[-1], UserError) and notes_on(error) and not hasattr(error, _NOTED):
            setattr(error, _NOTED, True)
            error.add_note(_fitted(_lines(error, notes_on(error))[0]))
        raise


def _report(error: BaseException, directory: str) -> Report | None:
    if not isinstance(error, Exception):  # Ctrl-C, wherever it came
        return None
    first = copies_of(error)[-1]
    if isinstance(first, UserError) and first is not error:  # AutoGraph has made another error of it
        return Report(tuple(str(first).splitlines()), first.exit_code)
    notes = notes_on(error)
    if isinstance(error, UserError):
        if (bug := getattr(error, "bug", None)) is not None:
            return report_of(bug, directory)
        frames = _frames(error, notes) if error.names_line else []  # which led to an error that is meant for users
        if not frames:
            return None
        place, text = _place(frames, notes), str(error)
        lines = [*place, *_short(text, 6)]
        if error.names_line == "behind":
            lines = [*_short(text, 6, indent=""), f"  {place[0]}", *place[1:]]
        return Report(tuple(lines), error.exit_code)
    if not _frames(error, notes) and not (is_of_graph(error) and notes):
        return None
    lines, code = _lines(error, notes)
    line = f"  traceback: {_near(_write(error, directory))}"
    hint = " (--traceback prints it)"
    lines.append(line + hint if len(line + hint) <= _WIDTH else line)
    return Report(tuple(lines), code)


def _lines(error: BaseException, notes: Mapping[str, Any]) -> tuple[list[str], ExitCode]:
    """Returns the lines of a report, without that of its file, and the exit code."""
    frames, running = _frames(error, notes), python_frames(error)
    computed = filter(None, [computed_at(error, _module_of(notes))])
    meaning = meanings.meaning_of(error, running)
    lines = [
        *_place(frames, notes),
        *_short(meanings.in_one_line(error, running), 2),
        *_short(meaning.text, 2),
        *(_cut(f"  computed at {_shown(each)}: {each.code}") for each in computed),
        *(_cut(f"  {line}") for line in shapes.lines(running, frames, notes)[:_MOST_SHAPES]),
    ]
    is_data = meaning.is_data
    if is_data is None:
        is_data = _is_read(error) and RAISED_IN_PYTHON not in text_of(error)
    return lines, ExitCode.DATA if is_data else ExitCode.FAILED


def _module_of(notes: Mapping[str, Any]) -> str:
    return type(notes["task"]).__module__ if "task" in notes else ""


def _frames(error: BaseException, notes: Mapping[str, Any]) -> list[Frame]:
    """Returns the user's frames, outermost first: where it was decided what failed, or what was called last."""
    task, module = notes.get("task"), _module_of(notes)
    if "line" in notes:
        return [Frame(*notes["line"])]
    if task is None:
        return users_frames(error, module)
    method = _made_by(error, module)
    decided = definition(task, method) if method else None
    if decided is None and (frames := users_frames(error, module)):
        return frames
    read = error.__cause__ if isinstance(error, UserError) else error
    is_read = read is not None and _is_read(read) and "source" not in notes  # else the data is no method's
    if is_read and read is not None and (place := line_of_operation(read, task)) is not None:
        return [place]
    method = method or ("build_inputs" if is_read else notes.get("method", ""))
    if not method and not is_of_graph(error):
        return []
    place = decided or definition(task, method) or class_definition(task)
    return [] if place is None else [place]


def _made_by(error: BaseException, module: str) -> str:
    """Returns the method in which the user decided what failed in a method of ours; empty if it failed in theirs."""
    for frames in lists_of_frames(error):
        for frame in reversed(frames):
            if frame.file.endswith(_TASK) and frame.function in _MADE_BY:
                return _MADE_BY[frame.function]
            if is_users(frame.file, module):
                return ""
    return ""


def _is_read(error: BaseException) -> bool:
    return is_of_graph(error) and bool(_READS.search(text_of(error)))


def _place(frames: Sequence[Frame], notes: Mapping[str, Any]) -> list[str]:
    """Returns the lines that say where it was, and meanwhile what was done."""
    phase = f"while {notes['phase']}" if notes.get("phase") else ""
    if not frames:
        return _short(phase, 2, indent="")
    *callers, last = frames
    lines = [_shown(last)]
    if phase and len(lines[0]) + len(phase) < _WIDTH - 2:
        lines = [f"{lines[0]}, {phase}"]
    elif phase:
        lines = [f"{lines[0]},", _cut(f"  {phase}")]
    lines += [_cut(f"    {last.code}")] if last.code else []
    return lines + [_cut(f"  called from {_shown(each)}") for each in reversed(callers[-_MOST_CALLERS:])]


def _shown(frame: Frame) -> str:
    return f"{_near(frame.file)}:{frame.line} in {frame.function}"


def _near(path: str) -> str:
    """Returns a path from the current folder on, if it lies in it."""
    return os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path


def _short(text: str, most: int, indent: str = "  ") -> list[str]:
    """Returns a text as one line, as long as so many lines of the record; none for an empty text."""
    if not text:
        return []
    lines = textwrap.wrap(text, _WIDTH - len(indent), max_lines=most, placeholder=" …")
    return [indent + " ".join(lines)]


def _fitted(lines: Sequence[str], columns: int | None = None) -> str:
    """Returns lines that end between words; before what has no indentation, what prints it writes `error: `."""
    rest = min(columns or _WIDTH, _WIDTH)
    first = min(columns - len("error: "), _WIDTH) if columns else _WIDTH
    return "\n".join(wrapped(line, rest if line.startswith(" ") else first) for line in lines)


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 2]} …"


def _write(error: BaseException, directory: str) -> str:
    """Writes the traceback into the run directory, or a temporary file, and returns its path."""
    text = without_arrays("".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace").decode())
    if directory:
        with contextlib.suppress(OSError):
            path = files.join(directory, TRACEBACK_FILE)
            files.write_text_atomically(path, text, durable=False)
            return path
    with tempfile.NamedTemporaryFile(
        "w", prefix="official-trainer-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    return file.name
