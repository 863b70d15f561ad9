"""Points in a plane on one of two sides: a trial of six steps, which is trained within a second.

They depend on what the module holds and each call changes, as a user's generators do.
"""

import dataclasses
import itertools
from typing import Literal

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import (
    Config,
    DataConfig,
    ExperimentConfig,
    ExportConfig,
    Fraction,
    OneOf,
    TaskConfig,
    TrainerConfig,
    opt,
)
from official_trainer.lazy import keras

CALLS = itertools.count()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepConfig(Config):
    """Layers."""

    dropout: Fraction = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlatConfig(Config):
    """No layers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointsModel(OneOf):
    """The model."""

    type: Literal["deep", "flat"] | None = "deep"
    deep: DeepConfig = DeepConfig()
    flat: FlatConfig = FlatConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointsConfig(TaskConfig):
    """Points and their classifier."""

    model: PointsModel = PointsModel()


@register_task_cls(PointsConfig)
class PointsTask(Task):
    """Says on which side a point is."""

    def build_model(self):
        section = self.task_config.model
        point = x = keras.Input([2], name="point")
        if section.type == "deep":
            x = keras.layers.Dropout(section.deep.dropout)(keras.layers.Dense(4, activation="tanh")(x))
        return keras.Model(point, keras.layers.Dense(2, dtype="float32", name="logits")(x))

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays(points(), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training=True):
        return []


def points():
    """Returns (points, sides): float32 [64, 2], int32 [64]; other ones in each call of a process."""
    import numpy as np

    drawn = np.random.default_rng(next(CALLS)).normal(size=(64, 2)).astype("float32")
    return drawn, (drawn.sum(axis=1) > 0.3).astype("int32")


@register_config_factory("points")
def experiment():
    """Six steps, three checkpoints, three evaluations."""
    intervals = dict.fromkeys(("steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval"), 2)
    return ExperimentConfig(
        task=PointsConfig(
            train_data=DataConfig(global_batch_size=8),
            validation_data=DataConfig(global_batch_size=64),
        ),
        trainer=TrainerConfig(
            train_steps=6,
            export=ExportConfig(at_end=False),
            best_checkpoint_eval_metric="validation_loss",
            best_checkpoint_metric_comp="lower",
            optimizer_config=opt.adam(0.01),
            **intervals,
        ),
    )
