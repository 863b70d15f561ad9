"""The process that all processes of a local job are children of, forked from it or started from scratch.

Owns: starting, signalling and reaping them on request, and killing all of them once the launcher is gone.
Does not own: when that is done (`attempt.py`, through `children.py`). It imports the modules that it has to preload,
TensorFlow among them, and never starts TensorFlow's runtime: a process with a running runtime cannot be forked.

Each process has a session of its own, so Ctrl-C in a terminal reaches the launcher alone, and everything that a process
leaves behind can be killed with it. If the launcher dies, the pipe to it ends, and this process kills its children and
ends. If this process is killed too, the kernel kills its children.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import os
import runpy
import select
import signal
import sys
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1
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
    if preload:
        from official_trainer.lazy import load

        for name in preload:
            load(name) if "." not in name else importlib.import_module(name)
    request = _Starter(Connection(descriptor)).serve()
    if not preload:
        os.execve(sys.executable, [sys.executable, "-m", *request.argv], request.environ)
    _run_module(request)


def _die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, which it may have done already; on Linux.

    The starter itself does not ask for this: it has to outlive the launcher until it has killed whole groups.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


class _Starter:
    """Children by the number that the launcher gave them."""

    def __init__(self, control: Connection) -> None:
        self._control = control
        self._pids: dict[int, int] = {}
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> Start:
        """Works until the launcher is gone; only a forked child returns, with the request that it is to run."""
        while True:
            sources: list[Any] = [self._control, self._woken]
            ready, _, _ = select.select(sources, [], [])
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, _READ_BYTES)
                self._reap()
            if self._control in ready:
                try:
                    request: Start | Signal = self._control.recv()
                    output = reduction.recv_handle(self._control) if isinstance(request, Start) else -1
                except (EOFError, OSError):
                    self._kill_all()
                    os._exit(0)
                if isinstance(request, Signal):
                    self._signal(request)
                elif self._start(request, output):
                    return request

    def _send(self, event: Event) -> None:
        with contextlib.suppress(ConnectionError):  # the next read notices that the launcher is gone
            self._control.send(event)

    def _start(self, request: Start, output: int) -> bool:
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
        _die_with(me)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for descriptor in (output, self._woken, self._wake):
            os.close(descriptor)
        self._control.close()
        return True

    def _signal(self, request: Signal) -> None:
        if request.number in self._pids:
            os.kill(self._pids[request.number], request.signal)  # not reaped yet, so the pid is still its own

    def _reap(self) -> None:
        for number, pid in list(self._pids.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _kill_group(pid)  # before it is reaped, while no other process can have its pid
            _, status = os.waitpid(pid, 0)
            del self._pids[number]
            self._send(Event(number, pid, os.waitstatus_to_exitcode(status)))

    def _kill_all(self) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
            _kill_group(pid)
        for pid in self._pids.values():
            os.waitpid(pid, 0)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _run_module(request: Start) -> None:
    """Runs a module as `python -m` would, in a forked process."""
    os.environ.clear()
    os.environ.update(request.environ)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # else all processes would draw the same numbers
    module, *arguments = request.argv
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
