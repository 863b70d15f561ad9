"""The order of examples that are read in groups: few groups at a time, each example once."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.inputs.grouped import GroupedOrder

groups = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@given(groups=groups, window=st.integers(1, 200), seed=st.integers(0, 2**40), epoch=st.integers(0, 5))
def test_an_epoch_is_a_permutation(groups, window, seed, epoch):
    """N41: of all examples, whatever their groups."""
    order = GroupedOrder(groups, window, seed)
    count = sum(groups)
    assert sorted(order.indices(np.arange(epoch * count, (epoch + 1) * count))) == list(range(count))


@settings(max_examples=40)
@given(groups=groups, window=st.integers(1, 200), first=st.integers(0, 1000), count=st.integers(1, 100))
def test_any_part_of_the_order_is_that_of_the_whole(groups, window, first, count):
    """N42: also over the ends of epochs."""
    whole = GroupedOrder(groups, window, 7).indices(np.arange(first + count))
    part = GroupedOrder(groups, window, 7).indices(np.arange(first, first + count))
    np.testing.assert_array_equal(part, whole[first:])


def test_few_groups_are_needed_at_a_time():
    """N41: examples change places among at least `window` of them, and no more groups than that takes."""
    groups = [100] * 50
    order = GroupedOrder(groups, 300, 3).indices(np.arange(5000))
    for window in order[:3000].reshape(10, 300):
        assert len({index // 100 for index in window}) == 3
        assert (np.diff(window) != 1).mean() > 0.9


def test_epochs_and_seeds_differ():
    """N41"""
    order = GroupedOrder([5] * 8, 10, 3).indices(np.arange(80))
    assert (order[:40] != order[40:]).any()
    assert (order[:40] != GroupedOrder([5] * 8, 10, 4).indices(np.arange(40))).any()
