"""Restarts a command by its exit code, on machines of a scheduler that does not.

Owns: this loop, and the command line that starts it.
Does not own: the scripts around it (`launch/targets/tpu.py`, `launch/targets/vertex.py`), when to give up
(`processes/verdict.py`).

    python -m official_trainer.launch.rerun --max_restarts=N [--finish=FILE] -- COMMAND…

SIGTERM is passed on once, and ends the loop. With `--finish`, `bash FILE finish CODE` runs after any other end.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from official_trainer.processes.verdict import Restarts, may_run_again

_MODULE = ("-m", "official_trainer.launch.rerun")


class Command:
    """The running command, to which a signal to stop is passed on once.

    Attributes:
      stopped: set by that signal.
    """

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._has_passed = False

    def run(self, command: Sequence[str]) -> int:
        """Runs a command; returns its exit code, negative for a signal."""
        self._process = subprocess.Popen(command)
        if self.stopped.is_set():  # between the two lines, or before
            self.stop()
        return self._process.wait()

    def wait(self, seconds: float) -> None:
        """Waits that long, or until the signal comes."""
        self.stopped.wait(seconds)

    def stop(self, *signal_and_frame: object) -> None:
        """Handles SIGTERM and SIGINT."""
        self.stopped.set()
        if self._process is not None and not self._has_passed:
            self._has_passed = True
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()


def run(argv: Sequence[str], max_restarts: int, command: Command) -> int:
    """Runs a command until it is not restarted any more; returns its exit code, or 128 plus the signal that killed it.

    Args:
      argv: its words.
      max_restarts: the most restarts.
      command: runs it, and has its signals.
    """
    restarts = Restarts(limit=max_restarts, patience=max_restarts + 1)
    while True:
        code = command.run(argv)
        shown = code if code >= 0 else 128 - code
        if command.stopped.is_set() or not may_run_again(code):
            return shown
        seconds = restarts.next(None)
        if isinstance(seconds, str):
            return shown
        message = f"ended with exit code {shown}; restart {restarts.count} of {max_restarts} in {seconds:g} s"
        print(message, file=sys.stderr, flush=True)
        command.wait(seconds)
        if command.stopped.is_set():
            return shown


def words(max_restarts: int, *, finish: str | None = None) -> tuple[str, ...]:
    """Returns the words between a Python interpreter and the command that is restarted.

    Args:
      max_restarts: the most restarts.
      finish: a script to run at the end.
    """
    return (*_MODULE, f"--max_restarts={max_restarts}", *([f"--finish={finish}"] if finish else []), "--")


def main(argv: Sequence[str]) -> int:
    """Runs the command after `--`, with the flags before it."""
    place = argv.index("--")
    flags = dict(word.removeprefix("--").split("=", 1) for word in argv[:place])
    command = Command()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, command.stop)
    code = run(argv[place + 1 :], int(flags["max_restarts"]), command)
    if "finish" in flags and not command.stopped.is_set():
        subprocess.run(["bash", flags["finish"], "finish", str(code)], check=False)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
