"""Points in a plane on one of two sides: a trial of six steps, which is trained within a second.

They depend on what the module holds and each call changes, as a user's may: generators, a count, a cache, an attribute.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from typing import Any, Literal

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import (
    Config,
    DataConfig,
    ExperimentConfig,
    ExportConfig,
    Fraction,
    OneOf,
    OptimizationConfig,
    Positive,
    TaskConfig,
    TrainerConfig,
)
from official_trainer.config import optimization as opt
from official_trainer.lazy import keras, tf

GENERATOR, COUNT = random.Random(0), itertools.count()
CACHE: dict[int, Any] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepConfig(Config):
    """Layers.

    Attributes:
      hidden: units of each.
      dropout: share of units set to zero while training.
    """

    hidden: tuple[Positive, ...] = (4,)
    dropout: Fraction = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlatConfig(Config):
    """No layers.

    Attributes:
      decay: of the weights.
    """

    decay: Fraction = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointsModel(OneOf):
    """The model.

    Attributes:
      type: which.
      deep: with layers.
      flat: without.
    """

    type: Literal["deep", "flat"] | None = "deep"
    deep: DeepConfig = DeepConfig()
    flat: FlatConfig = FlatConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PointsConfig(TaskConfig):
    """Points and their classifier.

    Attributes:
      model: the classifier.
    """

    model: PointsModel = PointsModel()

    def problems(self) -> Iterator[tuple[str, str]]:
        deep = self.model.deep
        if self.model.type == "deep" and deep.dropout > 0.4 and len(deep.hidden) > 1:
            yield "model.deep.dropout", "needs one layer above 0.4"


@register_task_cls(PointsConfig)
class PointsTask(Task):
    """Says on which side a point is."""

    def build_model(self) -> keras.Model:
        section = self.task_config.model
        point = x = keras.Input([2], name="point")
        if section.type == "deep":
            for units in section.deep.hidden:
                x = keras.layers.Dense(units, activation="tanh")(x)
            x = keras.layers.Dropout(section.deep.dropout)(x)
        return keras.Model(point, keras.layers.Dense(2, dtype="float32", name="logits")(x))

    def build_inputs(self, params: DataConfig, input_context: Any = None) -> tf.data.Dataset:
        return inputs.from_arrays(points(), params, input_context)

    def build_losses(self, labels: Any, model_outputs: Any, aux_losses: Any = None) -> tf.Tensor:
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training: bool = True) -> list[keras.metrics.Metric]:
        return []


class Drawn:
    """What was drawn.

    Attributes:
      calls: how often.
      generator: of NumPy.
    """

    calls = 0
    generator: Any = None


def points() -> tuple[Any, Any]:
    """Returns (points, sides): float32 [64, 2], int32 [64]; other ones in each call of a process."""
    import numpy as np

    Drawn.calls += 1
    Drawn.generator = Drawn.generator or np.random.default_rng(0)
    CACHE[len(CACHE)] = None
    seeds = GENERATOR.randrange(1 << 30), next(COUNT), Drawn.calls, len(CACHE), Drawn.generator.integers(1 << 30)
    found = np.random.default_rng(seeds).normal(size=(64, 2)).astype("float32")
    return found, (found.sum(axis=1) > 0.3).astype("int32")


@register_config_factory("points")
def experiment() -> ExperimentConfig:
    """Six steps, three checkpoints, three evaluations."""
    return ExperimentConfig(
        task=PointsConfig(
            train_data=DataConfig(global_batch_size=8),
            validation_data=DataConfig(global_batch_size=64),
        ),
        trainer=TrainerConfig(
            train_steps=6,
            steps_per_loop=2,
            summary_interval=2,
            checkpoint_interval=2,
            validation_interval=2,
            export=ExportConfig(at_end=False),
            best_checkpoint_eval_metric="validation_loss",
            best_checkpoint_metric_comp="lower",
            optimizer_config=OptimizationConfig(
                optimizer=opt.OptimizerConfig(type="adam"),
                learning_rate=opt.LrConfig(type="constant", constant=opt.ConstantLrConfig(learning_rate=0.01)),
            ),
        ),
    )
