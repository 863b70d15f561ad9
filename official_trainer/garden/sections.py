"""The sections that stand for Model Garden's: what they are by themselves, and what is wrong with their values.

Owns: base classes of the mirrored sections, rules of theirs across fields. Does not own: the mirrored classes
themselves (`mirror.py`).
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from official_trainer.config import Config, ConfigError, ExperimentConfig, OneOf, fields
from official_trainer.config.multitask import (
    AnnealingSampleConfig,
    MultiTaskConfig,
    MultiTaskExperimentConfig,
    MultiTaskTrainerConfig,
    TaskRoutine,
    named_twice,
)
from official_trainer.config.schema import RuntimeConfig, TrainerConfig


class MirroredConfig(Config):
    """A section that stands for one of Model Garden's.

    Attributes:
      GARDEN: their class, `module:qualname`.
    """

    GARDEN: ClassVar[str] = ""
    READS_AS_GARDEN = True


class MirroredOneOf(OneOf):
    """A one-of of theirs; values below a choice that is not selected are ignored there, here with a warning."""

    GARDEN: ClassVar[str] = ""
    IS_LENIENT = True
    READS_AS_GARDEN = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class GardenExperiment(ExperimentConfig):
    """An experiment of Model Garden.

    Attributes:
      RESTRICTIONS: what its values have to fulfil, in Model Garden's words.
      MODULE: the module that registers it there.
    """

    GARDEN: ClassVar[str] = ""
    RESTRICTIONS: ClassVar[tuple[str, ...]] = ()
    MODULE: ClassVar[str] = ""

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        for text in self.RESTRICTIONS:
            yield from _broken(text, self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Shared(Config):
    """A section that both have, with fields of both.

    Attributes:
      GARDEN: their class, `module:qualname`.
      NOT_OURS: fields that only Model Garden has.
    """

    GARDEN: ClassVar[str] = ""
    NOT_OURS: ClassVar[tuple[str, ...]] = ()

    def ignored(self) -> Iterator[tuple[str, str]]:
        for name in self.NOT_OURS:
            if name != "optimizer_config" and self._is_changed(name):
                yield name, _ALWAYS_SO.get(name, "has no effect here, nor is it read by Model Garden's own Trainer")

    def _is_changed(self, name: str) -> bool:
        """Whether a field has another value than the experiment gives it; a run's own params.yaml names them all."""
        return bool(getattr(self, name) != getattr(type(self), name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GardenTrainer(_Shared, TrainerConfig):
    """The trainer section of an experiment of Model Garden."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GardenRuntime(_Shared, RuntimeConfig):
    """The runtime section of an experiment of Model Garden; what has no effect beside its other values is no error."""

    def problems(self) -> Iterator[tuple[str, str]]:
        idle = list(self.idle())
        yield from (problem for problem in super().problems() if problem not in idle)

    def ignored(self) -> Iterator[tuple[str, str]]:
        yield from super().ignored()
        yield from self.idle()


# Several tasks: the rules of our own sections, for theirs.


class GardenRoutine(MirroredConfig):
    """One of several tasks of theirs, which has the name of its config unless it has one of its own."""

    @property
    def name(self) -> str:
        """What the task is called."""
        routine: Any = self
        return routine.task_name or getattr(routine.task_config, "name", None) or ""

    def problems(self) -> Iterator[tuple[str, str]]:
        routine: Any = self
        if routine.task_config is None:
            yield "task_config", "is not set; give the section of the task"
            return
        yield from TaskRoutine.problems(routine)
        if routine.task_weight is None or not routine.task_weight > 0:
            yield "task_weight", f"must be greater than 0, got {fields.show(routine.task_weight)}"


def _nulls(field: str, routines: Any) -> list[tuple[str, str]]:
    """Returns each place in a list of tasks, or the list itself, that is null, and what is wrong with it."""
    places = [field] if routines is None else [f"{field}[{i}]" for i, each in enumerate(routines) if each is None]
    return [(place, "is null; give what it is to be") for place in places]


class GardenMultiTaskConfig(MirroredConfig):
    """Several tasks of theirs that share a model."""

    def problems(self) -> Iterator[tuple[str, str]]:
        section: Any = self
        yield from _nulls("task_routines", section.task_routines) or MultiTaskConfig.problems(section)


class GardenAnnealing(MirroredConfig):
    """Their section for sampling tasks more and more evenly."""

    def problems(self) -> Iterator[tuple[str, str]]:
        section: Any = self
        values = {name: getattr(section, name) for name in ("steps_per_epoch", "total_steps")}
        wrong = {name: value for name, value in values.items() if value is None or value < 1}
        yield from ((name, f"must be at least 1, got {fields.show(value)}") for name, value in wrong.items())
        if not wrong:
            yield from AnnealingSampleConfig.problems(section)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GardenMultiTaskTrainer(_Shared, MultiTaskTrainerConfig):
    """The trainer section of an experiment with several tasks; there, `joint` never has a sampler, and no error."""

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from (problem for problem in super().problems() if problem[0] != "task_sampler")
        chosen = self.task_sampler.type or "type"
        for path, value in fields.walk(getattr(self.task_sampler, chosen), f"task_sampler.{chosen}"):
            if value is None and chosen != "type":  # which our own code reads
                yield path, "is null; give a value, or remove it to keep the default"

    def ignored(self) -> Iterator[tuple[str, str]]:
        yield from super().ignored()
        if self.trainer_type == "joint" and self._is_changed("task_sampler"):
            yield "task_sampler", "has no effect with trainer_type=joint"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GardenMultiTask(GardenExperiment, MultiTaskExperimentConfig):
    """An experiment of Model Garden that trains several tasks together."""

    def problems(self) -> Iterator[tuple[str, str]]:
        task: Any = self.task
        yield from super().problems()
        for number, routine in enumerate(task.task_routines or ()):
            data = getattr(getattr(routine, "task_config", None), "train_data", None)
            if getattr(data, "enable_tf_data_service", False):
                place = f"task.task_routines[{number}].task_config.train_data.enable_tf_data_service"
                yield place, "batches of several tasks do not come from a tf.data service; leave it out"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GardenMultiEval(GardenExperiment):
    """An experiment of Model Garden that trains one task, and evaluates its weights on the sets of `eval_tasks`."""

    READ_AS_GARDEN = frozenset({"eval_tasks"})

    def problems(self) -> Iterator[tuple[str, str]]:
        experiment: Any = self
        yield from super().problems()
        yield from _nulls("eval_tasks", experiment.eval_tasks) or named_twice("eval_tasks", experiment.eval_tasks)


_ALWAYS_SO = {
    "preemption_on_demand_checkpoint": "has no effect here, where a run that is preempted always saves",
    "allow_tpu_summary": "has no effect here: summaries are written by the host, on every device",
}


def garden_class(config: Any) -> str:
    """Returns which class of Model Garden a section stands for, `module:qualname`; empty if none."""
    return getattr(type(config), "GARDEN", "")


_RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_RESTRICTION = re.compile(r"\s*(\S+?)\s*(==|!=|<=|>=|<|>)\s*(\S+)\s*")


def _broken(text: str, config: Config) -> Iterator[tuple[str, str]]:
    """Yields the field and what is wrong if a restriction, such as `task.train_data.is_training != None`, is broken."""
    match = _RESTRICTION.fullmatch(text)
    if match is None:
        return
    left, relation, right = match.groups()
    try:
        given, wanted = _operand(left, config), _operand(right, config)
        holds = _RELATIONS[relation](given, wanted)
    except (ConfigError, TypeError):
        return  # Model Garden would fail here too, over its own mistake
    if not holds:
        yield left, f"must be {relation} {right}, as the experiment says, got {fields.show(given)}"


def _operand(word: str, config: Config) -> Any:
    if word == "None":
        return None
    try:
        return float(word)
    except ValueError:
        return fields.find(config, word)
