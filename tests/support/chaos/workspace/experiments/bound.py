"""`bound`: a small classifier, as wide as gin says."""

import dataclasses

import gin

from official_trainer.config import TaskConfig
from official_trainer.lazy import keras
from official_trainer.tasks import registry
from tests.support import toy


@gin.configurable
def width(units=6):
    return units


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundConfig(TaskConfig):
    """Points and their labels."""


@registry.register_task_cls(BoundConfig)
class BoundTask(toy.ToyTask):
    """Classifies points."""

    def build_model(self):
        features = keras.Input((6,), name="features")
        hidden = keras.layers.Dropout(0.3)(keras.layers.Dense(width(), "tanh")(features))
        return keras.Model(features, keras.layers.Dense(3, name="logits")(hidden))


@registry.register_config_factory("bound")
def bound():
    """Sixty steps with every kind of event."""
    base = toy.experiment(
        train_steps=60, steps_per_loop=10, checkpoint_interval=20, validation_interval=40, summary_interval=20
    )
    return base.replace(task=BoundConfig(train_data=base.task.train_data, validation_data=base.task.validation_data))
