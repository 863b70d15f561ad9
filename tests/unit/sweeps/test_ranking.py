"""The order of trials, and the Pareto front."""

import pytest

from official_trainer.sweeps import ranking
from official_trainer.sweeps.settings import Objective
from official_trainer.sweeps.trial import Trial


def complete(*results):
    return [
        Trial(number=number, values={}, state="complete", value=value, others=dict(enumerate(others)))
        for number, (value, *others) in enumerate(results)
    ]


def numbers(trials):
    return [each.number for each in trials]


@pytest.mark.parametrize(("direction", "order"), [("max", [1, 2, 0]), ("min", [0, 1, 2])])
def test_the_best_is_the_first_of_equal_ones(direction, order):
    """N21: for both directions; trials without a result do not count."""
    trials = [*complete([0.5], [0.9], [0.9]), Trial(number=3, values={}, state="pruned"), Trial(number=4, values={})]
    objective = Objective("accuracy", direction, "best")
    assert numbers(ranking.ranked(trials, objective)) == order
    assert numbers(ranking.best(trials, objective)) == order[:1]
    assert ranking.best(trials[3:], objective) == []


def test_of_several_metrics_those_are_the_best_that_no_other_one_beats():
    """N21: of equal ones the first; infinity is a number like others."""
    trials = complete((0.9, 0.5), (0.8, 0.2), (0.8, 0.3), (0.9, 0.5), (0.7, 0.1), (0.95, float("inf")), (0.94, 0.6))
    objective = Objective("accuracy", "max", "best", {"loss": "min"})
    assert numbers(ranking.best(trials, objective)) == [5, 6, 0, 1, 4]
    assert numbers(ranking.ranked(trials, objective)) == [5, 6, 0, 3, 1, 2, 4]
