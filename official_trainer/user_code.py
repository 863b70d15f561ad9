"""The user's code: which files hold it, and what a run was doing when it failed, noted on the error as it passes.

Owns: `is_users`, and the notes on an error. Does not own: what is said of them (`runs/mistakes/`), or the errors.

The few places that call methods of a Task, actions or data of a user know what the error itself does not: the phase,
the step, the batch. Each is a `with during(…)`, and an error that leaves it carries its notes to the place that reports
it.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sysconfig
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

INSTALLED = ("site-packages", "dist-packages")
"""Names of the folders of installed packages."""

_NOTES = "_official_trainer_notes"
_MOST_ERRORS = 20  # in a chain of causes
_FUNCTIONS = (types.FunctionType, types.MethodType)


class during:
    """For a `with` block that calls a user's code: notes on an error what was being done. Inner notes are kept.

    Not a generator: AutoGraph and `StopIteration` pass through the block as if it were not there.

    Example:
      >>> from official_trainer.user_code import during, notes_on
      >>> try:
      ...     with during("training at step 3", batch=lambda: "float32[8,32]"):
      ...         1 / 0
      ... except ZeroDivisionError as error:
      ...     print(notes_on(error))
      {'phase': 'training at step 3', 'batch': 'float32[8,32]'}
    """

    def __init__(self, phase: str | Callable[[], str] = "", **notes: Any) -> None:
        """Takes what to note; functions are called when there is an error.

        Args:
          phase: what is done, behind "while": `training at step 3`.
          **notes: `task`, the object whose methods are called; `method`, the one that is called; `batch`, its shapes
            and dtypes as text; `source`, the name of data in hand; `line`, file, number and function of the user's.
        """
        self._notes: dict[str, Any] = {"phase": phase, **notes}

    def __enter__(self) -> None:
        """Begins."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        """Notes what was being done, if there is an error."""
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            note(error, **self._notes)


def note(error: BaseException, **notes: Any) -> None:
    """Notes on an error what was being done, beside what was noted before; functions are called for theirs."""
    before = vars(error).setdefault(_NOTES, {})  # not by `setattr`, which an error that is a frozen dataclass refuses
    for name, value in notes.items():
        with contextlib.suppress(Exception):  # a note must not take the place of the error
            if name not in before and (value := value() if isinstance(value, _FUNCTIONS) else value):
                before[name] = value


def notes_on(error: BaseException) -> dict[str, Any]:
    """Returns what was noted on an error and on those that it was raised from; the innermost notes count.

    AutoGraph and Keras raise copies of an error, so that an error and its notes may be on different objects.
    """
    notes: dict[str, Any] = {}
    current: BaseException | None = error
    for _ in range(_MOST_ERRORS):
        if current is None:
            break
        notes |= getattr(current, _NOTES, {})
        current = current.__cause__ or current.__context__
    return notes


def is_users(path: str, module: str = "") -> bool:
    """Returns whether a path is the user's: not Python's, not ours, and of what is installed only the module's package.

    Args:
      path: absolute.
      module: of the user's; empty for none that is installed.
    """
    if any(f"{os.sep}{name}{os.sep}" in path for name in INSTALLED):
        package = module.partition(".")[0]
        return bool(package) and (f"{os.sep}{package}{os.sep}" in path or path.endswith(f"{os.sep}{package}.py"))
    others = (sysconfig.get_paths()["stdlib"], str(Path(__file__).parent))
    return not path.startswith(("<", *(folder + os.sep for folder in others)))


def definition_of(thing: Any, method: str) -> tuple[str, int, str] | None:
    """Returns file, line and name of a method of the user's; None if it is inherited from this or another package."""
    function: Any = getattr(type(thing), method, None)
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not is_users(code.co_filename, type(thing).__module__):
        return None
    return code.co_filename, code.co_firstlineno, method


def is_defined_by_user(thing: Any, method: str) -> bool:
    """Returns whether a method of an object is one of the user's, and not inherited from this or another package."""
    return definition_of(thing, method) is not None


def line_of_code(code: types.CodeType) -> str:
    """Returns the place of a function, as seen from the current folder: `experiments/x.py:12`."""
    path = code.co_filename
    inside = path.startswith(os.getcwd() + os.sep)
    return f"{os.path.relpath(path) if inside else path}:{code.co_firstlineno}"


def is_ours(path: str) -> bool:
    """Returns whether a path is in this package."""
    return path.startswith(str(Path(__file__).parent) + os.sep)
