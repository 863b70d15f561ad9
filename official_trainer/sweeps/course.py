"""The course of a sweep: which trials there are, and how one begins.

Owns: the course of a sweep whose trials are independent of each other.
Does not own: that of a population (`population.py`), running trials (`driver.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from official_trainer.sweeps.study import Study
from official_trainer.sweeps.trial import Trial


class Course:
    """Trials that are independent of each other; the sweep is done when enough of them are complete or pruned.

    Attributes:
      total: how many trials are to count.
    """

    def __init__(self, study: Study, total: int) -> None:
        self._study, self.total = study, total

    def counts(self, trial: Trial) -> bool:
        """Returns whether a trial has ended, and is one of the total."""
        is_visited = self._study.most is not None and trial.state is not None  # a combination comes once
        return is_visited or trial.state in ("complete", "pruned")

    def done(self, trials: Mapping[int, Trial]) -> int:
        """Returns how many trials count."""
        return sum(map(self.counts, trials.values()))

    def wanted(self, trials: Mapping[int, Trial]) -> int:
        """Returns how many trials may count, now that these are on record."""
        return self.total

    def title(self, trial: Trial) -> str:
        """Returns what is said of the sweep when a trial starts; empty for nothing."""
        return ""

    def parent(self, number: int, trials: Mapping[int, Trial]) -> int | None:
        """Returns the trial that a new one continues; None for none."""
        return None

    def draw(self, number: int, trials: Mapping[int, Trial], attempt: int = 0) -> Trial:
        """Returns a new trial; see `Study.draw`."""
        return self._study.draw(number, trials, attempt)

    def begin(self, trial: Trial, trials: Mapping[int, Trial], check: Callable[[], None]) -> bool:
        """Prepares the run directory of a trial before its process starts; returns whether it has made one.

        Args:
          trial: its record.
          trials: all that are on record.
          check: raises if this process may not do it any more.
        """
        return False

    def words(self, trial: Trial) -> Sequence[str]:
        """Returns what the command of a trial has in addition."""
        return []

    def since(self, trial: Trial) -> int:
        """Returns the step above which evaluations are those of this trial."""
        return -1

    def lacks(self, trial: Trial) -> str:
        """Returns what is missing in a run that ended without an error; empty if nothing is."""
        return ""
