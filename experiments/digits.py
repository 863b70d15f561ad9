"""Handwritten digits: 1,797 images of 8 by 8 pixels, in scikit-learn. `digits_cnn` and `digits_mlp`."""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated, Any, Literal

from official_trainer import Task, inputs, publish, register_config_factory, register_task_cls
from official_trainer.config import (
    Between,
    Config,
    DataConfig,
    ExperimentConfig,
    Fraction,
    OneOf,
    OptimizationConfig,
    Positive,
    TaskConfig,
    TrainerConfig,
)
from official_trainer.config import optimization as opt
from official_trainer.lazy import keras, tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLPConfig(Config):
    """Fully connected layers.

    Attributes:
      hidden: units of each hidden layer.
      dropout: share of the units set to zero while training.
    """

    hidden: tuple[Positive, ...] = (64,)
    dropout: Fraction = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class CNNConfig(Config):
    """Convolutions of 3 by 3, then one fully connected layer.

    Attributes:
      filters: channels of each convolution; the last one is followed by pooling.
      hidden: units of the fully connected layer.
      dropout: share of the features set to zero while training.
    """

    filters: tuple[Positive, ...] = (32, 64)
    hidden: Positive = 128
    dropout: Fraction = 0.4


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitsModel(OneOf):
    """Which network reads the digits.

    Attributes:
      type: the network.
      mlp: fully connected layers.
      cnn: convolutions.
    """

    type: Literal["mlp", "cnn"] | None = "cnn"
    mlp: MLPConfig = MLPConfig()
    cnn: CNNConfig = CNNConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitsConfig(TaskConfig):
    """Digits and their classifier.

    Attributes:
      model: the classifier.
      held_out: share of the images kept for validation.
    """

    model: DigitsModel = DigitsModel()
    held_out: Annotated[float, Between(0.05, 0.95)] = 0.2


@register_task_cls(DigitsConfig)
class DigitsTask(Task):
    """Says which digit an image shows."""

    def build_model(self) -> keras.Model:
        section = self.task_config.model
        params = section.get()
        image = keras.Input([8, 8, 1], name="image")
        x = convolutions(image, params) if section.type == "cnn" else dense_layers(image, params)
        x = keras.layers.Dropout(params.dropout)(x)
        return keras.Model(image, keras.layers.Dense(10, dtype="float32", name="logits")(x))

    def build_inputs(self, params: DataConfig, input_context: Any = None) -> tf.data.Dataset:
        train, validation = load_digits(self.task_config.held_out)
        return inputs.from_arrays(train if params.is_training else validation, params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        publish.histogram("logits", model_outputs)  # seen by the action publish_intermediates, if a config has it
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def predict_step(self, inputs: Any, model: keras.Model, labels: Any = None) -> dict[str, tf.Tensor]:
        logits = self.inference_step(inputs, model)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    def build_contract(self, model: keras.Model) -> dict[str, Any]:
        return {
            "labels": {"probabilities": list("0123456789")},
            "values": {"image": "darkness of pixels, from 0 to 1"},
            "preprocessing": "outside: pixels of scikit-learn's load_digits, divided by 16",
        }


def convolutions(image: Any, params: CNNConfig) -> Any:
    x = image
    for filters in params.filters:
        x = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = keras.layers.Flatten()(keras.layers.MaxPool2D()(x))
    return keras.layers.Dense(params.hidden, activation="relu")(keras.layers.Dropout(params.dropout)(x))


def dense_layers(image: Any, params: MLPConfig) -> Any:
    x = keras.layers.Flatten()(image)
    for units in params.hidden:
        x = keras.layers.Dense(units, activation="relu")(x)
    return x


@functools.cache
def load_digits(held_out: float) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Returns (images, labels) for training and for validation: float32 [n, 8, 8, 1] in [0, 1], int32 [n].

    They are read once: training and validation share the arrays, which nothing changes.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype("float32").reshape(-1, 8, 8, 1)
    train_x, validation_x, train_y, validation_y = train_test_split(
        images, labels.astype("int32"), test_size=held_out, random_state=0, stratify=labels
    )
    return (train_x, train_y), (validation_x, validation_y)


@register_config_factory("digits_cnn")
def digits_cnn() -> ExperimentConfig:
    """Handwritten digits, a small convolutional network."""
    return experiment(DigitsModel(type="cnn"), train_steps=1200, learning_rate=2e-3)


@register_config_factory("digits_mlp")
def digits_mlp() -> ExperimentConfig:
    """Handwritten digits, one hidden layer."""
    return experiment(DigitsModel(type="mlp"), train_steps=2000, learning_rate=3e-3)


def experiment(model: DigitsModel, train_steps: int, learning_rate: float) -> ExperimentConfig:
    return ExperimentConfig(
        task=DigitsConfig(
            model=model,
            train_data=DataConfig(global_batch_size=64),
            validation_data=DataConfig(global_batch_size=360),
        ),
        trainer=TrainerConfig(
            train_steps=train_steps,
            steps_per_loop=200,
            summary_interval=100,
            checkpoint_interval=400,
            validation_interval=200,
            best_checkpoint_eval_metric="accuracy",
            optimizer_config=OptimizationConfig(
                optimizer=opt.OptimizerConfig(type="adam"),
                learning_rate=opt.LrConfig(
                    type="cosine",
                    cosine=opt.CosineLrConfig(initial_learning_rate=learning_rate, decay_steps=train_steps),
                ),
                warmup=opt.WarmupConfig(type="linear", linear=opt.LinearWarmupConfig(warmup_steps=50)),
            ),
        ),
    )
