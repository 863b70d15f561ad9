"""The process that all processes of a local job are children of, forked from it or started from scratch.

Owns: starting, signalling and reaping them on request, giving a command to a process that has done another one, and
killing all of them once the launcher is gone.
Does not own: when that is done (`launch/local/children.py`), what a process does (`commands.py`). It imports
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
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from typing import Any

from official_trainer.distributed.began import BEGAN
from official_trainer.warm import commands, preloading

_READ_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True)
class Slot:
    """The devices of this machine that one process at a time gets.

    Attributes:
      number: among the slots of the launcher.
      cores: to which the process is bound, by their numbers; empty for those of the launcher.
      environ: variables by which the process sees its GPUs alone.
    """

    number: int = 0
    cores: tuple[int, ...] = ()
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Start:
    """A request to start a process; the descriptor for its output follows in the pipe.

    Attributes:
      number: by which the launcher knows the process, or the command.
      argv: a module and its arguments.
      environ: the process's whole environment.
      most: how many commands the process takes, one after the other; it has to be forked to take more than one.
      like: what the commands of one process have in common, besides `environ`.
      slot: its devices.
      is_first: whether no other command may come before it in its process.
    """

    number: int
    argv: Sequence[str]
    environ: dict[str, str]
    most: int = 1
    like: str = ""
    slot: Slot = Slot()
    is_first: bool = False


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
    """The start or the end of a process, or of a command in one.

    Attributes:
      number: of the process.
      pid: its process id.
      code: its exit code, negative for the signal that killed it; None if it has started.
      is_first: whether no other command came before it in its process.
    """

    number: int
    pid: int
    code: int | None = None
    is_first: bool = True


@dataclasses.dataclass(eq=False)
class _Child:
    """A process.

    Attributes:
      pid: its process id.
      started_for: the request for which it was started.
      control: the pipe to it; None if it takes no further command.
      number: of the command that it runs; None if it waits for one.
      commands: how many it was given.
      was_signalled: whether it was sent a signal.
    """

    pid: int
    started_for: Start
    control: Connection | None
    number: int | None
    commands: int = 1
    was_signalled: bool = False

    def fits(self, request: Start) -> bool:
        """Whether it waits for a command like this one."""
        mine = self.started_for
        names = ("environ", "like", "most", "slot")
        is_like = all(getattr(mine, name) == getattr(request, name) for name in names)
        return self.number is None and self.control is not None and is_like and not request.is_first

    def event(self, code: int | None = None) -> Event:
        """Returns the start, or the end, of its command."""
        assert self.number is not None
        return Event(self.number, self.pid, code, is_first=self.commands == 1)


def main(descriptor: int, preload: Sequence[str]) -> None:
    """Serves one launcher; in a forked process, runs the requested module.

    Args:
      descriptor: of the pipe to the launcher.
      preload: modules to import before any process is forked; if empty, each process starts Python again.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm tells all processes of a job; the launcher decides
    preloading.preload(preload)
    request, control = _Starter(Connection(descriptor), preloading.Imports() if preload else None).serve()
    if not preload:
        environ = request.environ | {BEGAN: f"{os.getpid()} {time.monotonic()}"}  # so that no warm server takes it
        os.execve(sys.executable, [sys.executable, "-m", *request.argv], environ)
    atexit.register(commands.end_children)  # after what the user's code registers, before multiprocessing waits
    try:
        if control is None:
            commands.run_one(request.argv, request.environ)
        else:
            commands.run_several(request.argv, request.environ, control, request.most)
    except BaseException:
        commands.end_children(0.0)  # so that the last line is that of the error
        raise


def _bind(cores: Sequence[int]) -> None:
    """Binds this process to cores, before TensorFlow's runtime starts as many threads as it finds cores."""
    if cores and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, cores)
        except OSError as error:
            listed = ", ".join(map(str, cores))
            print(f"not bound to the cores {listed}, but to all: {error.strerror}", file=sys.stderr, flush=True)


class _Starter:
    """The children of this process."""

    def __init__(self, control: Connection, imports: preloading.Imports | None) -> None:
        """Takes the pipe to the launcher, and what is imported for children; None if they are not forked."""
        self._control, self._imports = control, imports
        self._children: list[_Child] = []
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> tuple[Start, Connection | None]:
        """Works until the launcher is gone; only a forked child returns, with its request and its end of the pipe."""
        while True:
            pipes = {child.control: child for child in self._children if child.control is not None}
            sources: list[Any] = [self._control, self._woken, *pipes]
            wait_seconds = None
            if self._imports is not None:
                self._imports.advance()
                wait_seconds = self._imports.wait_seconds()
                sources.append(self._imports)
            ready, _, _ = select.select(sources, [], [], wait_seconds)
            if self._imports is not None and self._imports in ready:
                self._imports.hear()
            for control, child in pipes.items():
                if control in ready:
                    self._hear(child)
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
                elif not self._continue(request, output) and (forked := self._fork(request, output)) is not None:
                    return request, forked.control

    def _send(self, event: Event) -> None:
        with contextlib.suppress(ConnectionError):  # the next read notices that the launcher is gone
            self._control.send(event)

    def _continue(self, request: Start, output: int) -> bool:
        """Gives a command to a child that waits for one like it; returns whether there is one."""
        waiting = [child for child in self._children if child.number is None]
        child = next((child for child in waiting if child.fits(request)), None)
        for other in waiting:
            if other is not child and other.started_for.slot.number == request.slot.number:
                self._dismiss(other)  # whose memory, also that of a GPU, is for this command
        if child is None:
            return False
        assert child.control is not None
        try:
            child.control.send(request.argv)
            reduction.send_handle(child.control, output, child.pid)
        except OSError:  # it was killed while it waited
            return False
        os.close(output)
        child.number, child.commands = request.number, child.commands + 1
        self._send(child.event())
        return True

    def _fork(self, request: Start, output: int) -> _Child | None:
        """Starts a child; returns something in the child."""
        sys.stdout.flush()
        sys.stderr.flush()
        mine, theirs = Pipe() if request.most > 1 else (None, None)
        me = os.getpid()
        pid = os.fork()
        if pid:
            os.close(output)
            if theirs is not None:
                theirs.close()
            self._children.append(child := _Child(pid, request, mine, request.number))
            self._send(child.event())
            return None
        os.setsid()
        commands.die_with(me)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for descriptor in (output, self._woken, self._wake):
            os.close(descriptor)
        for pipe in (self._control, mine, *(child.control for child in self._children)):
            if pipe is not None:
                pipe.close()
        if self._imports is not None:
            self._imports.tell()
        _bind(request.slot.cores)
        return _Child(os.getpid(), request, theirs, request.number)

    def _hear(self, child: _Child) -> None:
        """Takes from a child that its command has ended, with exit code 0, and that it waits for another one."""
        try:
            assert child.control is not None
            child.control.recv()
        except (EOFError, OSError):  # it takes no further command, and ends
            self._close(child)
            return
        self._send(child.event(0))
        child.number = None
        if child.was_signalled:  # it may have come after that end
            self._dismiss(child)

    def _dismiss(self, child: _Child) -> None:
        os.kill(child.pid, signal.SIGKILL)
        self._close(child)

    def _close(self, child: _Child) -> None:
        if child.control is not None:
            child.control.close()
            child.control = None

    def _signal(self, request: Signal) -> None:
        for child in self._children:
            if child.number == request.number:
                child.was_signalled = True
                os.kill(child.pid, request.signal)  # not reaped yet, so the pid is still its own

    def _reap(self) -> None:
        if self._imports is not None:
            self._imports.look()
        for child in list(self._children):
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            if child.number is not None and child.control is not None and child.control.poll():
                self._hear(child)  # what it said before
            _kill_group(child.pid)  # before it is reaped, while no other process can have its pid
            _, status = os.waitpid(child.pid, 0)
            self._children.remove(child)
            self._close(child)
            if child.number is not None:
                self._send(child.event(os.waitstatus_to_exitcode(status)))

    def _kill_all(self) -> None:
        for child in self._children:
            os.kill(child.pid, signal.SIGKILL)
            _kill_group(child.pid)
        for child in self._children:
            os.waitpid(child.pid, 0)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
