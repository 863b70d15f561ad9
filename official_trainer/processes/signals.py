"""SIGTERM, SIGINT and SIGHUP of the launcher, as a descriptor that its loop can wait for.

Owns: the handlers while a job lasts. Does not own: how a signal is handled (`attempt.py`).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from official_trainer.stopping import may_insist, stop_signals

_SAME_SIGNAL_SECONDS = 0.5  # `timeout` and some schedulers signal a process and its group, so the first one comes twice


class Signals:
    """Signals that came inside its `with` block.

    Attributes:
      asked: the name of the first signal; None before it.
      insisted: whether another one came at least half a second later; SIGHUP does not count.
    """

    def __init__(self) -> None:
        self.asked: str | None = None
        self.insisted = False
        self._first: float | None = None

    def __enter__(self) -> Signals:
        self._reading, self._writing = os.pipe()
        for end in (self._reading, self._writing):
            os.set_blocking(end, False)
        self._previous_pipe = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._previous = {number: signal.signal(number, lambda *_: None) for number in stop_signals()}
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_pipe)
        os.close(self._reading)
        os.close(self._writing)

    def fileno(self) -> int:
        """Returns the descriptor to wait for before `read`."""
        return self._reading

    def read(self) -> None:
        """Takes the signals that came since the last call."""
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._reading, 64):
                now = time.monotonic()
                if number not in self._previous:
                    continue
                self.asked = self.asked or signal.Signals(number).name
                if may_insist(number):
                    self._first = self._first or now
                    self.insisted = self.insisted or now - self._first > _SAME_SIGNAL_SECONDS

    def wait(self, seconds: float) -> bool:
        """Waits that long, or until a signal asks the launcher to stop; returns whether one has."""
        end = time.monotonic() + seconds
        while self.asked is None and (left := end - time.monotonic()) > 0:
            select.select([self], [], [], left)
            self.read()
        return self.asked is not None
