"""The policy: which steps are kept, and which are best, as functions of what is there."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from official_trainer.checkpoints.retention import Candidate, Retention

SEVEN = (10, 20, 30, 40, 50, 60, 70)


@pytest.mark.parametrize(
    ("newest", "every_steps", "committed", "protected", "kept"),
    [
        (2, None, SEVEN, (), (60, 70)),
        (None, None, SEVEN, (), SEVEN),
        (9, None, SEVEN, (), SEVEN),
        (1, 30, SEVEN, (), (30, 60, 70)),
        (1, 30, (0, 15, 30), (), (30,)),  # nothing is due at step 0
        (2, 20, SEVEN, (), (20, 40, 60, 70)),
        (1, None, SEVEN, (10, 50), (10, 50, 70)),  # protected ones do not count in place of newest ones
        (2, None, SEVEN, (70,), (60, 70)),
        (1, None, SEVEN, (15,), (70,)),  # what is not there is not kept
        (1, 1, SEVEN, (), SEVEN),
        (3, 50, (), (10,), ()),
        (2, None, (70, 10, 40), (), (40, 70)),
    ],
)
def test_what_is_kept(newest, every_steps, committed, protected, kept):
    """C6: newest, at every so many steps, protected."""
    assert Retention(max_to_keep=newest, keep_every_n_steps=every_steps).kept_steps(committed, protected) == kept


steps = st.sets(st.integers(0, 200))
policies = st.builds(
    Retention, max_to_keep=st.none() | st.integers(1, 20), keep_every_n_steps=st.none() | st.integers(1, 50)
)  # fmt: skip


@given(policies, steps, steps)
def test_retention_holds_its_promises(policy, committed, protected):
    """C6: nothing is invented, nothing that is needed is given up, the newest stays, and a second look agrees."""
    kept = policy.kept_steps(committed, protected)
    assert set(kept) <= committed
    assert protected & committed <= set(kept)
    assert not committed or max(committed) in kept
    assert policy.kept_steps(kept, protected) == kept
    limit = math.inf if policy.max_to_keep is None else policy.max_to_keep
    others = [
        s
        for s in kept
        if s not in protected and not (policy.keep_every_n_steps and s and s % policy.keep_every_n_steps == 0)
    ]
    assert len(others) <= limit


@given(policies, steps, st.lists(st.integers(0, 200), unique=True))
def test_what_is_deleted_early_would_have_been_deleted_later(policy, committed, later):
    """C6: looking after each save, in rising order, keeps what one look at the end keeps."""
    rising = sorted(committed | set(later))
    there = ()
    for step in rising:
        there = policy.kept_steps((*there, step))
    assert there == policy.kept_steps(rising)


def test_a_rule_ranks_by_several_numbers():
    """B13: strictly; of equal ones the earlier, and none with a NaN; in any order, and whatever is kept already."""

    def is_better(numbers, than):
        return (numbers["right"], -numbers["cost"]) > (than["right"], -than["cost"])

    values = {10: (0.5, 3.0), 20: (0.5, 2.0), 30: (math.nan, 0.0), 40: (0.5, 2.0), 50: (0.4, 1.0)}
    saved = [Candidate(name=str(n), step=n, value={"right": r, "cost": c}) for n, (r, c) in values.items()]
    for order in itertools.permutations(saved):
        policy = Retention(monitor="quality", direction=is_better)
        assert [one.step for one in policy.kept(order)] == [20, 40, 10, 50, 30]
    best = Retention(monitor="quality", direction=is_better, max_to_keep=1, save_best_only=True)
    taken, kept = [], []
    for new in saved:
        if best.takes(new, kept):
            taken.append(new.step)
            kept = best.kept([*kept, new])
    assert taken == [10, 20]
