"""How diabetes progresses within a year, from 10 measurements of 442 patients, in scikit-learn. `diabetes`."""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated, Any

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import (
    Between,
    Config,
    DataConfig,
    ExperimentConfig,
    Fraction,
    NonNegativeFloat,
    OptimizationConfig,
    Positive,
    TaskConfig,
    TrainerConfig,
)
from official_trainer.config import optimization as opt
from official_trainer.lazy import keras, tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionModel(Config):
    """Fully connected layers; no layer at all is linear regression.

    Attributes:
      hidden: units of each hidden layer.
      dropout: share of the units set to zero while training.
      l2: weight of the squared norm of the layers' kernels in the loss.
    """

    hidden: tuple[Positive, ...] = (32,)
    dropout: Fraction = 0.2
    l2: NonNegativeFloat = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiabetesConfig(TaskConfig):
    """Patients and their regression.

    Attributes:
      model: the regression.
      held_out: share of the patients kept for validation.
    """

    model: RegressionModel = RegressionModel()
    held_out: Annotated[float, Between(0.05, 0.95)] = 0.25


@register_task_cls(DiabetesConfig)
class DiabetesTask(Task):
    """Predicts the progression, in the unit of the data; learns it in standard deviations."""

    @functools.cached_property
    def patients(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        return load_patients(self.task_config.held_out)

    def build_model(self) -> keras.Model:
        params = self.task_config.model
        (measurements, targets), _ = self.patients
        features = keras.Input([10], name="measurements")
        x = keras.layers.Normalization(mean=measurements.mean(axis=0), variance=measurements.var(axis=0))(features)
        for units in params.hidden:
            regularizer = keras.regularizers.L2(params.l2)  # the engine adds what layers add to the loss
            x = keras.layers.Dense(units, activation="relu", kernel_regularizer=regularizer)(x)
            x = keras.layers.Dropout(params.dropout)(x)
        standardised = keras.layers.Dense(1, dtype="float32")(x)
        progression = keras.layers.Rescaling(targets.std(), targets.mean(), dtype="float32", name="progression")
        return keras.Model(features, progression(standardised))

    def build_inputs(self, params: DataConfig, input_context: Any = None) -> tf.data.Dataset:
        train, validation = self.patients
        return inputs.from_arrays(train if params.is_training else validation, params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        (_, targets), _ = self.patients
        return keras.losses.mean_squared_error(labels, model_outputs) / targets.var()

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.MeanAbsoluteError(name="mae")]


def load_patients(held_out: float) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Returns (measurements, progression) for training and for validation: float32 [n, 10], float32 [n, 1]."""
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import train_test_split

    measurements, targets = load_diabetes(return_X_y=True, scaled=False)
    train_x, validation_x, train_y, validation_y = train_test_split(
        measurements.astype("float32"), targets.astype("float32")[:, None], test_size=held_out, random_state=0
    )
    return (train_x, train_y), (validation_x, validation_y)


@register_config_factory("diabetes")
def diabetes() -> ExperimentConfig:
    """Progression of diabetes from 10 measurements; regression, best by mean absolute error."""
    return ExperimentConfig(
        task=DiabetesConfig(
            train_data=DataConfig(global_batch_size=32),
            validation_data=DataConfig(global_batch_size=112),
        ),
        trainer=TrainerConfig(
            train_steps=600,
            steps_per_loop=100,
            summary_interval=50,
            checkpoint_interval=200,
            validation_interval=50,
            best_checkpoint_eval_metric="mae",
            best_checkpoint_metric_comp="lower",
            optimizer_config=OptimizationConfig(
                optimizer=opt.OptimizerConfig(type="adam"),
                learning_rate=opt.LrConfig(
                    type="cosine", cosine=opt.CosineLrConfig(initial_learning_rate=3e-3, decay_steps=600)
                ),
                warmup=opt.WarmupConfig(type="linear", linear=opt.LinearWarmupConfig(warmup_steps=30)),
            ),
        ),
    )
