"""Steps whose batch is cut into micro-batches, beside steps that take it whole."""

import numpy as np
import tensorflow as tf

from official_trainer.lazy import keras
from tests.support.toy import ToyTask, build, experiment, weights

BATCH = 24


class Plain(ToyTask):
    """Without dropout, so that what is learned does not depend on how a batch is cut."""

    def build_model(self):
        inputs = keras.Input((6,), name="features")
        hidden = keras.layers.Dense(8, "tanh")(inputs)
        return keras.Model(inputs, keras.layers.Dense(3, name="logits")(hidden))


def trainer_of(count, strategy="off", task_cls=Plain, **options):
    options = {"batch": BATCH, **options}
    return build(experiment(gradient_accumulation_steps=count, **options), task_cls=task_cls, strategy=strategy)


def losses(trainer, steps=6):
    return [float(trainer.train(1)["batch_loss"]) for _ in range(steps)]


def curve(trainer):
    """Returns the losses of a few steps, then weights and slots, then the accuracy over three steps more."""
    return losses(trainer), weights(trainer), float(trainer.train(3)["accuracy"])


def assert_same_curve(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    for a, b in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert found[2:] == expected[2:]


def assert_trains_alike(one, other):
    assert_same_curve(curve(other), curve(one))


class Custom(Plain):
    """A step of one's own, with other words for the same."""

    def train_step(self, inputs, model, optimizer, metrics=None):
        features, labels = inputs
        with tf.GradientTape() as tape:
            per_example = self.build_losses(labels, model(features, training=True))
            if tf.reduce_max(features) > 1e9:  # only AutoGraph can make anything of it
                per_example = per_example * 2
            loss = tf.reduce_mean(per_example) / tf.distribute.get_strategy().num_replicas_in_sync
        optimizer.minimize(loss, model.trainable_variables, tape=tape)
        self.process_metrics(metrics, labels, model(features))
        return {self.loss: tf.reduce_mean(per_example)}
