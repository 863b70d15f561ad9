"""The launcher's side of the process that starts all others, and the processes of one attempt.

Owns: the starter's life; starting, reading and signalling the processes of a job.
Does not own: what the starter does (`starter.py`), what the end of a process means for the others (`attempt.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe, reduction

from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import uses_keras
from official_trainer.processes.job import ALL_ROLES, Member
from official_trainer.processes.output import Lines
from official_trainer.processes.signals import Signals
from official_trainer.processes.starter import Event, Signal, Start
from official_trainer.processes.verdict import Restarts

_PRELOADED = (
    "tensorflow",
    "official_trainer.runs.train",
    "official_trainer.runs.evaluate",
    "official_trainer.runs.run",
    "official_trainer.runs.worker",
    "official_trainer.cli.dispatch",
    "official_trainer.cli.verbs.train",
    "official_trainer.config.decode",
    "official_trainer.config.dump",
    "official_trainer.config.layers",
    "official_trainer.inputs.arrays",
    "rich.live",
    "rich.progress",
    "tensorboard.plugins.hparams.summary_v2",
    "tensorboard.plugins.scalar.summary_v2",
    "tensorboard.plugins.text.summary_v2",
    "tensorboard.summary.writer.record_writer",
)
"""The modules that every process of a job imports; TensorFlow alone takes seconds. None of them starts its runtime."""


def preloaded() -> tuple[str, ...]:
    """Returns these modules, and before them the Keras of the experiment, once this process has its config."""
    return (*(name for name, version in (("keras", 3), ("tf_keras", 2)) if uses_keras(version)), *_PRELOADED)


_BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from official_trainer.processes import starter
starter.main(int(sys.argv[2]), sys.argv[3:])
"""
_END_SECONDS = 10.0
_READ_BYTES = 1 << 16


def search_path() -> str:
    """Returns where this process finds modules, as JSON, for a Python that has to find the same."""
    return json.dumps([entry or os.getcwd() for entry in sys.path])


class StarterError(UserError, RuntimeError):
    """The process that starts all others does not start, or has died."""

    def __init__(self, code: int | None) -> None:
        """Takes its exit code, negative for a signal; None if it does not answer."""
        if code is None or code < 0:
            how = "does not answer" if code is None else f"was killed by {signal.Signals(-code).name}"
            super().__init__(f"the process that starts all others {how}; its processes died with it; start again")
            self.exit_code = ExitCode.RETRY
        else:
            super().__init__(f"the process that starts all others ended with exit code {code}; its error is above")


class Starter:
    """Starts processes until its `with` block ends, and kills those that still run then."""

    def __init__(self, preload: Sequence[str] = ()) -> None:
        """Takes the modules that processes find imported; without any, they are started from scratch."""
        self._preload = tuple(preload) if hasattr(os, "fork") and sys.platform == "linux" else ()
        self._numbers = itertools.count()

    def __enter__(self) -> Starter:
        self._control, theirs = Pipe()
        command = [sys.executable, "-c", _BOOT, search_path(), str(theirs.fileno()), *self._preload]
        with theirs:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self

    def __exit__(self, *raised: object) -> None:
        self._control.close()  # the starter notices, kills its children, and ends
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def fileno(self) -> int:
        """Returns the descriptor to wait for before `read`."""
        return self._control.fileno()

    def start(self, argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, int]:
        """Starts a process; returns its number, and the descriptor from which its output, both streams, is read.

        Args:
          argv: a module and its arguments.
          environ: its whole environment.
        """
        number = next(self._numbers)
        reading, writing = os.pipe()
        try:
            self._send(Start(number, list(argv), dict(environ)), writing)
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        return number, reading

    def signal(self, number: int, which: signal.Signals) -> None:
        """Sends a signal to a process; nothing happens if it has ended."""
        self._send(Signal(number, int(which)))

    def read(self) -> Event:
        """Waits for the next event of a process.

        Raises:
          StarterError: the starter is gone, and its processes with it.
        """
        try:
            event: Event = self._control.recv()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        return event

    def _send(self, request: Start | Signal, descriptor: int | None = None) -> None:
        try:
            self._control.send(request)
            if descriptor is not None:
                reduction.send_handle(self._control, descriptor, self._process.pid)
        except ConnectionError as error:
            raise self._lost() from error

    def _lost(self) -> StarterError:
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_END_SECONDS)
        return StarterError(code)


@dataclasses.dataclass(eq=False)
class Process:
    """A process of a job, through its single restarts.

    Attributes:
      member: its role and command.
      lines: takes its output.
      restarts: counts its restarts.
      pid: its process id; None until it runs.
      output: the descriptor from which its output is read; -1 once that has ended.
      was_told: whether it was sent a signal to end.
      was_killed: whether that signal was SIGKILL.
    """

    member: Member
    lines: Lines
    restarts: Restarts
    pid: int | None = None
    output: int = -1
    was_told: bool = False
    was_killed: bool = False


class Processes:
    """The processes of one attempt; the end of the `with` block reads the rest of their output.

    Attributes:
      running: those that run, by the starter's number.
    """

    def __init__(self, starter: Starter, signals: Signals) -> None:
        """Takes what starts processes and what ends a wait.

        Args:
          starter: starts and signals them.
          signals: of the launcher.
        """
        self.running: dict[int, Process] = {}
        self._starter = starter
        self._environ = dict(os.environ)  # what this process imports later may set more, and processes are to be alike
        self._all: dict[Process, None] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(starter, selectors.EVENT_READ)
        self._selector.register(signals, selectors.EVENT_READ)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self._all:
            self._drain(process)
            process.lines.end()
        self._selector.close()

    def start(self, process: Process) -> None:
        """Starts a process, or starts it again."""
        self._all[process] = None
        process.pid = None
        # gRPC would use a proxy for loopback too.
        direct = {n: ",".join(filter(None, (self._environ.get(n), "127.0.0.1"))) for n in ("no_proxy", "NO_PROXY")}
        own = {"PYTHONUNBUFFERED": "1", **process.member.environ}
        environ = {**self._environ, **direct, **own}
        number, process.output = self._starter.start(process.member.argv, environ)
        self.running[number] = process
        self._selector.register(process.output, selectors.EVENT_READ, process)

    def wait(self, seconds: float | None) -> tuple[Process, int | None] | None:
        """Waits for output, an event or a signal, and reads output.

        Args:
          seconds: the longest wait; None waits as long as it takes.

        Returns:
          The process that has started, with None, or ended, with its exit code; None if no process has.
        """
        keys = [key for key, _ in self._selector.select(seconds)]
        for key in keys:
            if isinstance(key.data, Process):
                self._read(key.data)
        if all(key.fileobj is not self._starter for key in keys):
            return None
        event = self._starter.read()
        process = self.running[event.number]
        process.pid = event.pid
        if event.code is not None:
            del self.running[event.number]
            self._drain(process)
        return process, event.code

    def names(self, *roles: str) -> list[str]:
        """Returns the names of the running processes, of these roles or of all."""
        return [process.member.name for process in self._of(roles).values()]

    def terminate(self, *which: str | Process) -> None:
        """Sends SIGTERM to these processes or roles, or to all, once: a second one would keep a process from saving."""
        for number, process in self._of(which).items():
            if not process.was_told:
                process.was_told = True
                self._starter.signal(number, signal.SIGTERM)

    def kill(self, *which: str | Process) -> None:
        """Sends SIGKILL to these processes or roles, or to all."""
        for number, process in self._of(which).items():
            process.was_told = process.was_killed = True
            self._starter.signal(number, signal.SIGKILL)

    def _of(self, which: Sequence[str | Process]) -> dict[int, Process]:
        """Returns the running processes that are named, by themselves or by their role; all without a name."""
        wanted = which or ALL_ROLES
        return {n: each for n, each in self.running.items() if each in wanted or each.member.role in wanted}

    def _read(self, process: Process) -> bool:
        """Takes the output of a process; returns whether there may be more at once."""
        if process.output < 0:
            return False
        try:
            data = os.read(process.output, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            process.lines.feed(data)
        else:
            self._close(process)
        return bool(data)

    def _drain(self, process: Process) -> None:
        while self._read(process):
            pass
        self._close(process)

    def _close(self, process: Process) -> None:
        if process.output >= 0:
            self._selector.unregister(process.output)
            os.close(process.output)
            process.output = -1
