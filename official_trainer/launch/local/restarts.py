"""Whether what has ended is started again, and when.

Owns: the wait between restarts, and giving up.
Does not own: starting anything (`local.py`, `launch/rerun.py`, `launch/targets/tpu_supervise.py`).
"""

from __future__ import annotations

_CRASH_LOOP = 5
_LONGEST_SECONDS = 60.0


class Restarts:
    """The restarts of one thing.

    Attributes:
      count: how many there were.
    """

    def __init__(
        self,
        *,
        limit: int | None = None,
        first_seconds: float = 1.0,
        longest_seconds: float = _LONGEST_SECONDS,
        patience: int = _CRASH_LOOP,
    ) -> None:
        """Takes when to give up.

        Args:
          limit: restarts; None for as many as bring new checkpoints.
          first_seconds: the first wait; each further one without a new checkpoint is twice as long.
          longest_seconds: the longest wait.
          patience: restarts in a row that bring no new checkpoint, after which there are no more.
        """
        self.count = 0
        self._limit, self._first_seconds = limit, first_seconds
        self._longest_seconds, self._patience = longest_seconds, patience
        self._without_progress = 0
        self._newest: int | None = None

    def next(self, newest: int | None) -> float | str:
        """Returns in how many seconds to start again, or why not to.

        Args:
          newest: step of the newest checkpoint; None for none.
        """
        has_moved = self.count and newest is not None and newest != self._newest
        self._without_progress = 0 if has_moved else self._without_progress
        self._newest = newest
        if self._limit is not None and self.count >= self._limit:
            return f"--max_restarts={self._limit} is used up"
        if self.is_crash_loop:
            where = (
                "there is no checkpoint" if newest is None else f"the newest checkpoint is still that of step {newest}"
            )
            return f"after {self._without_progress} restarts {where}: it crashes again and again"
        seconds = min(self._first_seconds * 2**self._without_progress, self._longest_seconds)
        self.count += 1
        self._without_progress += 1
        return seconds

    @property
    def is_crash_loop(self) -> bool:
        """Whether the last restarts have brought nothing."""
        return self._without_progress >= self._patience
