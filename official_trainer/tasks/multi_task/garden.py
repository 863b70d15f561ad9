"""Model Garden's `MultiTask` as a Task of ours.

Owns: converting its tasks, weights and model, and calling the builders of both. Does not own: how several tasks are
trained (`task.py`), reading their configs (`garden/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from official_trainer.config import ConfigError, Problem
from official_trainer.tasks.multi_task.task import MultiTask, Part


def build(config: Any, logging_dir: str | None = None) -> MultiTask:
    """Returns the Task of a live `MultiTaskConfig` of Model Garden, with its model; in the strategy's scope.

    Its `MultiTask` is built by `MultiTask.from_config`, or by the builder that `base_config.bind` has bound to the
    config's class. The model is built by the builder that is bound to the class of `config.model`, from that section.

    Args:
      config: the `task` section.
      logging_dir: for the tasks.

    Raises:
      ConfigError: no builder is bound to the class of `config.model`.
    """
    from official.modeling.multitask import multitask

    section = config.model
    if section is None or section.BUILDER is None:
        page = "docs/guides/model_garden.md has an example"
        if section is None:
            what = "is not set, so the model that the tasks share is unknown"
            fix = f"give it a section of a class of its own, to which base_config.bind binds the model; {page}"
        else:
            name = type(section).__name__
            what = f"nothing builds the model of a {type(section).__module__}.{name}"
            fix = f"put @base_config.bind({name}) on the model's class, or on a function that takes the section; {page}"
        raise ConfigError([Problem(what, "task.model", fix=fix)])
    build_garden_task = multitask.MultiTask.from_config if config.BUILDER is None else config.BUILDER
    return _GardenMultiTask(build_garden_task(config, logging_dir=logging_dir), section.BUILDER(section), config)


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

    def __init__(self, multi_task: Any, model: Any, config: Any = None) -> None:
        weights, eval_steps = multi_task.task_weights, multi_task.task_eval_steps
        parts = [
            Part(name=name, task=task, weight=weights[name], eval_steps=eval_steps.get(name))
            for name, task in multi_task.tasks.items()
        ]
        super().__init__(config, name=type(multi_task).__name__, parts=parts)
        self._garden_task, self._model = multi_task, model
        unbuilt = [part for part in getattr(model, "sub_tasks", {}).values() if not getattr(part, "built", True)]
        if unbuilt and all(getattr(part, "inputs", None) is not None for part in unbuilt):
            model.build()

    def configure(self, trainer_config: Any) -> None:
        super().configure(trainer_config)
        from official.modeling.multitask import multitask

        is_its_own = type(self._garden_task).joint_train_step is not multitask.MultiTask.joint_train_step
        if not (self.dispatches or is_its_own or hasattr(self._model, "sub_tasks")):
            name = type(self._model).__name__
            what = f"joint training needs a model with sub_tasks, and a {name} is one for all tasks"
            raise ConfigError([Problem(what, "trainer.trainer_type", fix="set it to interleaving")])

    def build_model(self) -> Any:
        return self._model

    def create_optimizer(  # type: ignore[override]
        self, optimizer_config: Any, runtime_config: Any = None, dp_config: Any = None
    ) -> Any:
        return self._garden_task.create_optimizer(optimizer_config, runtime_config, dp_config)

    def initialize(self, model: Any) -> None:
        if hasattr(model, "initialize"):
            model.initialize()

    def _joint_step(self, inputs: Any, model: Any, optimizer: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
        losses = self._garden_task.joint_train_step(
            inputs,
            multi_task_model=model,
            optimizer=optimizer,
            task_metrics={name: metrics[name].metrics if name in metrics else [] for name in self.parts},
        )
        for name, metrics_of_task in metrics.items():
            metrics_of_task.loss.update_state(losses[name])
        return {self.loss: losses["total_loss"]}
