"""The launcher's side of the process that starts all others.

Owns: the starter's life, and what it is asked and says. Does not own: what the starter does (`starter.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from official_trainer.errors import ExitCode, UserError

PRELOAD = (
    "tensorflow",
    "tf_keras",
    "official_trainer.runs.train",
    "official_trainer.runs.evaluate",
    "official_trainer.cli",
)
"""What every process of a job imports; TensorFlow alone is seconds."""

_BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from official_trainer.launch.local import starter
starter.main(int(sys.argv[2]), sys.argv[3:])
"""
_END_SECONDS = 10.0


class StarterError(UserError, RuntimeError):
    """The process that starts all others does not start, or has died."""

    def __init__(self, code: int | None) -> None:
        """Takes how it ended: its exit code, negative for a signal; None if it has only fallen silent."""
        if code is None or code < 0:
            how = "does not answer" if code is None else f"was killed by {signal.Signals(-code).name}"
            super().__init__(f"the process that starts all others {how}; its processes died with it; start again")
            self.exit_code = ExitCode.RETRY
        else:
            super().__init__(f"the process that starts all others ended with exit code {code}; see what it says above")


@dataclasses.dataclass(frozen=True)
class Started:
    """A process runs.

    Attributes:
      number: which.
      pid: by which the system knows it.
    """

    number: int
    pid: int


@dataclasses.dataclass(frozen=True)
class Ended:
    """A process has ended.

    Attributes:
      number: which.
      code: its exit code; negative: the signal that killed it.
    """

    number: int
    code: int


class Starter:
    """Starts processes until its `with` block ends, which leaves none of them."""

    def __init__(self, *, preload: Sequence[str] = ()) -> None:
        """Takes what processes are to find imported.

        Args:
          preload: modules; with any, processes are forked, else they are started anew.
        """
        self._preload = tuple(preload) if hasattr(os, "fork") and sys.platform == "linux" else ()
        self._unread = b""
        self._numbers = itertools.count()

    def __enter__(self) -> Starter:
        self._control, theirs = socket.socketpair()
        path = json.dumps([entry or os.getcwd() for entry in sys.path])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, path, str(theirs.fileno()), *self._preload],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self

    def __exit__(self, *raised: object) -> None:
        self._control.close()  # the starter sees it, kills what is left, and ends
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def fileno(self) -> int:
        """Returns what to wait for before `read`."""
        return self._control.fileno()

    def start(self, argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, int]:
        """Starts a process; returns its number, and the descriptor from which its output, both streams, is read.

        Args:
          argv: a module and its arguments.
          environ: its whole environment.
        """
        number = next(self._numbers)
        reading, writing = os.pipe()
        request = {"do": "start", "id": number, "argv": list(argv), "fork": bool(self._preload)}
        try:
            self._ask({**request, "environ": dict(environ)}, [writing])
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        return number, reading

    def signal(self, number: int, which: signal.Signals) -> None:
        """Sends a signal to a process; nothing happens if it has ended."""
        self._ask({"do": "signal", "id": number, "number": int(which)}, [])

    def read(self) -> list[Started | Ended]:
        """Returns what has happened to processes since the last call; waits for something to be said.

        Raises:
          StarterError: there is no starter any more, and so none of its processes.
        """
        try:
            data = self._control.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            raise self._lost()
        *lines, self._unread = (self._unread + data).split(b"\n")
        events = [json.loads(line) for line in lines]
        happened: list[Started | Ended] = []
        for event in events:
            if "started" in event:
                happened.append(Started(event["started"], event["pid"]))
            elif "ended" in event:
                happened.append(Ended(event["ended"], event["code"]))
        return happened

    def _ask(self, request: Mapping[str, object], descriptors: Sequence[int]) -> None:
        data = json.dumps(request).encode() + b"\n"
        try:
            if descriptors:
                data = data[socket.send_fds(self._control, [data], list(descriptors)) :]
            self._control.sendall(data)
        except ConnectionError as error:
            raise self._lost() from error

    def _lost(self) -> StarterError:
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_END_SECONDS)
        return StarterError(code)
