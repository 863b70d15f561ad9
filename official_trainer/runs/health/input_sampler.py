"""How much of the time in steps is spent waiting for data, by sampling from a thread.

Owns: the thread, and the sums. Does not own: the mark that it reads (`engine/input_wait.py`), what is made of the sums
(`time_account.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from official_trainer.threads import RepeatingThread

_logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.1  # with 0.02 s, sampling took 2 % of a small step that keeps all cores busy


class InputSampler:
    """Samples whether a step waits for its data, from a thread that there is while the run trains.

    A sample stands for the time since the one before. That is right also when samples are late, as they are while
    Python traces.
    """

    def __init__(self, is_waiting: Callable[[], bool | None], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepares.

        Args:
          is_waiting: returns, in any thread, whether a step waits; None where no step runs or it is unknown.
          clock: returns the time in seconds.
        """
        self._is_waiting, self._clock = is_waiting, clock
        self._seen_seconds = self._waited_seconds = 0.0
        self._taken = 0.0, 0.0
        self._sampled_at = clock()
        self._phase = 0.0
        self._thread: RepeatingThread | None = None

    def follow(self, is_training: bool) -> None:
        """Starts the thread when the run begins to train, and ends it when something else begins."""
        if is_training and self._thread is None:
            self._sampled_at = self._clock()
            self._thread = RepeatingThread("input-sampler", self._try_to_sample, self._pause)
            self._thread.start()
        elif not is_training and self._thread is not None:
            self._thread.stop()
            self._thread = None

    def sample(self) -> None:
        """Samples once."""
        is_waiting, now = self._is_waiting(), self._clock()
        seconds, self._sampled_at = max(0.0, now - self._sampled_at), now
        if is_waiting is not None:
            self._seen_seconds += seconds
            self._waited_seconds += seconds * is_waiting

    def take(self) -> tuple[float, float]:
        """Returns for how many seconds samples since the last call had an answer, and how many of these were waits."""
        seen, waited = self._taken
        self._taken = self._seen_seconds, self._waited_seconds
        return self._taken[0] - seen, self._taken[1] - waited

    def _try_to_sample(self) -> None:
        try:
            self.sample()
        except Exception as error:
            _logger.debug("whether steps wait for data is unknown from here on: %s", error)
            self._is_waiting = lambda: None

    def _pause(self) -> float:
        self._phase = (self._phase + 0.618034) % 1  # irregular, because steps may be regular
        return _PAUSE_SECONDS * (0.5 + self._phase)
