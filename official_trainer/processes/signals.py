"""SIGTERM, SIGINT and SIGHUP of the launcher, as a descriptor that its loop can wait for.

Owns: what was asked while a job lasts. Does not own: the handlers (`stopping.py`), how a signal is handled
(`attempt.py`).
"""

from __future__ import annotations

import signal
import time

from official_trainer.stopping import SignalPipe


class Signals(SignalPipe):
    """Signals that came before the end of its `with` block.

    Attributes:
      asked: the name of the first signal; None before it.
      insisted: whether another one came at least half a second later; SIGHUP does not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: str | None = None
        self.insisted = False

    def __enter__(self) -> Signals:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def take(self, seconds: float = 0.0) -> None:
        """Takes the signals that came since the last call; waits for one for at most `seconds`."""
        for number in self.read(seconds):
            self.asked = self.asked or signal.Signals(number).name
            self.insisted = self.insists(number) or self.insisted

    def wait(self, seconds: float) -> bool:
        """Waits that long, or until a signal asks the launcher to stop; returns whether one has."""
        end = time.monotonic() + seconds
        while self.asked is None and (left := end - time.monotonic()) > 0:
            self.take(left)
        return self.asked is not None
