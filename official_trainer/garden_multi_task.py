"""Model Garden's `MultiTask` as a Task of ours.

Owns: the way from their tasks, weights and model to ours. Does not own: how several tasks are trained
(`multi_task.py`), reading their configs (`garden/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from official_trainer.multi_task import MultiTask, Part
from official_trainer.task import Task


def from_garden(multi_task: Any, model: Any) -> MultiTask:
    """Returns Model Garden's `MultiTask` as a Task of ours, whose `build_model` returns `model`.

    Joint steps are its own `joint_train_step`, interleaved ones the tasks' `train_step`.

    Args:
      multi_task: the tasks, with their weights and `task_eval_steps`.
      model: a `MultiTaskBaseModel`, or a Keras model that all tasks share; built under the strategy in scope.

    Raises:
      ConfigError: there is no task, or a weight is not positive.
    """
    return _GardenMultiTask(multi_task, model)


class _GardenMultiTask(MultiTask):
    """Model Garden's tasks and their model."""

    def __init__(self, multi_task: Any, model: Any) -> None:
        Task.__init__(self, None, name=type(multi_task).__name__)
        self._theirs, self._model = multi_task, model
        weights, eval_steps = multi_task.task_weights, multi_task.task_eval_steps
        self._set_parts(
            [
                Part(name=name, task=task, weight=weights[name], eval_steps=eval_steps.get(name))
                for name, task in multi_task.tasks.items()
            ]
        )
        unbuilt = [part for part in getattr(model, "sub_tasks", {}).values() if not getattr(part, "built", True)]
        if unbuilt and all(getattr(part, "inputs", None) is not None for part in unbuilt):
            model.build()

    def build_model(self) -> Any:
        return self._model

    def create_optimizer(self, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        return self._theirs.create_optimizer(*arguments, **options)

    def initialize(self, model: Any) -> None:
        if hasattr(model, "initialize"):
            model.initialize()

    def _joint_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
        losses = self._theirs.joint_train_step(
            inputs,
            multi_task_model=model,
            optimizer=optimizer,
            task_metrics={name: metrics[name].metrics if name in metrics else [] for name in self.parts},
        )
        for name, own in metrics.items():
            own.loss.update_state(losses[name])
        return {self.loss: losses["total_loss"]}
