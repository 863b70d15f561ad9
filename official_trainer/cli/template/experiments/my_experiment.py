"""Which of three grape varieties a wine is made of, from 13 measurements (178 wines, in scikit-learn).

An experiment is three things, all in this file: a config (what can be set), a task (model, data, loss, metrics) and a
factory (the values it starts from).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import Config, DataConfig, ExperimentConfig, Fraction, Positive, TaskConfig, TrainerConfig
from official_trainer.config import optimization as opt
from official_trainer.lazy import keras, tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class WineModel(Config):
    """A multilayer perceptron.

    Attributes:
      hidden: units of each hidden layer.
      dropout: share of the units set to zero while training.
    """

    hidden: tuple[Positive, ...] = (32,)
    dropout: Fraction = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class WineConfig(TaskConfig):
    """Wines and their classifier.

    Attributes:
      model: the classifier.
      held_out: share of the wines kept for validation.
    """

    model: WineModel = WineModel()
    held_out: Fraction = 0.3


@register_task_cls(WineConfig)
class WineTask(Task):
    """Tells three grape varieties apart."""

    def build_model(self) -> keras.Model:
        params = self.task_config.model
        features = keras.Input([13], name="measurements")
        x = features
        for units in params.hidden:
            x = keras.layers.Dense(units, activation="relu")(x)
            x = keras.layers.Dropout(params.dropout)(x)
        return keras.Model(features, keras.layers.Dense(3, name="logits")(x))

    def build_inputs(self, params: DataConfig, input_context: Any = None) -> tf.data.Dataset:
        train, validation = load_wines(self.task_config.held_out)
        return inputs.from_arrays(train if params.is_training else validation, params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def predict_step(self, inputs: Any, model: keras.Model, labels: Any = None) -> dict[str, tf.Tensor]:
        logits = self.inference_step(inputs, model)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}


def load_wines(held_out: float) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Returns (measurements, labels) for training and for validation: float32 [wines, 13], int64 [wines]."""
    from sklearn.datasets import load_wine
    from sklearn.model_selection import train_test_split

    measurements, labels = load_wine(return_X_y=True)
    train_x, validation_x, train_y, validation_y = train_test_split(
        measurements.astype("float32"), labels, test_size=held_out, random_state=0, stratify=labels
    )
    mean, deviation = train_x.mean(axis=0), train_x.std(axis=0)
    return ((train_x - mean) / deviation, train_y), ((validation_x - mean) / deviation, validation_y)


@register_config_factory("my_experiment")
def my_experiment() -> ExperimentConfig:
    """Three grape varieties told apart by 13 measurements."""
    return ExperimentConfig(
        task=WineConfig(),
        trainer=TrainerConfig(
            train_steps=200,
            steps_per_loop=50,
            summary_interval=50,
            checkpoint_interval=100,
            validation_interval=50,
            best_checkpoint_eval_metric="accuracy",
            optimizer_config=opt.OptimizationConfig(
                optimizer=opt.OptimizerConfig(type="adam"),
                learning_rate=opt.LrConfig(type="constant", constant=opt.ConstantLrConfig(learning_rate=0.01)),
            ),
        ),
    )
