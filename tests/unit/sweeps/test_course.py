"""Values that the experiment does not take together."""

import pytest

from official_trainer.config import Problem
from official_trainer.sweeps import course
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
