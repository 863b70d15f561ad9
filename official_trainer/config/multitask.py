"""The sections of experiments with several tasks, trained together, or with several validation sets.

Owns: these sections with Model Garden's names, and the rules for their values.
Does not own: how tasks are sampled or trained together (`tasks/multi_task/task.py`, `tasks/multi_task/sampler.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from official_trainer.config.declaration import (
    Between,
    Config,
    FrozenDict,
    Guarded,
    OfVariables,
    OneOf,
    Positive,
    PositiveFloat,
    Safe,
)
from official_trainer.config.schema import ExperimentConfig, TaskConfig, TrainerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskRoutine(Config):
    """One of several tasks.

    Attributes:
      task_name: its name, in logs, in `best_checkpoint_eval_metric` (`name|metric`) and among the model's `sub_tasks`.
      task_config: the task: data, losses, metrics.
      eval_steps: batches of an evaluation; -1 means all data, unset the same as `trainer.validation_steps`.
      task_weight: the weight of its loss in joint training; with interleaving, how often it is sampled relative to the
        other tasks, as `trainer.task_sampler` configures.

    Example:
      >>> from official_trainer.config import DataConfig, TaskConfig, TaskRoutine
      >>> data = DataConfig(global_batch_size=64)
      >>> digit = TaskRoutine(task_name="digit", task_config=TaskConfig(train_data=data), task_weight=3.0)
      >>> digit.name
      'digit'
    """

    task_name: OfVariables[str] = ""
    task_config: Guarded[TaskConfig] = TaskConfig()
    eval_steps: Safe[Annotated[int, Between(-1)] | None] = None
    task_weight: Guarded[PositiveFloat] = 1.0

    @property
    def name(self) -> str:
        """What the task is called."""
        return self.task_name

    def problems(self) -> Iterator[tuple[str, ...]]:
        if not self.name:
            yield "task_name", "is not set; name the task"
        if any(mark in self.name for mark in "|/"):
            yield "task_name", f"{self.name!r} contains '|' or '/', which separate the names of task and metric"
        if self.eval_steps == 0:
            yield "eval_steps", "must be -1 (all data) or at least 1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiTaskConfig(Config):
    """Several tasks that share a model. A multi-task experiment declares a subclass with its own `model`.

    Attributes:
      init_checkpoint: checkpoint (or directory with one) whose model weights a fresh run starts from.
      init_checkpoint_allow_missing: patterns (shell style) of model variables that `init_checkpoint` may lack.
      init_checkpoint_names: names of values in a checkpoint, with those of the model's variables that they are for.
      model: the section of the shared model.
      task_routines: the tasks.

    Example:
      >>> import dataclasses
      >>> from official_trainer.config import Config, MultiTaskConfig, Positive, TaskRoutine
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class TrunkConfig(Config):
      ...     hidden: Positive = 64
      >>> @dataclasses.dataclass(frozen=True, kw_only=True)
      ... class DigitsTasksConfig(MultiTaskConfig):
      ...     model: TrunkConfig = TrunkConfig()
      >>> tasks = DigitsTasksConfig(task_routines=(TaskRoutine(task_name="digit"), TaskRoutine(task_name="parity")))
      >>> [routine.name for routine in tasks.task_routines]
      ['digit', 'parity']
    """

    init_checkpoint: Safe[str] = ""
    init_checkpoint_allow_missing: Safe[tuple[str, ...]] = ()
    init_checkpoint_names: Safe[dict[str, str]] = FrozenDict()
    model: OfVariables[Config] = Config()
    task_routines: OfVariables[tuple[TaskRoutine, ...]] = ()

    def problems(self) -> Iterator[tuple[str, ...]]:
        if not self.task_routines:
            yield "task_routines", "names no task; add at least one TaskRoutine"
        yield from named_twice("task_routines", self.task_routines)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProportionalSampleConfig(Config):
    """Samples a task in proportion to a power of its weight.

    Attributes:
      alpha: the power of `task_weight`; 1 uses the weights themselves, 0 makes all tasks equal. If the weights are
        numbers of examples, 0.5 is square-root sampling.
    """

    alpha: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnnealingSampleConfig(Config):
    """From proportional sampling towards uniform (Stickland and Murray, 2019, arXiv:1902.02671).

    The power of `task_weight` falls by the same amount from epoch to epoch, to 0.2 at the end, and then stays constant.

    Attributes:
      steps_per_epoch: steps between two changes.
      total_steps: steps until the last change.
    """

    steps_per_epoch: Positive = 5
    total_steps: Positive = 20

    def problems(self) -> Iterator[tuple[str, ...]]:
        if self.total_steps <= self.steps_per_epoch:
            what = f"must be more than steps_per_epoch={self.steps_per_epoch}: there is one epoch only"
            yield "total_steps", what, "steps_per_epoch"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSamplingConfig(OneOf):
    """How the task of each step is sampled, with interleaving.

    Attributes:
      type: how it is drawn for each step; after a restart, the same task is drawn at the same step.
      uniform: all tasks equally often.
      proportional: in proportion to a power of their weights.
      annealing: in proportion to their weights at first, then more and more evenly.

    Example:
      >>> from official_trainer.config import MultiTaskTrainerConfig, TaskSamplingConfig
      >>> MultiTaskTrainerConfig(task_sampler=TaskSamplingConfig(type="uniform")).task_sampler.type
      'uniform'
    """

    type: Literal["uniform", "proportional", "annealing"] | None = "proportional"
    uniform: Config = Config()
    proportional: ProportionalSampleConfig = ProportionalSampleConfig()
    annealing: AnnealingSampleConfig = AnnealingSampleConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiTaskTrainerConfig(TrainerConfig):
    """How several tasks are trained together; all other fields are as for one task.

    Attributes:
      trainer_type: `joint` takes a batch of every task in each step and updates by the weighted sum of their losses;
        `interleaving` trains one task in each step.
      task_sampler: which task is trained in a step, with `interleaving`.

    Example:
      >>> from official_trainer.config import MultiTaskTrainerConfig
      >>> MultiTaskTrainerConfig(trainer_type="joint", train_steps=2000).trainer_type
      'joint'
    """

    trainer_type: Guarded[Literal["interleaving", "joint"]] = "interleaving"
    task_sampler: Guarded[TaskSamplingConfig] = TaskSamplingConfig()

    def problems(self) -> Iterator[tuple[str, ...]]:
        yield from super().problems()
        if self.trainer_type == "interleaving" and not self.task_sampler.type:
            what = "is not set, and trainer_type=interleaving needs one, for example uniform"
            yield "task_sampler.type", what, "trainer_type"
        if self.trainer_type == "joint" and self.task_sampler != TaskSamplingConfig():
            what = "has no effect with trainer_type=joint; leave it out, or set that to interleaving"
            yield "task_sampler", what, "trainer_type"
        if self.train_epochs is not None:
            yield "train_epochs", "is undefined for several tasks, each with its own epochs; set train_steps"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiTaskExperimentConfig(ExperimentConfig):
    """An experiment that trains several tasks together and evaluates each.

    Attributes:
      task: the tasks and their model.
      trainer: how they are trained.

    Example:
      >>> from official_trainer.config import (
      ...     MultiTaskConfig, MultiTaskExperimentConfig, MultiTaskTrainerConfig, TaskRoutine, resolve
      ... )
      >>> config = MultiTaskExperimentConfig(
      ...     task=MultiTaskConfig(task_routines=(TaskRoutine(task_name="digit"), TaskRoutine(task_name="parity"))),
      ...     trainer=MultiTaskTrainerConfig(trainer_type="joint", train_steps=2000),
      ... )
      >>> changed = resolve(config, sets=["task.task_routines[0].task_weight=3"]).config
      >>> changed.task.task_routines[0].task_weight
      3.0
    """

    task: MultiTaskConfig = MultiTaskConfig()  # type: ignore[assignment]
    trainer: MultiTaskTrainerConfig = MultiTaskTrainerConfig()

    def tasks(self) -> Iterator[tuple[str, TaskConfig]]:
        if isinstance(self.task, MultiTaskConfig):
            for number, routine in enumerate(self.task.task_routines):
                yield f"task.task_routines[{number}].task_config", routine.task_config

    def problems(self) -> Iterator[tuple[str, ...]]:
        yield from super().problems()
        for path, task in self.tasks():
            if task.train_data.enable_tf_data_service:
                what = "batches of several tasks do not come from a tf.data service; leave it out"
                yield f"{path}.train_data.enable_tf_data_service", what
        if self.runtime.distribution_strategy == "tpu" and self.trainer.trainer_type == "interleaving":
            what = "interleaving has batches of several shapes, and a TPU accepts only one; set it to joint"
            yield "trainer.trainer_type", what, "runtime.distribution_strategy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiEvalExperimentConfig(ExperimentConfig):
    """An experiment that trains one task, and also evaluates its weights on named validation sets.

    Attributes:
      eval_tasks: these sets, each with its own Task for data, losses and metrics. Only their fields for evaluation have
        an effect.

    Example:
      The metrics of the set `rotated` are called `rotated/accuracy` and so on:

      >>> from official_trainer.config import DataConfig, MultiEvalExperimentConfig, TaskConfig, TaskRoutine
      >>> rotated = TaskConfig(validation_data=DataConfig(input_path="data/rotated.tfrecord"))
      >>> config = MultiEvalExperimentConfig(eval_tasks=(TaskRoutine(task_name="rotated", task_config=rotated),))
      >>> config.eval_tasks[0].task_config.validation_data.input_path
      'data/rotated.tfrecord'
    """

    eval_tasks: Safe[tuple[TaskRoutine, ...]] = ()

    def problems(self) -> Iterator[tuple[str, ...]]:
        yield from super().problems()
        yield from named_twice("eval_tasks", self.eval_tasks)


def named_twice(field: str, routines: Sequence[Any]) -> Iterator[tuple[str, ...]]:
    """Yields the field and a message for each task in a list that has the `name` of an earlier one."""
    names = [routine.name for routine in routines]
    for number, name in enumerate(names):
        if name and name in names[:number]:
            first = f"{field}[{names.index(name)}]"
            yield f"{field}[{number}].task_name", f"{name!r} is the name of {first} too; give one another name"
