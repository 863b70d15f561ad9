"""Small models of tf_keras, whose formats are tried: two inputs, and a recurrent one."""

import dataclasses

import numpy as np

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import (
    DataConfig,
    ExperimentConfig,
    RuntimeConfig,
    TaskConfig,
    TrainerConfig,
    opt,
)
from official_trainer.lazy import keras, tf

DATA = {"train_data": DataConfig(global_batch_size=16), "validation_data": DataConfig(global_batch_size=20)}


def experiment(task):
    """Returns four steps of a task, on the CPU."""
    trainer = TrainerConfig(
        optimizer_config=opt.adam(0.01), train_steps=4, validation_interval=4, checkpoint_interval=4
    )
    return ExperimentConfig(task=task, trainer=trainer, runtime=RuntimeConfig(distribution_strategy="one_device"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairConfig(TaskConfig):
    """Two inputs."""

    noise: float = 0.0
    dtype: str = "float32"
    scale: float = 1.0
    signature: bool = False


@register_task_cls(PairConfig)
class Pair(Task):
    """Which of two groups of numbers has the larger sum."""

    def build_model(self):
        left, right = keras.Input([4], name="left"), keras.Input([3], name="right")
        joined = keras.layers.Concatenate()([keras.layers.Dense(8, "relu")(left), keras.layers.Dense(8)(right)])
        return keras.Model({"left": left, "right": right}, keras.layers.Dense(2, name="side")(joined))

    def build_inputs(self, params, input_context=None):
        draws = np.random.RandomState(0)
        left, right = (draws.randn(100, size).astype(self.task_config.dtype) for size in (4, 3))
        labels = (left.sum(1) > right.sum(1)).astype("int64")
        if not params.is_training:
            left, right = left * self.task_config.scale, right * self.task_config.scale
        return inputs.from_arrays(({"left": left, "right": right}, labels), params, input_context)

    def predict_step(self, inputs, model, labels=None):
        outputs = self.inference_step(inputs, model)
        noise = self.task_config.noise
        return {"side": outputs + tf.random.normal(tf.shape(outputs)) * noise if noise else outputs}

    def build_signatures(self, model):
        @tf.function(input_signature=[tf.TensorSpec([None, 7], tf.float32, name="numbers")])
        def add(numbers):
            return {"sum": tf.reduce_sum(model({"left": numbers[:, :4], "right": numbers[:, 4:]}), axis=1)}

        return {"serving_default": add} if self.task_config.signature else super().build_signatures(model)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeriesConfig(TaskConfig):
    """A series of numbers."""

    unroll: bool = False
    nested: bool = False
    words: bool = False
    stateful: bool = False


@register_task_cls(SeriesConfig)
class Series(Task):
    """The sum of a series, by an LSTM."""

    def build_model(self):
        if self.task_config.words:  # as a number of each
            series = keras.Input([6, 2], name="series")
            words = keras.layers.StringLookup(vocabulary=["0", "1"], name="words")(tf.strings.as_string(series))
            total = keras.layers.Dense(1, name="total")(keras.layers.Flatten()(tf.cast(words, tf.float32)))
            return keras.Model(series, total)
        is_stateful = self.task_config.stateful
        series = keras.Input([6, 2], batch_size=20 if is_stateful else None, name="series")
        state = keras.layers.LSTM(8, unroll=self.task_config.unroll, stateful=is_stateful)(series)
        if self.task_config.nested:  # as in the head of Model Garden's RetinaNet

            class Head(keras.layers.Layer):
                def __init__(self):
                    super().__init__()
                    self.levels = [[keras.layers.Dense(8)]]

                def call(self, inputs):
                    return self.levels[0][0](inputs)

            state = Head()(state)
        return keras.Model(series, keras.layers.Dense(1, name="total")(state))

    def build_inputs(self, params, input_context=None):
        series = np.random.RandomState(0).randn(100, 6, 2).astype("float32")
        return inputs.from_arrays((series, series.sum((1, 2))[:, None]), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.mean_squared_error(labels, model_outputs)


@register_config_factory("formats_pair")
def pair():
    """Two inputs, tf_keras."""
    return experiment(PairConfig(**DATA))


@register_config_factory("formats_series")
def series():
    """An LSTM, tf_keras."""
    return experiment(SeriesConfig(**DATA))
