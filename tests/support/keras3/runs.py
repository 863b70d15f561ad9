"""Runs that train a model of Keras 3: dict inputs, several outputs, batch norm, dropout; its layers are configured."""

import dataclasses
import functools

import keras
import numpy as np

from official_trainer import config as configuration
from official_trainer import inputs
from official_trainer.config import schema
from official_trainer.tasks import registry
from official_trainer.tasks.task import Task
from tests.support import jobs

NUM_EXAMPLES = 64
_random = np.random.RandomState(0)
FEATURES = {
    "left": _random.randn(NUM_EXAMPLES, 4).astype("float32"),
    "right": _random.randn(NUM_EXAMPLES, 4).astype("float32"),
}
LABELS = (FEATURES["left"] * FEATURES["right"]).sum(axis=1) > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keras3RunConfig(schema.TaskConfig):
    """What the model is made of.

    Attributes:
      layers: sizes of the layers between inputs and outputs, by their names; those that begin with `_` have no name of
        their own.
      lora: rank of the matrices that are trained beside the kernel of the first of them; 0 for none.
    """

    layers: dict[str, int] = configuration.FrozenDict(_first=8, second=8)
    lora: int = 0


@registry.register_task_cls(Keras3RunConfig)
class Keras3RunTask(Task):
    """Says whether two vectors point in one direction."""

    def build_model(self):
        given = {name: keras.Input([4], name=name) for name in FEATURES}
        hidden = keras.layers.Concatenate()([given["left"], given["right"]])
        built = []
        for name, size in self.task_config.layers.items():
            built.append(keras.layers.Dense(size, "relu", name=None if name.startswith("_") else name))
            hidden = built[-1](hidden)
        hidden = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization(name="norm")(hidden))
        outputs = {
            "logits": keras.layers.Dense(2, name="head", dtype="float32")(hidden),
            "size": keras.layers.Dense(1, name="size", dtype="float32")(hidden),
        }
        if self.task_config.lora:
            built[0].enable_lora(self.task_config.lora)
        return keras.Model(given, outputs)

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((FEATURES, LABELS.astype("int32")), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        loss = keras.losses.sparse_categorical_crossentropy(labels, model_outputs["logits"], from_logits=True)
        return loss + 0.01 * model_outputs["size"][:, 0] ** 2

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def process_metrics(self, metrics, labels, model_outputs):
        for metric in metrics:
            metric.update_state(labels, model_outputs["logits"])

    @classmethod
    def create_optimizer(cls, optimizer_config, runtime_config=None, dp_config=None):
        return keras.optimizers.Adam(0.01)


@registry.register_config_factory("keras3_run")
def keras3_run():
    """Twelve steps; a checkpoint and an evaluation every four."""
    return schema.ExperimentConfig(
        task=Keras3RunConfig(
            train_data=schema.DataConfig(global_batch_size=8),
            validation_data=schema.DataConfig(global_batch_size=16),
        ),
        trainer=schema.TrainerConfig(
            train_steps=12,
            steps_per_loop=4,
            summary_interval=4,
            checkpoint_interval=4,
            validation_interval=4,
            max_to_keep=3,
        ),
    )


resolved = functools.partial(jobs.resolved, "keras3_run")
do = functools.partial(jobs.do, "keras3_run")
