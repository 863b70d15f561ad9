"""Waves fitted by a small network."""

import dataclasses
import functools

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import DataConfig, ExperimentConfig, TaskConfig, TrainerConfig, opt
from official_trainer.lazy import keras


@dataclasses.dataclass(frozen=True, kw_only=True)
class SineConfig(TaskConfig):
    """A wave.

    Attributes:
      frequency: periods between -1 and 1.
    """

    frequency: float = 1.0


@register_task_cls(SineConfig)
class SineTask(Task):
    """Fits a wave."""

    def build_model(self):
        x = keras.Input([1])
        return keras.Model(x, keras.layers.Dense(1)(keras.layers.Dense(8, "tanh")(x)))

    def build_inputs(self, params, input_context=None):
        import numpy as np

        x = np.linspace(-1, 1, 64, dtype="float32")[:, None]
        return inputs.from_arrays((x, np.sin(np.pi * self.task_config.frequency * x)), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.mean_squared_error(labels, model_outputs)

    def build_metrics(self, training=True):
        return [keras.metrics.MeanSquaredError("error")]


def wave(frequency):
    """A wave fitted by a small network."""
    return ExperimentConfig(
        task=SineConfig(
            frequency=frequency,
            train_data=DataConfig(global_batch_size=16),
            validation_data=DataConfig(global_batch_size=32),
        ),
        trainer=TrainerConfig(
            train_steps=8,
            steps_per_loop=4,
            checkpoint_interval=4,
            validation_interval=8,
            best_checkpoint_eval_metric="error",
            best_checkpoint_metric_comp="lower",
            optimizer_config=opt.sgd(0.1),
        ),
    )


register_config_factory("sine_1")(functools.partial(wave, 1.0))
register_config_factory("sine_2")(functools.partial(wave, 2.0))
