"""How long all steps took."""

import pytest

from official_trainer.actions.durations import StepDurations


def test_percentiles_are_of_all_steps():
    """G19: to 1 %, whatever their number; a window counts as often as it has steps."""
    durations = StepDurations()
    durations.add(0.002, steps=1_000_000)
    for _ in range(200_000):
        durations.add(0.5)
    assert len(durations) == 1_200_000
    assert durations.percentile(0.5) == pytest.approx(0.002, rel=0.01)
    assert durations.percentile(0.9) == pytest.approx(0.5, rel=0.01)
    assert len(durations._counts) == 2, "it stays small"


def test_without_steps_there_is_no_duration():
    """G19: 0, and no error."""
    assert StepDurations().percentile(0.5) == 0.0
    assert not StepDurations()


def test_durations_of_two_stretches_are_summed():
    """G19: neither of the two changes."""
    first, second = StepDurations(), StepDurations()
    first.add(1.0)
    second.add(4.0, steps=3)
    assert len(first + second) == 4
    assert (first + second).percentile(0.5) == pytest.approx(4.0, rel=0.01)
    assert (len(first), len(second)) == (1, 3)
