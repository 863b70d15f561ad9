"""Starts a command again, on machines of an engine that starts nothing again by exit code.

Owns: that loop and the words that call it. Does not own: what is rendered around it (`launch/targets/tpu_startup.py`,
`launch/targets/vertex.py`), when there is no more (`local/restarts.py`).

    python -m official_trainer.launch.rerun --max_restarts=N [--finish=FILE] -- COMMAND…

SIGTERM is passed on once and is the end. With `--finish`, `bash FILE finish CODE` runs after any other end.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from official_trainer.launch.verdict import Restarts, may_run_again

_MODULE = ("-m", "official_trainer.launch.rerun")


class Told:
    """Whether this process was told to stop; what it has started hears of that once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._has_passed = False

    def __bool__(self) -> bool:
        return self._event.is_set()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Takes the signal."""
        del number, frame
        self._event.set()
        self._pass()

    def run(self, command: Sequence[str]) -> int:
        """Runs a command; returns its exit code, negative for a signal."""
        self._process = subprocess.Popen(command)
        if self:  # between the two lines, or before
            self._pass()
        return self._process.wait()

    def wait(self, seconds: float) -> None:
        """Waits so long, or until the signal comes."""
        self._event.wait(seconds)

    def _pass(self) -> None:
        if self._process is not None and not self._has_passed:
            self._has_passed = True
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()


def run(command: Sequence[str], max_restarts: int, told: Told) -> int:
    """Runs a command until it has ended for good; returns its exit code, 128 and the signal if one has killed it.

    Args:
      command: its words.
      max_restarts: how often it is started again.
      told: whether to stop.
    """
    restarts = Restarts(limit=max_restarts, patience=max_restarts + 1)
    while True:
        code = told.run(command)
        shown = code if code >= 0 else 128 - code
        if told or not may_run_again(code):
            return shown
        seconds = restarts.next(None)
        if isinstance(seconds, str):
            return shown
        said = f"ended with exit code {shown}; restart {restarts.count} of {max_restarts} in {seconds:g} s"
        print(said, file=sys.stderr, flush=True)
        told.wait(seconds)
        if told:
            return shown


def words(max_restarts: int, *, finish: str | None = None) -> tuple[str, ...]:
    """Returns the words between an interpreter and the command that it is to start.

    Args:
      max_restarts: how often.
      finish: a script for the end.
    """
    return (*_MODULE, f"--max_restarts={max_restarts}", *([f"--finish={finish}"] if finish else []), "--")


def main(argv: Sequence[str]) -> int:
    """Does what this module is for."""
    place = argv.index("--")
    flags = dict(word.removeprefix("--").split("=", 1) for word in argv[:place])
    told = Told()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told.handle)
    code = run(argv[place + 1 :], int(flags["max_restarts"]), told)
    if "finish" in flags and not told:
        subprocess.run(["bash", flags["finish"], "finish", str(code)], check=False)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
