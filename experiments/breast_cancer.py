"""Benign or malignant: 569 tumours with 30 measurements each, in scikit-learn. `breast_cancer`."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import (
    Between,
    Config,
    DataConfig,
    ExperimentConfig,
    Fraction,
    OptimizationConfig,
    Positive,
    TaskConfig,
    TrainerConfig,
)
from official_trainer.config import optimization as opt
from official_trainer.lazy import keras, tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class TabularModel(Config):
    """Fully connected layers over standardised measurements; no layer at all is logistic regression.

    Attributes:
      hidden: units of each hidden layer.
      dropout: share of the units set to zero while training.
    """

    hidden: tuple[Positive, ...] = (32,)
    dropout: Fraction = 0.3


@dataclasses.dataclass(frozen=True, kw_only=True)
class BreastCancerConfig(TaskConfig):
    """Tumours and their classifier.

    Attributes:
      model: the classifier.
      held_out: share of the tumours kept for validation.
    """

    model: TabularModel = TabularModel()
    held_out: Annotated[float, Between(0.05, 0.95)] = 0.25


@register_task_cls(BreastCancerConfig)
class BreastCancerTask(Task):
    """Gives the log-odds that a tumour is benign."""

    def build_model(self) -> keras.Model:
        (measurements, _), _ = load_tumours(self.task_config.held_out)
        features = keras.Input([30], name="measurements")
        # Inside the model, so that an exported one takes the measurements as they are.
        x = keras.layers.Normalization(mean=measurements.mean(axis=0), variance=measurements.var(axis=0))(features)
        for units in self.task_config.model.hidden:
            x = keras.layers.Dense(units, activation="relu")(x)
            x = keras.layers.Dropout(self.task_config.model.dropout)(x)
        logit = keras.layers.Dense(1, dtype="float32", name="logit")(x)
        return keras.Model(features, keras.layers.Flatten()(logit))

    def build_inputs(self, params: DataConfig, input_context: Any = None) -> tf.data.Dataset:
        train, validation = load_tumours(self.task_config.held_out)
        return inputs.from_arrays(train if params.is_training else validation, params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return tf.nn.sigmoid_cross_entropy_with_logits(labels, model_outputs)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [
            keras.metrics.BinaryAccuracy(threshold=0.0, name="accuracy"),
            keras.metrics.AUC(from_logits=True, name="auc"),
        ]

    def predict_step(self, inputs: Any, model: keras.Model, labels: Any = None) -> dict[str, tf.Tensor]:
        logit = self.inference_step(inputs, model)
        return {"logit": logit, "probability": tf.sigmoid(logit)}  # that the tumour is benign


def load_tumours(held_out: float) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Returns (measurements, labels) for training and for validation: float32 [n, 30], float32 [n, 1], 1 is benign."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split

    measurements, labels = load_breast_cancer(return_X_y=True)
    train_x, validation_x, train_y, validation_y = train_test_split(
        measurements.astype("float32"),
        labels.astype("float32")[:, None],
        test_size=held_out,
        random_state=0,
        stratify=labels,
    )
    return (train_x, train_y), (validation_x, validation_y)


@register_config_factory("breast_cancer")
def breast_cancer() -> ExperimentConfig:
    """Tumours told apart by 30 measurements; binary, best by AUC."""
    return ExperimentConfig(
        task=BreastCancerConfig(
            train_data=DataConfig(global_batch_size=32),
            validation_data=DataConfig(global_batch_size=144),
        ),
        trainer=TrainerConfig(
            train_steps=600,
            steps_per_loop=100,
            summary_interval=50,
            checkpoint_interval=200,
            validation_interval=100,
            best_checkpoint_eval_metric="auc",
            optimizer_config=OptimizationConfig(
                optimizer=opt.OptimizerConfig(type="adamw", adamw=opt.AdamWeightDecayConfig(weight_decay_rate=0.01)),
                learning_rate=opt.LrConfig(
                    type="cosine", cosine=opt.CosineLrConfig(initial_learning_rate=3e-3, decay_steps=600)
                ),
                warmup=opt.WarmupConfig(type="linear", linear=opt.LinearWarmupConfig(warmup_steps=30)),
            ),
        ),
    )
