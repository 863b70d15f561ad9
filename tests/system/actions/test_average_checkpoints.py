"""Averaging checkpoints in runs that average often, or that end and go on: nothing else differs."""

import numpy as np
import tensorflow as tf

from official_trainer.actions.average_checkpoints import AverageCheckpointsConfig
from tests.support import toy
from tests.support.batch_norm_runs import (
    NormTask,
    PlainNormTask,
    loaded,
    parts,
    strategies,
    trained,
)


@strategies
def test_statistics_are_the_pooled_mean_and_variance(strategy, model_dir):
    """G15: over three batches of the training data as one; each layer normalises by the batch its replica sees."""
    trainer, run = trained(strategy, model_dir, PlainNormTask)
    before = [v.numpy() for v in trainer.model.variables]
    action = AverageCheckpointsConfig(last=1, recalibrate_batch_norm=3, evaluate=False).build()
    action.on_start(run)
    action.on_step(run)
    names = [variable.name for variable in trainer.model.variables]
    found = dict(zip(names, loaded(f"{model_dir}/averaged", 12, PlainNormTask), strict=True))
    for variable, value in zip(trainer.model.variables, before, strict=True):
        if "moving" not in variable.name:
            assert found[variable.name].tobytes() == value.tobytes()
    weights = {name: value.astype(np.float64) for name, value in found.items()}
    examples = toy.FEATURES[:30].astype(np.float64)
    seen = []
    for shard in np.split(examples, 6 if strategy == "mirrored2" else 3):
        normalised = (shard - shard.mean(0)) / np.sqrt(shard.var(0) + 1e-3)
        normalised = normalised * weights["first/gamma:0"] + weights["first/beta:0"]
        seen.append(np.tanh(normalised @ weights["dense/kernel:0"] + weights["dense/bias:0"]))
    for layer, pooled in (("first", examples), ("second", np.concatenate(seen))):
        np.testing.assert_allclose(found[f"{layer}/moving_mean:0"], pooled.mean(0), rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(found[f"{layer}/moving_variance:0"], pooled.var(0), rtol=2e-5)


class UnseededTask(NormTask):
    """Shuffles in a way of its own, with a seed that TensorFlow draws."""

    def build_inputs(self, params, input_context=None):
        size = input_context.get_per_replica_batch_size(params.global_batch_size)
        dataset = toy.examples(toy.NUM_EXAMPLES)
        return dataset.shuffle(50).repeat().batch(size) if params.is_training else dataset.batch(size)


def test_the_data_of_the_run_is_not_touched(model_dir):
    """G15: neither the iterator that trains nor what TensorFlow draws next; and the batches are always the same."""
    trainer, run = trained("off", model_dir, UnseededTask, steps=4)
    other, _ = trained("off", f"{model_dir}-other", UnseededTask, steps=4)
    tf.random.set_seed(5)
    drawn = tf.random.uniform([3]).numpy(), tf.random.uniform([3]).numpy()
    action = AverageCheckpointsConfig(last=2, recalibrate_batch_norm=2).build()
    tf.random.set_seed(5)
    first = tf.random.uniform([3]).numpy()
    epoch, batch = trainer.train_iterator.epoch(4), next(trainer.train_iterator.first_batches())
    action.on_start(run)
    action.on_step(run)
    np.testing.assert_array_equal([first, tf.random.uniform([3]).numpy()], drawn)
    trainer.train(3)
    other.train(3)
    toy.assert_bitwise_equal(parts(trainer), parts(other))
    assert trainer.train_iterator.epoch(4) == epoch
    toy.assert_bitwise_equal(next(trainer.train_iterator.first_batches()), batch)
