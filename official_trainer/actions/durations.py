"""How long the steps of a run took: `StepDurations`.

Owns: the histogram, and its percentiles. Does not own: measuring a step (`engine/loop.py`), what a run does
with its time (`runs/health/time_account.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

_BUCKET = math.log(1.01)


class StepDurations:
    """Durations to 1 %: a histogram, which stays small however many steps there are. `len` is the number of steps.

    `list` makes a list of the seconds of each step, the shortest first. Only windows can be timed, so a step counts as
    long as the mean of its window.

    Example:
      >>> from official_trainer.actions import StepDurations
      >>> durations = StepDurations()
      >>> durations.add(0.5, steps=9)
      >>> durations.add(2.0)
      >>> round(durations.percentile(0.5), 1), round(durations.percentile(0.95), 1)
      (0.5, 2.0)
      >>> len(list(durations))
      10
    """

    def __init__(self, counts: Counter[int] | None = None) -> None:
        """Takes the number of steps by the logarithm of their duration; begins empty without."""
        self._counts: Counter[int] = counts or Counter()

    def __len__(self) -> int:
        return self._counts.total()

    def __iter__(self) -> Iterator[float]:
        return (_seconds(bucket) for bucket in sorted(self._counts) for _ in range(self._counts[bucket]))

    def __add__(self, other: StepDurations) -> StepDurations:
        counts = self._counts.copy()
        counts.update(other._counts)  # `+` would look at each one of many durations for the few that are new
        return StepDurations(counts)

    def add(self, seconds: float, steps: int = 1) -> None:
        """Adds `steps` steps of `seconds` each."""
        self._counts[math.floor(math.log(max(seconds, 1e-9)) / _BUCKET)] += steps

    def percentile(self, share: float) -> float:
        """Returns the seconds that `share` of the steps take at most, 0.5 for the median; 0 without steps."""
        needed = share * len(self)
        for bucket in sorted(self._counts):
            needed -= self._counts[bucket]
            if needed <= 0:
                return _seconds(bucket)
        return 0.0


def _seconds(bucket: int) -> float:
    return math.exp((bucket + 0.5) * _BUCKET)
