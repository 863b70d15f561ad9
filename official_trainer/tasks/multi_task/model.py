"""The model of several tasks: one for each, which may share layers.

Owns: `MultiTaskModel`. Does not own: finding a task's part in it, and training it (`task.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from official_trainer.lazy import keras, tf


class MultiTaskModel(tf.Module):
    """Keras models by the names of their tasks; shared layers and variables are contained once.

    Attributes:
      sub_tasks: the models.
    """

    def __init__(self, sub_tasks: Mapping[str, keras.Model]) -> None:
        super().__init__(name="multi_task_model")
        self.sub_tasks = dict(sub_tasks)

    @property
    def variables(self) -> list[tf.Variable]:
        """All variables, each once, in the order of the tasks."""
        return _distinct(self.sub_tasks, "variables")

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        """The variables that are trained; a frozen layer has none."""
        return _distinct(self.sub_tasks, "trainable_variables")

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The metrics of the models themselves."""
        return _distinct(self.sub_tasks, "metrics")


def _distinct(models: Mapping[str, Any], name: str) -> list[Any]:
    values = [value for model in models.values() for value in getattr(model, name, ())]
    return list({id(value): value for value in values}.values())
