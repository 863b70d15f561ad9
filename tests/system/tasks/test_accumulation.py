"""Gradient accumulation on several replicas and under XLA."""

import pytest

from tests.support.accumulation import Custom, assert_trains_alike, trainer_of
from tests.support.cases import cases


def test_micro_batches_under_xla():
    """G14: whole windows compiled, the same curve as without."""
    assert_trains_alike(trainer_of(1, enable_xla=True), trainer_of(3, enable_xla=True))


def test_steps_of_ones_own_accumulate_on_replicas():
    """G14: any step that calls the optimizer once, `minimize` too."""
    assert_trains_alike(trainer_of(1, "mirrored2", Custom), trainer_of(4, "mirrored2", Custom))


@pytest.mark.parametrize("count", cases([2, 3, 4], 3))
def test_micro_batches_of_replicas_train_like_one_batch(count, monkeypatch):
    """G14: the same curve and metrics as whole batches; gradients are summed over replicas once for each update."""
    calls, trainer = [], trainer_of(count, "mirrored2")
    batch_reduce = trainer.strategy.extended._batch_reduce_to

    def counted(*args, **kwargs):
        calls.append(1)
        return batch_reduce(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.strategy.extended, "_batch_reduce_to", counted)
        assert_trains_alike(trainer, trainer_of(1, "mirrored2"))
    assert len(calls) == 2, "one for each of the two trainers"
