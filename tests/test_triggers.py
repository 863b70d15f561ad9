"""Intervals on the global step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_trainer.triggers import Every


@pytest.mark.parametrize(
    ("interval", "step", "is_due", "next_step"),
    [
        (10, 0, False, 10),
        (10, 9, False, 10),
        (10, 10, True, 20),
        (10, 11, False, 20),
        (1, 1, True, 2),
        (7, 14, True, 21),
    ],
)
def test_every(interval, step, is_due, next_step):
    """G2: due at multiples, never at step 0."""
    assert Every(interval).is_due_at(step) is is_due
    assert Every(interval).following(step) == next_step


@given(st.integers(1, 50), st.integers(0, 500))
def test_next_step_is_the_first_due_step(interval, step):
    """G2: no due step lies between."""
    every = Every(interval)
    following = every.following(step)
    assert following > step
    assert every.is_due_at(following)
    assert not any(every.is_due_at(s) for s in range(step + 1, following))
