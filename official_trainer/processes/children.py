"""The processes of one attempt at a job: started, read and signalled.

Owns: their environment and output, and which of them run. Does not own: forking (`forked.py`), what the end of one
means for the others (`attempt.py`).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

from official_trainer.processes import forked
from official_trainer.processes.forked import ForkedProcess
from official_trainer.processes.job import ALL_ROLES, Member
from official_trainer.processes.output import Lines
from official_trainer.processes.signals import Signals
from official_trainer.processes.verdict import Restarts

_READ_BYTES = 1 << 16


@dataclasses.dataclass(eq=False)
class Process:
    """A process of a job, through its single restarts.

    Attributes:
      member: its role and command.
      lines: takes its output.
      restarts: counts its restarts.
      was_told: whether it was sent a signal to end.
      was_killed: whether that signal was SIGKILL.
    """

    member: Member
    lines: Lines
    restarts: Restarts
    was_told: bool = False
    was_killed: bool = False


class Processes:
    """The processes of one attempt; those that still run at the end of the `with` block are killed.

    Attributes:
      running: those that run.
    """

    def __init__(self, signals: Signals) -> None:
        """Takes the signals of the launcher, which end a wait."""
        self.running: dict[Process, ForkedProcess] = {}
        self._signals = signals
        self._environ = dict(os.environ)  # what this process imports later may set more, and processes are to be alike
        self._started: dict[Process, None] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *raised: object) -> None:
        for run in self.running.values():
            run.kill()
        for process in self._started:
            process.lines.end()

    def start(self, process: Process) -> int:
        """Starts a process, or starts it again; returns its process id.

        Raises:
          ForkServerError: it cannot be forked.
        """
        self._started[process] = None
        # gRPC would use a proxy for loopback too.
        direct = {n: ",".join(filter(None, (self._environ.get(n), "127.0.0.1"))) for n in ("no_proxy", "NO_PROXY")}
        environ = {**self._environ, **direct, **process.member.environ}
        run = self.running[process] = ForkedProcess(process.member.argv, environ=environ)
        return run.pid

    def wait(self, seconds: float | None) -> Iterator[tuple[Process, int]]:
        """Waits for output, the end of a process or a signal, and reads output; yields who has ended, with exit codes.

        Args:
          seconds: the longest wait; None waits as long as it takes.
        """
        outputs = [run.output.fileno() for run in self.running.values() if run.output is not None]
        forked.wait(self.running.values(), self._signals.fileno(), *outputs, seconds=seconds)
        for process, run in list(self.running.items()):
            code = run.exit_code()  # before its output is read, so that after its end all of that is
            while _read(process, run) and code is not None:
                pass
            if code is not None:
                _close(run)
                del self.running[process]
                yield process, code

    def names(self, *roles: str) -> list[str]:
        """Returns the names of the running processes, of these roles or of all."""
        return [process.member.name for process in self._of(roles)]

    def terminate(self, *roles: str) -> None:
        """Sends SIGTERM to the processes of these roles, or to all, once: a second one would keep one from saving."""
        for process in self._of(roles):
            if not process.was_told:
                process.was_told = True
                self.running[process].terminate()

    def kill(self, *roles: str) -> None:
        """Kills the processes of these roles, or all, with what they have started."""
        for process in self._of(roles):
            process.was_told = process.was_killed = True
            self.running[process].kill()

    def _of(self, roles: tuple[str, ...]) -> list[Process]:
        return [process for process in self.running if process.member.role in (roles or ALL_ROLES)]


def _read(process: Process, run: ForkedProcess) -> bool:
    """Takes output of a process; returns whether there may be more at once."""
    if run.output is None:
        return False
    try:
        data = os.read(run.output.fileno(), _READ_BYTES)
    except BlockingIOError:
        return False
    if data:
        process.lines.feed(data)
    else:
        _close(run)
    return bool(data)


def _close(run: ForkedProcess) -> None:
    if run.output is not None:
        run.output.close()
        run.output = None
