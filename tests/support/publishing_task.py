"""A task that publishes, and a run of it beside one whose values are not wanted."""

import tensorflow as tf

from official_trainer.config.optimization import EMAConfig
from official_trainer.lazy import keras
from official_trainer.tasks import publish
from tests.support.toy import ToyTask, assert_bitwise_equal, build, experiment, weights

STEP_BY_STEP = {"train_tf_while_loop": False}
EAGER = {"train_tf_while_loop": False, "train_tf_function": False}


class PublishingTask(ToyTask):
    """Publishes of each kind, from the step and from inside the model."""

    def build_model(self):
        inputs = keras.Input((6,), name="features")
        hidden = Publishing()(keras.layers.Dense(8, "tanh")(inputs))
        hidden = keras.layers.Dropout(0.3)(hidden)
        return keras.Model(inputs, keras.layers.Dense(3, name="logits")(hidden))

    def train_step(self, inputs, model, optimizer, metrics=None):
        features, labels = inputs
        publish.scalar("mean_label", tf.reduce_mean(tf.cast(labels, tf.float32)))
        publish.histogram("features", features)
        publish.image("pictures", tf.reshape(features, [-1, 2, 3, 1]))
        return super().train_step(inputs, model, optimizer, metrics)


class Publishing(keras.layers.Layer):
    def call(self, inputs):
        publish.histogram("hidden", inputs)
        return inputs


def everything(trainer):
    """Returns all that steps change: weights, slots, averages, metrics, the step."""
    metrics = [v for metric in [*trainer.train_metrics, trainer.train_loss] for v in metric.variables]
    return [*weights(trainer), *[v.numpy() for v in [*metrics, *trainer.context.average.values, trainer.global_step]]]


def check_publishing_changes_nothing(strategy, options):
    """Compares every bit that steps change."""
    config = experiment(ema=EMAConfig(average_decay=0.9), **options)
    plain, publishing = (build(config, task_cls=PublishingTask, strategy=strategy) for _ in range(2))
    plain.run_steps(9)
    for num_steps, is_wanted in ((1, True), (3, False), (1, True), (1, True), (3, False)):
        assert publishing.run_steps(num_steps, publish=is_wanted) == num_steps
        assert (publishing.windows.published is not None) == is_wanted
    assert_bitwise_equal(everything(plain), everything(publishing))
