"""Values that the experiment does not take together."""

import pytest

from official_trainer.config import Problem, resolve
from official_trainer.sweeps import course
from official_trainer.sweeps.distributions import Dimension
from official_trainer.sweeps.settings import Objective, SweepConfig
from official_trainer.sweeps.space import Space
from official_trainer.sweeps.study import Study
from official_trainer.sweeps.trial import SweepError, Trial

LOW = Problem("is above high", "low", origin=None)


def drawn(refusal, *, prunes=False):
    return course.drawn(3, lambda attempt: Trial(number=3, values={"low": attempt}), refusal, prunes=prunes)


def test_values_that_are_refused_are_drawn_again():
    """N21: until the experiment takes them; nothing is left of the others."""
    trial = drawn(lambda values: LOW if values["low"] < 4 else None)
    assert (trial.number, trial.values, trial.state) == (3, {"low": 4}, None)


def test_values_that_are_refused_are_recorded_as_pruned_if_the_file_says_so():
    """N21: with the rule that refuses them."""
    trial = drawn(lambda values: LOW, prunes=True)
    assert (trial.values, trial.state, trial.reason) == ({"low": 0}, "pruned", "low: is above high")


def test_when_all_draws_are_refused_the_rules_are_named_with_their_shares():
    """N21: and what to do."""
    other = Problem("is odd", "low")
    with pytest.raises(SweepError) as caught:
        drawn(lambda values: other if values["low"] % 4 == 1 else LOW)
    assert str(caught.value).splitlines() == [
        "the experiment refuses all of 100 draws for trial 3:",
        "  75 of 100: low: is above high",
        "  25 of 100: low: is odd",
        "Narrow the space in a new sweep, with another --model_dir; with on_refusal: prune, such draws are recorded as "
        "pruned",
    ]


def test_another_attempt_draws_other_values_and_the_same_ones_in_another_process():
    """N21: a sweep that is killed between two attempts ends with the same table."""

    def study():
        space = Space((Dimension("rate", "float", 0.0, 1.0), Dimension("units", "logint", 1, 64, 1)))
        settings = resolve(SweepConfig(space={"rate": "float(0, 1)"}))
        return Study(space, settings, Objective("accuracy", "max", "best"))

    draws = [study().draw(2, {}, attempt).values for attempt in range(4)]
    assert draws == [study().draw(2, {}, attempt).values for attempt in range(4)]
    assert len({each["rate"] for each in draws}) == 4
    assert all(type(each["units"]) is int and 1 <= each["units"] <= 64 for each in draws)
