"""How much of the time in steps is spent waiting for data, by looking from a thread.

Owns: the thread, and the sums. Does not own: the mark that it looks at (`engine/input_wait.py`), or what is made of
the sums (`time_account.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1  # every 0.02 s, looks took 2 % of a small step that keeps all cores busy


class InputSampler:
    """Looks again and again whether a step waits for its data, from a thread of its own.

    A look stands for the time since the one before. That is right too when looks are late, as they are while Python
    traces.

    Attributes:
      seen_seconds: for how long looks had an answer.
      waited_seconds: for how long of that a step waited.
      waits: tells, to any thread, whether a step waits; None where no step runs or nobody knows.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seen_seconds = self.waited_seconds = 0.0
        self.waits: Callable[[], bool | None] = lambda: None
        self._clock = clock
        self._looked_at = clock()
        self._is_awake, self._is_stopped = threading.Event(), threading.Event()

    def start(self) -> None:
        """Starts the thread, asleep."""
        threading.Thread(target=self._run, name="input-sampler", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread."""
        self._is_stopped.set()
        self._is_awake.set()

    def wake(self, is_awake: bool) -> None:
        """Says whether there are windows to look at."""
        if is_awake and not self._is_awake.is_set():
            self._looked_at = self._clock()
            self._is_awake.set()
        elif not is_awake and not self._is_stopped.is_set():
            self._is_awake.clear()

    def look(self) -> None:
        """Looks once."""
        waits, now = self.waits(), self._clock()
        seconds, self._looked_at = max(0.0, now - self._looked_at), now
        if waits is not None:
            self.seen_seconds += seconds
            self.waited_seconds += seconds * waits

    def _run(self) -> None:
        turn = 0.0
        while not self._is_stopped.is_set():
            self._is_awake.wait()
            turn = (turn + 0.618034) % 1  # not at a beat that steps may have as well
            self._is_stopped.wait(_LOOK_SECONDS * (0.5 + turn))
            try:
                self.look()
            except Exception as error:
                _logger.debug("whether steps wait for data cannot be told any more: %s", error)
                return
