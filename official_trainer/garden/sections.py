"""Base classes of our sections for Model Garden's classes, and the rules for their values.

Owns: these base classes, and Model Garden's rules across fields. Does not own: the classes for one experiment, which
`from_garden.py` makes.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from official_trainer.config import Config, ExperimentConfig, OneOf, fields
from official_trainer.config.multitask import (
    AnnealingSampleConfig,
    MultiTaskConfig,
    MultiTaskExperimentConfig,
    MultiTaskTrainerConfig,
    TaskRoutine,
    named_twice,
)
from official_trainer.config.schema import RuntimeConfig, TrainerConfig


class GardenSection(Config):
    """A section for one of Model Garden's classes."""

    @classmethod
    def is_read_as_garden(cls, name: str) -> bool:
        return True


class GardenOneOf(OneOf):
    """A one-of of Model Garden; it ignores values of a choice that is not selected, here with a warning."""

    @classmethod
    def is_read_as_garden(cls, name: str) -> bool:
        return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class GardenExperiment(ExperimentConfig):
    """An experiment of Model Garden.

    Attributes:
      RESTRICTIONS: conditions for its values, in Model Garden's syntax.
      MODULE: the module that registers it with Model Garden.
    """

    RESTRICTIONS: ClassVar[tuple[str, ...]] = ()
    MODULE: ClassVar[str] = ""

    def problems(self) -> Iterator[tuple[str, ...]]:
        yield from super().problems()
        # A choice that is not selected has no say: it builds nothing, and the params.yaml of a run leaves it out.
        values = dict(fields.in_force(self)) if self.RESTRICTIONS else {}
        for match in filter(None, map(_RESTRICTION.fullmatch, self.RESTRICTIONS)):
            left, relation, right = match.groups()
            try:
                value = _operand(left, values)
                holds = _RELATIONS[relation](value, _operand(right, values))
            except (LookupError, TypeError):
                continue  # not selected, or a mistake in the experiment, with which Model Garden would fail too
            if not holds:
                yield left, f"must be {relation} {right}, as the experiment requires, got {fields.show(value)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Shared(Config):
    """A section that exists here and in Model Garden, with the fields of both.

    Attributes:
      NOT_OURS: fields that only Model Garden has.
      SET_THERE: fields that may be unset here, and not there.
    """

    NOT_OURS: ClassVar[tuple[str, ...]] = ()
    SET_THERE: ClassVar[frozenset[str]] = frozenset()

    def is_only_ours(self, name: str) -> bool:
        return super().is_only_ours(name) or (name in self.SET_THERE and getattr(self, name) is None)

    def ignored(self) -> Iterator[tuple[str, ...]]:
        for name in self.NOT_OURS:
            if name != "optimizer_config" and self._is_changed(name):
                yield name, _ALWAYS_SO.get(name, "has no effect, here and in Model Garden's own Trainer")

    def _is_changed(self, name: str) -> bool:
        """Whether a field differs from its value in the experiment; the params.yaml of a run sets all fields."""
        return bool(getattr(self, name) != getattr(type(self), name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GardenTrainer(_Shared, TrainerConfig):
    """The trainer section of an experiment of Model Garden."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GardenRuntime(_Shared, RuntimeConfig):
    """The runtime section of an experiment of Model Garden; values without effect are warnings, not errors."""

    def is_only_ours(self, name: str) -> bool:
        is_auto = name == "distribution_strategy" and self.distribution_strategy == "auto"
        return is_auto or super().is_only_ours(name)

    def problems(self) -> Iterator[tuple[str, ...]]:
        idle = list(self.idle())
        yield from (problem for problem in super().problems() if problem not in idle)

    def ignored(self) -> Iterator[tuple[str, ...]]:
        yield from super().ignored()
        yield from self.idle()


# Several tasks: the rules of our own sections, applied to Model Garden's.


class GardenRoutine(GardenSection):
    """One of several tasks of Model Garden; without a name of its own it has the name of its task config."""

    @property
    def name(self) -> str:
        """What the task is called."""
        routine: Any = self
        return routine.task_name or getattr(routine.task_config, "name", None) or ""

    def problems(self) -> Iterator[tuple[str, ...]]:
        routine: Any = self
        if routine.task_config is None:
            yield "task_config", "is not set; add the section of the task"
            return
        yield from TaskRoutine.problems(routine)
        if routine.task_weight is None or not routine.task_weight > 0:
            yield "task_weight", f"must be greater than 0, got {fields.show(routine.task_weight)}"


def _nulls(field: str, routines: Any) -> list[tuple[str, str]]:
    """Returns each null in a list of tasks, or the list itself if it is null, with the message."""
    paths = [field] if routines is None else [f"{field}[{i}]" for i, part in enumerate(routines) if part is None]
    return [(path, "is null; set a value") for path in paths]


class GardenMultiTaskConfig(GardenSection):
    """Several tasks of Model Garden that share a model."""

    def problems(self) -> Iterator[tuple[str, ...]]:
        section: Any = self
        yield from _nulls("task_routines", section.task_routines) or MultiTaskConfig.problems(section)


class GardenAnnealing(GardenSection):
    """Model Garden's section for sampling tasks more and more evenly."""

    def problems(self) -> Iterator[tuple[str, ...]]:
        section: Any = self
        values = {name: getattr(section, name) for name in ("steps_per_epoch", "total_steps")}
        wrong = {name: value for name, value in values.items() if value is None or value < 1}
        yield from ((name, f"must be at least 1, got {fields.show(value)}") for name, value in wrong.items())
        if not wrong:
            yield from AnnealingSampleConfig.problems(section)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GardenMultiTaskTrainer(_Shared, MultiTaskTrainerConfig):
    """The trainer section of an experiment with several tasks; a sampler with `joint` is a warning, not an error."""

    def problems(self) -> Iterator[tuple[str, ...]]:
        yield from (problem for problem in super().problems() if problem[0] != "task_sampler")
        chosen = self.task_sampler.type or "type"
        for path, value in fields.walk(getattr(self.task_sampler, chosen), f"task_sampler.{chosen}"):
            if value is None and chosen != "type":  # our own code reads these values
                yield path, "is null; set a value, or remove it to keep the default"

    def ignored(self) -> Iterator[tuple[str, ...]]:
        yield from super().ignored()
        if self.trainer_type == "joint" and self._is_changed("task_sampler"):
            yield "task_sampler", "has no effect with trainer_type=joint"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GardenMultiTask(GardenExperiment, MultiTaskExperimentConfig):
    """An experiment of Model Garden that trains several tasks together."""

    def problems(self) -> Iterator[tuple[str, ...]]:
        task: Any = self.task
        yield from super().problems()
        for number, routine in enumerate(task.task_routines or ()):
            data = getattr(getattr(routine, "task_config", None), "train_data", None)
            if getattr(data, "enable_tf_data_service", False):
                path = f"task.task_routines[{number}].task_config.train_data.enable_tf_data_service"
                yield path, "batches of several tasks do not come from a tf.data service; leave it out"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GardenMultiEval(GardenExperiment):
    """An experiment of Model Garden that trains one task, and evaluates its weights on the sets of `eval_tasks`."""

    @classmethod
    def is_read_as_garden(cls, name: str) -> bool:
        return name == "eval_tasks"

    def problems(self) -> Iterator[tuple[str, ...]]:
        experiment: Any = self
        yield from super().problems()
        yield from _nulls("eval_tasks", experiment.eval_tasks) or named_twice("eval_tasks", experiment.eval_tasks)


_ALWAYS_SO = {
    "preemption_on_demand_checkpoint": "has no effect: a run that is preempted always saves a checkpoint here",
    "allow_tpu_summary": "has no effect: summaries are written by the host, for every device",
}


_RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_RESTRICTION = re.compile(r"\s*(\S+?)\s*(==|!=|<=|>=|<|>)\s*(\S+)\s*")
"""Such as `task.train_data.is_training != None`."""


def _operand(word: str, values: Mapping[str, Any]) -> Any:
    if word == "None":
        return None
    try:
        return float(word)
    except ValueError:
        return values[word]
