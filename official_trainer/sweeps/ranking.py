"""Which evaluation of a trial counts, and which trials of a sweep are the best.

Owns: reading the results of evaluations; the order of complete trials; with several metrics those that no other one
beats, the Pareto front.
Does not own: what is compared (`settings.py`), what becomes of a trial (`driver.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from official_trainer.sweeps.settings import Objective
from official_trainer.sweeps.trial import SweepError, Trial
from official_trainer.tracking import EVALUATION
from official_trainer.tracking.jsonl import numbers_of
from official_trainer.tracking.monitored import find_metric

_EVALUATED = "set task.validation_data, or give fit(validation_data=…) of a Program with model_dir=trial.model_dir"


class Evaluation(NamedTuple):
    """An evaluation of a trial.

    Attributes:
      step: at which it was.
      results: a number for each metric that is compared.
    """

    step: int
    results: tuple[float, ...]

    @property
    def is_nan(self) -> bool:
        """Whether one of its results is NaN."""
        return any(map(math.isnan, self.results))


def evaluation_in(row: Mapping[str, Any], objective: Objective) -> Evaluation | None:
    """Returns the evaluation in a row of `metrics.jsonl`; None if it is a row of something else.

    Raises:
      SweepError: the evaluation lacks a metric.
    """
    if row["split"] != EVALUATION:
        return None
    numbers = numbers_of(row)
    found = {name: find_metric(numbers, name) for name in objective.directions}
    for name in (name for name, value in found.items() if value is None):
        what = f"{name!r} is compared, and the evaluation produces {', '.join(sorted(numbers))}"
        raise SweepError(f"objective: {what}. Name one of these in a new sweep, with another --model_dir")
    return Evaluation(row["step"], tuple(value for value in found.values() if value is not None))


def counted(number: int, found: Sequence[Evaluation], objective: Objective) -> Evaluation | str:
    """Returns the evaluation that counts of a trial which is done; or why there is none.

    Args:
      number: of the trial.
      found: its evaluations, by step.
      objective: what trials are compared by.

    Raises:
      SweepError: it was never evaluated, or not at the step that counts, which would be so for others too.
    """
    if not found:
        raise SweepError(f"trial {number} is done, and was never evaluated; {_EVALUATED}")
    names, step = " or ".join(objective.directions), objective.evaluation
    if isinstance(step, int):
        at = next((each for each in found if each.step == step), None)
        if at is None and found[-1].step > step:
            before = [each.step for each in found if each.step < step]
            near = map(str, (*before[-1:], found[len(before)].step))
            what = f"objective.evaluation is {step}, and trial {number} was evaluated at {' and '.join(near)}"
            raise SweepError(f"{what}. Write one of these in a new sweep, with another --model_dir")
        if at is None:
            return f"it ended at step {found[-1].step}, before the evaluation at step {step}"
        return f"{names} is NaN at step {step}" if at.is_nan else at
    whole = [each for each in found if not each.is_nan]
    if not whole:
        return f"{names} is NaN in every evaluation"
    if step == "last":
        return whole[-1]
    return (max if objective.direction == "max" else min)(whole, key=lambda each: each.results[0])


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
