"""A task that draws from seeds by name, and a run of it that is continued beside one that is not."""

import numpy as np
import tensorflow as tf

from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.lazy import keras
from official_trainer.tasks import publish, random_streams
from tests.support.toy import ToyTask, Undropped, assert_bitwise_equal, build, experiment, weights


class SeededTask(ToyTask):
    """Dropout by name, and seeds made public."""

    def build_model(self):
        inputs = keras.Input((6,), name="features")
        return keras.Model(inputs, keras.layers.Dense(3, name="logits")(NamedDropout()(inputs)))

    def train_step(self, inputs, model, optimizer, metrics=None):
        for name in ("augment", "noise"):
            publish.histogram(name, random_streams.seed(name))
        return super().train_step(inputs, model, optimizer, metrics)

    def validation_step(self, inputs, model, metrics=None):
        logs = super().validation_step(inputs, model, metrics)
        return {**logs, "seed": random_streams.seed("augment")}

    def aggregate_logs(self, state, step_logs):
        return [*(state or []), *(tuple(seed.numpy()) for seed in step_logs["seed"])]

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        self.seeds = aggregated_logs
        return {}


class NamedDropout(keras.layers.Layer):
    def call(self, inputs, training=None):
        if not training:
            return inputs
        shape = tf.shape(inputs)
        return inputs * tf.cast(tf.random.stateless_uniform(shape, random_streams.seed("dropout")) < 0.7, tf.float32)


class SeededUndropped(Undropped, SeededTask):
    """The same without dropout: the check below would fail if nothing were dropped."""


def check_two_parts_draw_what_one_does(strategy, enable_xla, model_dir):
    """Compares weights and slots, bit by bit, after a restore into another trainer."""
    whole, first, second = (
        build(experiment(enable_xla=enable_xla), task_cls=SeededTask, strategy=strategy) for _ in range(3)
    )
    whole.run_steps(9)
    first.run_steps(5)
    first.checkpoint_state.before_save()
    CheckpointStore(model_dir, first.checkpoint, max_to_keep=1).save(5)
    second.checkpoint_state.after_restore(CheckpointStore(model_dir, second.checkpoint, max_to_keep=1).restore())
    second.run_steps(4)
    assert_bitwise_equal(weights(whole), weights(second))
    plain = build(experiment(enable_xla=enable_xla), task_cls=SeededUndropped, strategy=strategy)
    plain.run_steps(9)
    assert not np.array_equal(weights(whole)[0], weights(plain)[0])
