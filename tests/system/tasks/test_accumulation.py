"""Gradient accumulation on several replicas and under XLA."""

from tests.support.accumulating import Custom, assert_trains_alike, trainer_of


def test_micro_batches_under_xla():
    """G14: whole windows compiled, the same curve as without."""
    assert_trains_alike(trainer_of(1, enable_xla=True), trainer_of(3, enable_xla=True))


def test_steps_of_ones_own_accumulate_on_replicas():
    """G14: any step that calls the optimizer once, `minimize` too."""
    assert_trains_alike(trainer_of(1, "mirrored2", Custom), trainer_of(4, "mirrored2", Custom))
