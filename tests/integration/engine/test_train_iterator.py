"""The position in the training data, where something else than the next batch comes next."""

import pytest

from official_trainer.engine.train_iterator import DataPosition


@pytest.mark.parametrize(
    ("step", "before", "after", "start"), [(6, 10, 20, 3), (6, 20, 10, 12), (5, 10, 20, 3), (7, 10, 3, 24)]
)
def test_positions_are_rounded_up_so_that_nothing_is_seen_twice(step, before, after, start):
    position = DataPosition()
    position.change_batch_size(step, before, after)
    assert position.start_step(step) == start
    assert position.start_step(step + 1) == start + 1


def test_an_epoch_begins_with_the_first_batch_though_batches_were_left_out():
    """T12: those count in the epoch in which they were left out alone."""
    position = DataPosition()
    position.skipped_steps.assign(2)
    assert position.start_step(10) == 12
    position.begin_epoch(10)
    assert [position.start_step(step) for step in (10, 11)] == [0, 1]
