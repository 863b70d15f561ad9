"""The course of a sweep: which trials there are, how one is drawn, and how it begins.

Owns: the course of a sweep whose trials are independent of each other; drawing others in the place of values that the
experiment does not take together, such as a warmup that is longer than the training, or recording them as pruned.
Does not own: that of a population (`population.py`), running trials (`driver.py`), why a config refuses values
(`config/`).

Which values are drawn next depends on how often the draw was refused, and a refused draw leaves nothing behind: a
sweep that is killed in between draws the same.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping

from official_trainer.config import Problem
from official_trainer.sweeps.distributions import Value
from official_trainer.sweeps.study import Study
from official_trainer.sweeps.trial import SweepError, Trial

MOST_ATTEMPTS = 100
"""So many draws for one trial may be refused."""
_MOST_SHOWN = 3


class Course:
    """Trials that are independent of each other; the sweep is done when enough of them are complete or pruned.

    Attributes:
      total: how many trials are to count.
    """

    def __init__(self, study: Study) -> None:
        self._study, self.total = study, study.trials

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

    def span(self, trial: Trial) -> tuple[int, int | None]:
        """Returns the step above which evaluations are its own, and its last step; None for that of its config."""
        return -1, None


def drawn(
    number: int,
    draw: Callable[[int], Trial],
    refusal: Callable[[Mapping[str, Value]], Problem | None],
    *,
    prunes: bool,
) -> Trial:
    """Returns a new trial with values that the experiment takes; or if told so, a pruned one with others.

    Args:
      number: of the trial.
      draw: returns it; takes how often others were refused.
      refusal: returns why the experiment refuses values; None if it takes them.
      prunes: whether a trial with values that are refused is recorded as pruned.

    Raises:
      SweepError: very many draws were refused.
    """
    refused: collections.Counter[str] = collections.Counter()
    for attempt in range(MOST_ATTEMPTS):
        trial = draw(attempt)
        problem = refusal(trial.values)
        if problem is None:
            return trial
        if prunes:
            return dataclasses.replace(trial, state="pruned", reason=problem.message)
        refused[f"{problem.path}: {problem.what}"] += 1
    rules = "".join(f"\n  {count} of {MOST_ATTEMPTS}: {rule}" for rule, count in refused.most_common(_MOST_SHOWN))
    raise SweepError(
        f"the experiment refuses all of {MOST_ATTEMPTS} draws for trial {number}:{rules}\n"
        "Narrow the space in a new sweep, with another --model_dir; with on_refusal: prune, such draws are recorded as "
        "pruned"
    )
