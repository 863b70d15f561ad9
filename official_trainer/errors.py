"""The exit-code contract, and the base of every error that a user is meant to read.

Owns: what a process's exit code means, `UserError`, which the command line prints without a traceback, and how many
names a message shows.
Does not own: the errors themselves. Each is defined where it is raised and subclasses the nearest builtin.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

_SHOWN = 3


class ExitCode(enum.IntEnum):
    """What the exit code of a run tells a scheduler: 75 and 143 mean "start me again", 2 to 5 mean "do not"."""

    DONE = 0
    FAILED = 1
    CONFIG = 2
    DATA = 3
    NON_FINITE = 4
    STALLED = 5
    RETRY = 75
    PREEMPTED = 143


START_AGAIN = (ExitCode.RETRY, ExitCode.PREEMPTED)
"""What a launcher starts again, so often as it is told to; 0 is the end, and all others are for somebody to look at."""


class UserError(Exception):
    """An error the user can act on: printed as its message alone, and ends the process with `exit_code`."""

    exit_code: ExitCode = ExitCode.FAILED


def said_by(error: BaseException) -> str:
    """Returns what an error says: its message alone if it is meant for users, else with its class."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


def first_few(names: Sequence[str]) -> str:
    """Returns the first names of what may be many, and how many more there are."""
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
