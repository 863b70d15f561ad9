"""When the command of this process began.

Owns: reading it, from the system or from `BEGAN`. Does not own: what the time since then was spent on
(`runs/health/time_account.py`).
"""

from __future__ import annotations

import os
import time

BEGAN = "OFFICIAL_TRAINER_BEGAN"
"""Our own variable: the id of a process that was given its command later than it started, or by another process, and
when that command began, in seconds of `time.monotonic`."""


def is_given() -> bool:
    """Returns whether this process was given its command by another one, which says when it began."""
    return os.environ.get(BEGAN, "").partition(" ")[0] == str(os.getpid())


def process_start_seconds(pid: int | None = None) -> float | None:
    """Returns when a process, or its command, began, on the scale of `time.monotonic`; None if that is unknown.

    Args:
      pid: its id; None for this process.
    """
    if pid is None and is_given():  # else the variable was meant for the parent of this process
        return float(os.environ[BEGAN].partition(" ")[2])
    try:
        with open(f"/proc/{pid or 'self'}/stat", encoding="utf-8") as file:
            of_process = file.read().rpartition(")")[2].split()  # the name before it may contain spaces
        ticks = int(of_process[19])  # `man proc_pid_stat`: field 22, where 3 is the first after the name
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return time.monotonic() - max(0.0, age)
