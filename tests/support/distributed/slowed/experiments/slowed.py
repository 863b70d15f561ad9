"""`slowed`: steps of 40 ms whose input, computing or saving is slower in one process, by SLOWED=phase:seconds.

With COMPUTE=work the step computes for that long; otherwise it waits, as for an accelerator.
"""

from __future__ import annotations

import os
import time

import numpy as np

from official_trainer.config import ExperimentConfig, TrainerConfig, opt
from official_trainer.lazy import keras, tf
from official_trainer.tasks import Task, register_config_factory

STEP_SECONDS = 0.04


def slowed_seconds(phase: str) -> float:
    """How much longer this process takes in a phase of each step."""
    named, _, seconds = os.environ.get("SLOWED", ":0").partition(":")
    return float(seconds) if named == phase else 0.0


def pause(seconds: float) -> None:
    """Takes so long, at work or waiting."""
    if os.environ.get("COMPUTE") != "work":
        time.sleep(seconds)
        return
    ones = np.ones([64, 64])
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        ones @ ones


def computed(x: np.ndarray) -> np.ndarray:
    pause(STEP_SECONDS + slowed_seconds("compute"))
    return x


def read(x: np.ndarray) -> np.ndarray:
    time.sleep(slowed_seconds("input"))
    return x


class SlowedTask(Task):
    """A line through points."""

    def build_model(self) -> keras.Model:
        return keras.Sequential([keras.Input([4]), keras.layers.Dense(64), keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        count = input_context.get_per_replica_batch_size(params.global_batch_size)
        data = tf.data.Dataset.from_tensors(tf.ones([count, 4])).repeat()
        data = data.map(
            lambda x: (tf.ensure_shape(tf.numpy_function(read, [x], tf.float32), x.shape), tf.ones([count, 1]))
        )
        return data if slowed_seconds("input") else data.prefetch(2)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        waited = tf.ensure_shape(tf.numpy_function(computed, [labels], tf.float32), labels.shape)
        return tf.square(waited - model_outputs)[:, 0]


@register_config_factory("slowed", task_cls=SlowedTask)
def slowed() -> ExperimentConfig:
    return ExperimentConfig(trainer=TrainerConfig(train_steps=100_000, optimizer_config=opt.adam(0.001)))
