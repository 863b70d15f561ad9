"""Two tasks on handwritten digits with a shared trunk: which digit it is, and whether it is odd. `digits_tasks`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments.digits import load_digits
from official_trainer import MultiTask, Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import (
    Config,
    DataConfig,
    Fraction,
    MultiTaskConfig,
    MultiTaskExperimentConfig,
    MultiTaskTrainerConfig,
    OptimizationConfig,
    Positive,
    TaskConfig,
    TaskRoutine,
    TaskSamplingConfig,
)
from official_trainer.config import optimization as opt
from official_trainer.lazy import keras, tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitConfig(TaskConfig):
    """Says which digit an image shows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParityConfig(TaskConfig):
    """Says whether an image shows an odd digit."""


@register_task_cls(DigitConfig)
class DigitTask(Task):
    """Ten classes."""

    def build_inputs(self, params: DataConfig, input_context: Any = None) -> tf.data.Dataset:
        return inputs.from_arrays(examples(params), params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def predict_step(self, inputs: Any, model: keras.Model, labels: Any = None) -> dict[str, tf.Tensor]:
        logits = self.inference_step(inputs, model)
        return {"digit": logits, "probabilities": tf.nn.softmax(logits)}


@register_task_cls(ParityConfig)
class ParityTask(Task):
    """Even or odd."""

    def build_inputs(self, params: DataConfig, input_context: Any = None) -> tf.data.Dataset:
        images, labels = examples(params)
        return inputs.from_arrays((images, (labels % 2).reshape(-1, 1)), params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return keras.losses.binary_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)]

    def predict_step(self, inputs: Any, model: keras.Model, labels: Any = None) -> dict[str, tf.Tensor]:
        logit = self.inference_step(inputs, model)
        return {"parity": logit, "probability": tf.sigmoid(logit)}  # that the digit is odd


def examples(params: DataConfig) -> Any:
    train, validation = load_digits(0.2)
    return train if params.is_training else validation


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrunkConfig(Config):
    """What both tasks share.

    Attributes:
      hidden: units of the shared layer.
      dropout: share of them set to zero while training.
    """

    hidden: Positive = 64
    dropout: Fraction = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitsTasksConfig(MultiTaskConfig):
    """Both tasks and their model.

    Attributes:
      model: the shared trunk.
    """

    model: TrunkConfig = TrunkConfig()


@register_task_cls(DigitsTasksConfig)
class DigitsTasks(MultiTask):
    """A shared trunk with a head for each task."""

    def build_models(self) -> Mapping[str, keras.Model]:
        params = self.task_config.model
        image = keras.Input([8, 8, 1], name="image")
        x = keras.layers.Dense(params.hidden, activation="relu", name="trunk")(keras.layers.Flatten()(image))
        x = keras.layers.Dropout(params.dropout)(x)
        return {
            "digit": keras.Model(image, keras.layers.Dense(10, dtype="float32", name="digit")(x)),
            "parity": keras.Model(image, keras.layers.Dense(1, dtype="float32", name="parity")(x)),
        }


@register_config_factory("digits_tasks")
def digits_tasks() -> MultiTaskExperimentConfig:
    """Handwritten digits, two tasks that share a trunk; three steps of four are for the digit."""
    train, validation = DataConfig(global_batch_size=64), DataConfig(global_batch_size=360)
    return MultiTaskExperimentConfig(
        task=DigitsTasksConfig(
            task_routines=(
                TaskRoutine(
                    task_name="digit",
                    task_config=DigitConfig(train_data=train, validation_data=validation),
                    task_weight=3.0,
                ),
                TaskRoutine(task_name="parity", task_config=ParityConfig(train_data=train, validation_data=validation)),
            ),
        ),
        trainer=MultiTaskTrainerConfig(
            trainer_type="interleaving",
            task_sampler=TaskSamplingConfig(type="proportional"),
            train_steps=2000,
            steps_per_loop=200,
            summary_interval=100,
            checkpoint_interval=400,
            validation_interval=200,
            best_checkpoint_eval_metric="digit|accuracy",
            optimizer_config=OptimizationConfig(
                optimizer=opt.OptimizerConfig(type="adam"),
                learning_rate=opt.LrConfig(
                    type="cosine", cosine=opt.CosineLrConfig(initial_learning_rate=3e-3, decay_steps=2000)
                ),
                warmup=opt.WarmupConfig(type="linear", linear=opt.LinearWarmupConfig(warmup_steps=50)),
            ),
        ),
    )
