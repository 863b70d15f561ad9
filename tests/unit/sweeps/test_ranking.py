"""Which evaluation of a trial counts, the order of trials, and the Pareto front."""

import pytest

from official_trainer.sweeps import ranking
from official_trainer.sweeps.ranking import Evaluation
from official_trainer.sweeps.settings import Objective
from official_trainer.sweeps.trial import SweepError, Trial


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


NAN = float("nan")
FOUND = [Evaluation(10, (0.5, 3.0)), Evaluation(20, (0.9, 2.0)), Evaluation(30, (0.9, 1.0)), Evaluation(40, (0.7, NAN))]


def counted(evaluation, found=FOUND, direction="max"):
    return ranking.counted(3, found, Objective("accuracy", direction, evaluation, {"loss": "min"}))


@pytest.mark.parametrize(("evaluation", "step"), [("best", 20), ("last", 30), (10, 10), (30, 30)])
def test_all_results_are_those_of_the_evaluation_that_the_first_metric_chooses(evaluation, step):
    """N21: the best, the first of equal ones; the last; that at a step. One with NaN never counts."""
    assert counted(evaluation).step == step
    assert counted("best", direction="min").step == 10


@pytest.mark.parametrize(
    ("evaluation", "found", "reason"),
    [
        (40, FOUND, "accuracy or loss is NaN at step 40"),
        (50, FOUND, "it ended at step 40, before the evaluation at step 50"),
        ("best", FOUND[3:], "accuracy or loss is NaN in every evaluation"),
    ],
)
def test_a_trial_without_such_an_evaluation_has_a_reason(evaluation, found, reason):
    """N21: early stopping, say; it is pruned."""
    assert counted(evaluation, found) == reason


def test_what_would_be_so_for_every_trial_ends_the_sweep():
    """N21: no evaluation, none at that step, or one without the metric; each says what there is."""
    with pytest.raises(SweepError, match=r"trial 3 is done, and was never evaluated; set task.validation_data, or"):
        counted("best", [])
    with pytest.raises(SweepError, match=r"evaluation is 15, and trial 3 was evaluated at 10 and 20\. Write one"):
        counted(15)
    row = {"step": 10, "split": "validation", "time": 1.0, "accuracy": 0.5, "a/b": 1.0}
    assert ranking.evaluation_in(row, Objective("accuracy", "max", "best", {"a|b": "max"})) == (10, (0.5, 1.0))
    assert ranking.evaluation_in({**row, "split": "train"}, Objective("lss", "min", "best")) is None
    with pytest.raises(SweepError, match=r"'lss' is compared, and the evaluation produces a/b, accuracy\. Name"):
        ranking.evaluation_in(row, Objective("accuracy", "max", "best", {"lss": "min"}))
