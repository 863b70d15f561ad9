"""The report of an error in the user's code: at most 15 lines, for terminal and record; the traceback in a file.

Owns: which errors are reported so, which line of the user's counts, the order of the lines and their lengths, the exit
code, the file. Does not own: finding lines (`frames.py`), what messages mean (`meanings.py`), printing.
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
from traceback import FrameSummary
from typing import Any

from official_trainer import files
from official_trainer.errors import ExitCode, UserError, describe_error, text_of, without_arrays
from official_trainer.runs.mistakes import frames, meanings
from official_trainer.shown import wrapped
from official_trainer.user_code import is_users, notes_on

_logger = logging.getLogger(__name__)

TRACEBACK_FILE = "traceback.txt"
"""In a run directory: the traceback of the error that ended its last process."""

_WIDTH = 112  # of a line of at most 120 characters, behind `error: `
_MOST_CALLERS = 2
_REPORT, _NOTED = "_official_trainer_report", "_official_trainer_noted"

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
      lines: of the message, each of which may take several lines of the screen.
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
        rest = min(columns or _WIDTH, _WIDTH)
        first = min(columns - len("error: "), _WIDTH) if columns else _WIDTH
        return "\n".join(wrapped(line, rest if line.startswith(" ") else first) for line in self.lines)


def report_of(error: BaseException, directory: str = "") -> Report | None:
    """Returns the report of an error in the user's code, the same one for each call; None for any other error.

    Errors that are meant for users as they are have none, nor has one that no line of the user's led to.

    Args:
      error: what was raised.
      directory: of the run, where the traceback goes; empty for a temporary file.
    """
    report: Report | None = vars(error).get(_REPORT)
    if report is None:
        try:
            report = _report(error, directory)
        except Exception:  # a value of the user's that cannot even be shown; the error itself has to reach the record
            _logger.debug("no report of %s", type(error).__name__, exc_info=True)
            return None
        vars(error)[_REPORT] = report
    return report


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
        if not isinstance(frames.copies_of(error)[-1], UserError) and notes_on(error) and not hasattr(error, _NOTED):
            setattr(error, _NOTED, True)
            error.add_note(_of_users_code(error, notes_on(error)).message)
        raise


def _report(error: BaseException, directory: str) -> Report | None:
    if not isinstance(error, Exception):  # Ctrl-C, wherever it came
        return None
    first, notes = frames.copies_of(error)[-1], notes_on(error)
    if isinstance(first, UserError) and first is not error:  # AutoGraph has made another error of it
        return Report(tuple(str(first).splitlines()), first.exit_code)
    if (bug := getattr(error, "bug", None)) is not None:
        return report_of(bug, directory)
    lines = _users_lines(error, notes)
    if isinstance(error, UserError):
        if not lines or not error.names_line:
            return None
        location, message = _place(lines, notes), _paragraph(str(error), 6)
        if error.names_line == "behind":
            return Report((message.lstrip(), f"  {location[0]}", *location[1:]), error.exit_code)
        return Report((*location, message), error.exit_code)
    if not lines and not (frames.is_of_graph(error) and notes):
        return None
    report = _of_users_code(error, notes)
    path = f"  traceback: {_relative(_write(error, directory))}"
    hint = " (--traceback prints it)"
    return Report((*report.lines, path + hint if len(path + hint) <= _WIDTH else path), report.exit_code)


def _of_users_code(error: BaseException, notes: Mapping[str, Any]) -> Report:
    """Returns the report of an error without the line of its file."""
    meaning = meanings.meaning_of(error)
    lines = [*_place(_users_lines(error, notes), notes), _paragraph(meanings.in_one_line(error), 2)]
    if meaning.text:
        lines.append(_paragraph(meaning.text, 2))
    if (computed := frames.computed_at(error, type(notes.get("task")).__module__)) is not None:
        lines.append(_paragraph(f"computed at {_shown(computed)}: {computed.line}", 1))
    if notes.get("batch"):
        lines.append(_paragraph(f"batch: {notes['batch']}", 1))
    is_data = meaning.is_data
    if is_data is None:
        is_data = _is_read(error) and frames.RAISED_IN_PYTHON not in text_of(error)
    return Report(tuple(lines), ExitCode.DATA if is_data else ExitCode.FAILED)


def _users_lines(error: BaseException, notes: Mapping[str, Any]) -> list[FrameSummary]:
    """Returns the user's lines, the outermost first: where it was decided what failed, or what was called last."""
    task = notes.get("task")
    module = "" if task is None else type(task).__module__
    if "line" in notes:
        return [FrameSummary(*notes["line"])]
    method = "" if task is None else _made_by(error, module)
    line = frames.line_of(task, method) if method else None
    if line is None and (users := frames.users_frames(error, module)):
        return users
    read = error.__cause__ if isinstance(error, UserError) else error
    is_of_data = read is not None and _is_read(read) and "source" not in notes  # else the data is no method's
    method = method or ("build_inputs" if is_of_data else notes.get("method", ""))
    if task is None or not (method or frames.is_of_graph(error)):
        return []
    line = line or frames.line_of(task, method) or frames.line_of_task(task)
    return [] if line is None else [line]


def _made_by(error: BaseException, module: str) -> str:
    """Returns the method in which the user decided what failed in a method of ours; empty if it failed in theirs."""
    for stack in frames.stacks_of(error):
        for frame in reversed(stack):
            if frame.filename.endswith(_TASK) and frame.name in _MADE_BY:
                return _MADE_BY[frame.name]
            if is_users(frame.filename, module):
                return ""
    return ""


def _is_read(error: BaseException) -> bool:
    return frames.is_of_graph(error) and bool(_READS.search(text_of(error)))


def _place(lines: Sequence[FrameSummary], notes: Mapping[str, Any]) -> list[str]:
    """Returns what is said of where it was, and meanwhile what was done."""
    phase = f"while {notes['phase']}" if notes.get("phase") else ""
    if not lines:
        return [phase] if phase else []
    *callers, last = lines
    said = [", ".join(filter(None, [_shown(last), phase]))]
    said += [_paragraph(f"  {last.line}", 1)] if last.line else []
    return said + [_paragraph(f"called from {_shown(caller)}", 1) for caller in reversed(callers[-_MOST_CALLERS:])]


def _shown(line: FrameSummary) -> str:
    return f"{_relative(line.filename)}:{line.lineno} in {line.name}"


def _relative(path: str) -> str:
    """Returns a path from the current folder on, if it lies in it."""
    return os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path


def _paragraph(text: str, most_lines: int) -> str:
    """Returns a text as one line with an indentation, cut to what fits into so many lines of the record."""
    begin = "  " + " " * (len(text) - len(text.lstrip()))
    return begin + " ".join(textwrap.wrap(text, _WIDTH - len(begin), max_lines=most_lines, placeholder=" …")).lstrip()


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
