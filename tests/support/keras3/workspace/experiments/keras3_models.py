"""`keras3_models`: a small model of Keras 3 that learns from arrays in their order, by an optimizer that it names."""

import dataclasses
import functools

import numpy as np

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import (
    DataConfig,
    ExperimentConfig,
    ExportConfig,
    TaskConfig,
    TrainerConfig,
    opt,
)

BATCH, STEPS = 16, 50
CLASSES = 3
OVERFLOWS_AT = 20
"""The step whose last example makes gradients that float16 cannot hold, with a loss that is finite."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keras3Config(TaskConfig):
    """A model of Keras 3.

    Attributes:
      overflows: whether the model is linear, for float16, and one of its examples is large.
      optimizer: one of `_optimizers`.
      as_objects: whether the loss is an object of a class of `keras.losses`, and not a function.
    """

    overflows: bool = False
    optimizer: str = "sgd"
    as_objects: bool = False


def _optimizers(keras):
    """Returns optimizers by name whose weights tell what was done to gradients; each clips in nearly every step."""
    sgd = functools.partial(keras.optimizers.SGD, 0.1)
    return {
        "sgd": sgd,
        "clipnorm": functools.partial(sgd, clipnorm=0.02),
        "global_clipnorm": functools.partial(sgd, global_clipnorm=0.05),
        "accumulating": functools.partial(sgd, gradient_accumulation_steps=2),
        "scaling": lambda: keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=2.0**10),
    }


@register_task_cls(Keras3Config)
class Keras3Task(Task):
    """Tells classes apart by the mean of the features."""

    def build_model(self):
        import keras

        features = x = keras.Input((6,), name="features")
        if not self.task_config.overflows:
            x = keras.layers.Dense(16, "relu")(keras.layers.Dense(16, "tanh")(x))
        logits = keras.layers.Dense(CLASSES)(x)
        return keras.Model(features, keras.layers.Activation("linear", dtype="float32")(logits))

    def build_inputs(self, params, input_context=None):
        random = np.random.RandomState(0)
        labels = random.randint(0, CLASSES, BATCH * STEPS).astype("int32")
        features = random.randn(BATCH * STEPS, 6).astype("float32") + labels[:, None] - 1
        if self.task_config.overflows:
            features[OVERFLOWS_AT * BATCH - 1] = 3000
        return inputs.from_arrays((features, labels), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        import keras

        if self.task_config.as_objects:
            return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, model_outputs)
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training=True):
        import keras

        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def create_optimizer(self, optimizer_config, runtime_config=None, dp_config=None):
        import keras

        return _optimizers(keras)[self.task_config.optimizer]()

    def train_step(self, batch, model, optimizer, metrics=None):
        logs = super().train_step(batch, model, optimizer, metrics)
        if hasattr(optimizer, "dynamic_scale"):
            logs["loss_scale"] = optimizer.dynamic_scale * 1.0  # a mean over replicas
        return logs


@register_config_factory("keras3_models")
def keras3_models() -> ExperimentConfig:
    """Fifty steps, each with its row in `metrics.jsonl`."""
    data = DataConfig(global_batch_size=BATCH, shuffle=False)
    return ExperimentConfig(
        task=Keras3Config(train_data=data, validation_data=data),
        trainer=TrainerConfig(
            train_steps=STEPS, steps_per_loop=STEPS, summary_interval=1, checkpoint_interval=STEPS,
            validation_interval=STEPS, export=ExportConfig(at_end=False), on_data_end="repeat",
            optimizer_config=opt.sgd(0.1),  # required; the task brings its own
        ),
    )  # fmt: skip
