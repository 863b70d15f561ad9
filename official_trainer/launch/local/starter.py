"""The process that all processes of a local job are children of, forked from it or started anew.

Owns: starting, signalling and reaping them on request, and killing all of them once nobody listens any more.
Does not own: when that is done (`local.py`, through `children.py`). Imports what it is told to, TensorFlow perhaps, and
never starts TensorFlow's runtime, because a process that has started it cannot be forked.

Each process has a session of its own, so Ctrl-C in a terminal reaches the launcher alone, and whatever a process leaves
behind can be killed with it. If the launcher dies, the socket to it ends, and so does everything here. If this process
is killed too, the kernel kills its children.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1
_READ_BYTES = 1 << 16


def main(descriptor: int, preload: Sequence[str]) -> None:
    """Serves one launcher; in a forked process, runs the module that it is to run.

    Args:
      descriptor: of the socket to the launcher.
      preload: modules that processes are to find imported.
    """
    control = socket.socket(fileno=descriptor)
    if preload:
        from official_trainer.lazy import load

        for name in preload:
            load(name) if "." not in name else importlib.import_module(name)
    control.sendall(b'{"ready": true}\n')
    request = _Starter(control).serve()
    if request is not None:
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

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pids: dict[int, int] = {}
        self._unread = b""
        self._descriptors: list[int] = []
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> dict[str, Any] | None:
        """Works until the launcher is gone; returns in a forked child, with what that is to run."""
        while True:
            sources: list[Any] = [self._control, self._woken]
            ready, _, _ = select.select(sources, [], [])
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, _READ_BYTES)
                self._reap()
            if self._control in ready:
                requests = self._requests()
                if requests is None:
                    self._kill_all()
                    os._exit(0)
                for request in requests:
                    if request["do"] == "signal":
                        self._signal(request["id"], request["number"])
                    elif self._start(request, self._descriptors.pop(0)):
                        return request

    def _requests(self) -> list[dict[str, Any]] | None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, _READ_BYTES, 8)
        except ConnectionError:
            return None
        self._descriptors += descriptors
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _tell(self, **event: Any) -> None:
        with contextlib.suppress(ConnectionError):  # the next read sees that the launcher is gone
            self._control.sendall(json.dumps(event).encode() + b"\n")

    def _start(self, request: dict[str, Any], output: int) -> bool:
        """Starts a child; returns True in a child that is to run a module itself."""
        sys.stdout.flush()
        sys.stderr.flush()
        me = os.getpid()
        pid = os.fork()
        if pid:
            os.close(output)
            self._pids[request["id"]] = pid
            self._tell(started=request["id"], pid=pid)
            return False
        os.setsid()
        _die_with(me)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for descriptor in (output, self._woken, self._wake):
            os.close(descriptor)
        self._control.close()
        if not request["fork"]:
            os.execve(sys.executable, [sys.executable, "-m", *request["argv"]], request["environ"])
        return True

    def _signal(self, child: int, number: int) -> None:
        if child in self._pids:
            os.kill(self._pids[child], number)  # it is not reaped yet, so the number is still its own

    def _reap(self) -> None:
        for child, pid in list(self._pids.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _kill_group(pid)  # before it is reaped, while the number cannot belong to anybody else
            _, status = os.waitpid(pid, 0)
            del self._pids[child]
            self._tell(ended=child, code=os.waitstatus_to_exitcode(status))

    def _kill_all(self) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
            _kill_group(pid)
        for pid in self._pids.values():
            os.waitpid(pid, 0)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _run_module(request: dict[str, Any]) -> None:
    """Runs a module as `python -m` would, in a process that was forked."""
    os.environ.clear()
    os.environ.update(request["environ"])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # else all would go on with the state of the process they come from
    module, *arguments = request["argv"]
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
