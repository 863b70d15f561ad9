"""The process that all processes of a local job are children of, forked from it or started from scratch.

Owns: starting, signalling and reaping them on request, and killing all of them once the launcher is gone.
Does not own: when that is done (`processes/children.py`), what a process does (`commands.py`). It imports
the modules that it has to preload, TensorFlow among them, and never starts TensorFlow's runtime: a process with a
running runtime cannot be forked.

Each process has a session of its own, so Ctrl-C in a terminal reaches the launcher alone, and everything that a process
leaves behind can be killed with it. If the launcher dies, the pipe to it ends, and this process kills its children and
ends. If this process is killed too, the kernel kills its children.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import importlib
import os
import select
import signal
import sys
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection

from official_trainer.processes import commands

_READ_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class Start:
    """A request to start a process; the descriptor for its output follows in the pipe.

    Attributes:
      number: by which the launcher knows the process.
      argv: a module and its arguments.
      environ: the process's whole environment.
    """

    number: int
    argv: Sequence[str]
    environ: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Signal:
    """A request to send a signal to a process.

    Attributes:
      number: of the process.
      signal: the signal's number.
    """

    number: int
    signal: int


@dataclasses.dataclass(frozen=True)
class Event:
    """The start or the end of a process.

    Attributes:
      number: of the process.
      pid: its process id.
      code: its exit code, negative for the signal that killed it; None if it has started.
    """

    number: int
    pid: int
    code: int | None = None


def main(descriptor: int, preload: Sequence[str]) -> None:
    """Serves one launcher; in a forked process, runs the requested module.

    Args:
      descriptor: of the pipe to the launcher.
      preload: modules to import before any process is forked; if empty, each process starts Python again.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm tells all processes of a job; the launcher decides
    import_all(preload)
    request = _Starter(Connection(descriptor)).serve()
    if not preload:
        os.execve(sys.executable, [sys.executable, "-m", *request.argv], request.environ)
    atexit.register(commands.end_children)  # after what the user's code registers, before multiprocessing waits
    try:
        commands.run(request.argv, request.environ)
    except BaseException:
        commands.end_children(0.0)  # so that the last line is that of the error
        raise


def import_all(modules: Sequence[str]) -> None:
    """Imports modules for those processes that will be forked from this one."""
    from official_trainer.lazy import deferring_idle_keras, load

    for name in modules:
        with deferring_idle_keras():  # TensorFlow and Keras in one way only
            load(name) if "." not in name else importlib.import_module(name)


class _Starter:
    """The children of this process."""

    def __init__(self, control: Connection) -> None:
        """Takes the pipe to the launcher."""
        self._control = control
        self._pids: dict[int, int] = {}  # by the number of the process
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> Start:
        """Works until the launcher is gone; only a forked child returns, with its request."""
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._woken], [], [])
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, _READ_BYTES)
                self._reap()
            if self._control.fileno() in ready:
                try:
                    request: Start | Signal = self._control.recv()
                    output = reduction.recv_handle(self._control) if isinstance(request, Start) else -1
                except (EOFError, OSError):
                    for pid in self._pids.values():
                        os.kill(pid, signal.SIGKILL)
                        _kill_group(pid)
                    for pid in self._pids.values():
                        os.waitpid(pid, 0)
                    os._exit(0)
                if isinstance(request, Signal):
                    if request.number in self._pids:
                        os.kill(self._pids[request.number], request.signal)  # not reaped yet, so the pid is its own
                elif self._fork(request, output):
                    return request

    def _send(self, event: Event) -> None:
        with contextlib.suppress(ConnectionError):  # the next read notices that the launcher is gone
            self._control.send(event)

    def _fork(self, request: Start, output: int) -> bool:
        """Starts a child; returns True in the child."""
        sys.stdout.flush()
        sys.stderr.flush()
        me = os.getpid()
        pid = os.fork()
        if pid:
            os.close(output)
            self._pids[request.number] = pid
            self._send(Event(request.number, pid))
            return False
        os.setsid()
        commands.die_with(me)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for descriptor in (output, self._woken, self._wake):
            os.close(descriptor)
        self._control.close()
        return True

    def _reap(self) -> None:
        for number, pid in list(self._pids.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _kill_group(pid)  # before it is reaped, while no other process can have its pid
            _, status = os.waitpid(pid, 0)
            del self._pids[number]
            self._send(Event(number, pid, os.waitstatus_to_exitcode(status)))


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
