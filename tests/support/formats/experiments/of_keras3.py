"""A small model of Keras 3 with two inputs, whose formats are tried."""

import dataclasses

import keras
import numpy as np
from experiments.of_keras2 import DATA, experiment

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import TaskConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair3Config(TaskConfig):
    """Two inputs."""


@register_task_cls(Pair3Config)
class Pair3(Task):
    """Which of a series and a number is larger, by a GRU and a dense layer."""

    def build_model(self):
        left, right = keras.Input([5, 2], name="left"), keras.Input([3], name="right")
        joined = keras.layers.Concatenate()([keras.layers.GRU(4)(left), keras.layers.Dense(8)(right)])
        return keras.Model({"left": left, "right": right}, keras.layers.Dense(2, name="side")(joined))

    def build_inputs(self, params, input_context=None):
        draws = np.random.RandomState(0)
        left, right = draws.randn(100, 5, 2).astype("float32"), draws.randn(100, 3).astype("float32")
        labels = (left.sum((1, 2)) > right.sum(1)).astype("int64")
        return inputs.from_arrays(({"left": left, "right": right}, labels), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)


@register_config_factory("formats_pair3")
def pair3():
    """Two inputs, Keras 3."""
    return experiment(Pair3Config(**DATA))
