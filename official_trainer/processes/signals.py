"""SIGTERM, SIGINT and SIGHUP of the launcher, as a descriptor that its loop can wait for.

Owns: what was asked while a job lasts. Does not own: the handlers (`stopping.py`), how a signal is handled
(`attempt.py`).
"""

from __future__ import annotations

import select
import signal
import time

from official_trainer.stopping import SignalPipe


class Signals:
    """Signals that came inside its `with` block.

    Attributes:
      asked: the name of the first signal; None before it.
      insisted: whether another one came at least half a second later; SIGHUP does not count.
    """

    def __init__(self) -> None:
        self.asked: str | None = None
        self.insisted = False

    def __enter__(self) -> Signals:
        self._pipe = SignalPipe()
        return self

    def __exit__(self, *raised: object) -> None:
        self._pipe.close()

    def fileno(self) -> int:
        """Returns the descriptor to wait for before `read`."""
        return self._pipe.fileno()

    def read(self) -> None:
        """Takes the signals that came since the last call."""
        for number in self._pipe.read():
            self.asked = self.asked or signal.Signals(number).name
            self.insisted = self._pipe.insists(number) or self.insisted

    def wait(self, seconds: float) -> bool:
        """Waits that long, or until a signal asks the launcher to stop; returns whether one has."""
        end = time.monotonic() + seconds
        while self.asked is None and (left := end - time.monotonic()) > 0:
            select.select([self], [], [], left)
            self.read()
        return self.asked is not None
