"""Which trials of a sweep are the best.

Owns: the order of complete trials; with several metrics those that no other one beats, the Pareto front.
Does not own: what is compared (`settings.py`), which evaluation of a trial counts (`driver.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from official_trainer.sweeps.settings import Objective
from official_trainer.sweeps.trial import Trial


def ranked(trials: Iterable[Trial], objective: Objective) -> list[Trial]:
    """Returns the complete trials, the best first: by the first metric, then the next one, then the number."""
    complete = [each for each in trials if each.state == "complete" and each.results]
    return sorted(complete, key=lambda each: (*(-score for score in _scores(each, objective)), each.number))


def best(trials: Iterable[Trial], objective: Objective) -> list[Trial]:
    """Returns the best trial, if there is one; with several metrics all that no other one beats, the best first.

    One trial beats another if it is at least as good in every metric, and of equal ones the earliest does.
    """
    front: list[Trial] = []
    for each in ranked(trials, objective):  # what beats a trial comes before it
        scores = _scores(each, objective)
        if not any(all(map(float.__ge__, _scores(other, objective), scores)) for other in front):
            front.append(each)
    return front


def _scores(trial: Trial, objective: Objective) -> list[float]:
    """Returns its results, of which the highest are the best."""
    directions = objective.directions.values()
    return [value if each == "max" else -value for value, each in zip(trial.results, directions, strict=True)]
