"""The model of several tasks: one for each, which may share layers.

Owns: `MultiTaskModel`, and finding a task's part in it or in Model Garden's `MultiTaskBaseModel`.
Does not own: training it (`task.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from official_trainer.errors import ExitCode, UserError, nearest
from official_trainer.lazy import keras, tf


class SubTasksError(UserError, LookupError):
    """A model lacks the part of a task."""

    exit_code = ExitCode.CONFIG


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


def sub_model(model: Any, name: str) -> Any:
    """Returns the part of `model` for a task: one of its `sub_tasks`, or the model itself if it has none.

    Raises:
      SubTasksError: the task has no part; names the tasks that have one.
    """
    sub_tasks = getattr(model, "sub_tasks", None)
    if sub_tasks is None:
        return model
    if name not in sub_tasks:
        near = nearest(name, sub_tasks)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SubTasksError(
            f"the task {name!r} has no model: the sub_tasks of {type(model).__name__} are {', '.join(sub_tasks)}{hint}"
        )
    return sub_tasks[name]


def is_built(model: Any) -> bool:
    """Whether a model, or each of its sub-models, has its variables."""
    parts = getattr(model, "sub_tasks", None)
    return all(getattr(part, "built", True) for part in ([model] if parts is None else parts.values()))


def _distinct(models: Mapping[str, Any], name: str) -> list[Any]:
    found = [value for model in models.values() for value in getattr(model, name, ())]
    return list({id(value): value for value in found}.values())
