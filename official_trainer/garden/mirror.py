"""Model Garden's configurations as ours: a section of ours for each of their classes, made from a description.

Owns: these classes, and how an experiment of theirs becomes an `ExperimentConfig` of ours. Does not own: descriptions
(`spec.py`), the way back to their objects (`live.py`).

The task and the optimizer are theirs, field by field. Trainer and runtime are our sections with their names: what their
experiment sets is set, what it leaves at Model Garden's default is at ours, and fields that only they have are there
too. So an experiment of theirs has everything that ours have, and its values are typed, traced and frozen like any.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal

from official_trainer.config import Config, ConfigError, ExperimentConfig, FrozenDict, OneOf, Problem, fields, values
from official_trainer.config.schema import RuntimeConfig, TrainerConfig
from official_trainer.garden.spec import Type, Value

_WORDS = {"any": Any, "bool": bool, "int": int, "float": float, "str": str, "null": type(None)}
_SECTIONS: Mapping[str, type[Config]] = {"trainer": TrainerConfig, "runtime": RuntimeConfig}
"""Sections of an experiment that stay ours."""


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
            if name != "optimizer_config":
                yield name, _ALWAYS_SO.get(name, "has no effect here, nor is it read by Model Garden's own Trainer")


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


_GARDENS: Mapping[type[Config], type[Config]] = {TrainerConfig: GardenTrainer, RuntimeConfig: GardenRuntime}

_ALWAYS_SO = {
    "preemption_on_demand_checkpoint": "has no effect here, where a run that is preempted always saves",
    "allow_tpu_summary": "has no effect here: summaries are written by the host, on every device",
}


def garden_class(config: Any) -> str:
    """Returns which class of Model Garden a section stands for, `module:qualname`; empty if none."""
    return getattr(type(config), "GARDEN", "")


def mirror(description: Mapping[str, Any], module: str = "") -> GardenExperiment:
    """Returns the experiment that a description says; `module` is the one that registers it there, if any does."""
    constants = {"RESTRICTIONS": tuple(description["restrictions"]), "MODULE": module}
    return _Mirrors(description["classes"]).experiment(description["config"], constants)


class _Mirrors:
    """Our classes for those of a description, each made when first needed."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self._described = described
        self._made: dict[str, type[Config]] = {}

    def experiment(self, described: Value, constants: Mapping[str, Any]) -> GardenExperiment:
        """Returns the experiment whose value is described, with what else is known of it."""
        name, held = described["section"], described["fields"]
        told = self._described[name]["fields"]
        made: dict[str, Any] = {}
        types: dict[str, Any] = {}
        for key, part in held.items():
            made[key] = self._ours(_SECTIONS[key], part) if key in _SECTIONS else self.value(part)
            types[key] = type(made[key]) if fields.is_section(made[key]) else self.type(told[key]["type"])
        cls = self._class(name, types, made, (GardenExperiment,), **constants)
        experiment: GardenExperiment = cls(**made)
        return experiment

    def section(self, name: str) -> type[Config]:
        """Returns our class for theirs called `name`."""
        if name not in self._made:
            told = self._described[name]
            bases = tuple(self.section(base) for base in told["bases"])
            types = {key: self.type(field["type"]) for key, field in told["fields"].items()}
            if told["one_of"]:
                types["type"] = _choice(types)
            given = {key: field["default"] for key, field in told["fields"].items() if "default" in field}
            defaults = {key: self.value(value) for key, value in given.items()}
            root = MirroredOneOf if told["one_of"] else MirroredConfig
            self._made[name] = self._class(name, types, defaults, bases or (root,))
        return self._made[name]

    def _class(
        self,
        name: str,
        types: Mapping[str, Any],
        defaults: Mapping[str, Any],
        bases: tuple[type, ...],
        **constants: Any,
    ) -> Any:
        """Returns a frozen dataclass that is called like theirs."""
        module, _, qualname = name.partition(":")
        own = []
        for key, tp in types.items():
            own.append((key, tp, dataclasses.field(default=defaults[key]) if key in defaults else dataclasses.field()))
        namespace = {"__doc__": self._described[name]["doc"], "__module__": module, "GARDEN": name, **constants}
        title = qualname.rpartition(".")[2]
        return dataclasses.make_dataclass(title, own, bases=bases, namespace=namespace, frozen=True, kw_only=True)

    def _ours(self, base: type[Config], described: Value) -> Config:
        """Returns a section of ours with what theirs sets, and with the fields that only theirs has."""
        name, held = described["section"], described["fields"]
        theirs, known, start = self._described[name]["fields"], fields.hints(base), base()
        types: dict[str, Any] = {}
        defaults: dict[str, Any] = {}
        changes: dict[str, Any] = {}
        for key, field in theirs.items():
            value = self.value(held[key])
            if key not in known or fields.is_section(value):
                types[key] = type(value) if fields.is_section(value) else self.type(field["type"])
                changes[key] = defaults[key] = value
            elif held[key] != field.get("default", Ellipsis):
                changes[key] = value
                if _refuses(known[key], value):
                    types[key], defaults[key] = _either(known[key], self.type(field["type"])), getattr(start, key)
        sides = {
            "NOT_OURS": tuple(key for key in types if key not in known),
            "OURS": frozenset(key for key in known if key not in theirs),
        }
        section: Config = self._class(name, types, defaults, (_GARDENS[base],), **sides)(**changes)
        return section

    def type(self, tp: Type) -> Any:
        """Returns a type that a description says in words."""
        if isinstance(tp, str):
            return _WORDS[tp]
        kind, *rest = tp
        if kind == "literal":
            return Literal[tuple(rest)]
        if kind == "section":
            return self.section(rest[0])
        arms: Any = tuple(self.type(arm) for arm in rest)
        if kind == "union":
            return _either(*arms)
        if kind == "dict":
            return dict.__class_getitem__((str, arms[0]))
        return tuple.__class_getitem__(arms if kind == "tuple" else (arms[0], ...))

    def value(self, value: Value) -> Any:
        """Returns a value that a description says."""
        if not isinstance(value, dict):
            return value
        if "list" in value:
            return tuple(self.value(item) for item in value["list"])
        if "map" in value:
            return FrozenDict({key: self.value(item) for key, item in value["map"].items()})
        return self.section(value["section"])(**{key: self.value(part) for key, part in value["fields"].items()})


def _choice(types: Mapping[str, Any]) -> Any:
    """Returns the type of a one-of's `type`: the names of its sections, or nothing."""
    names = tuple(key for key, tp in types.items() if any(map(fields.is_section_type, fields.arms(tp))))
    return _either(Literal[names], type(None)) if names else _either(str, type(None))


def _either(*arms: Any) -> Any:
    return functools.reduce(operator.or_, arms)


def _refuses(tp: Any, value: Any) -> bool:
    problems: list[Problem] = []
    values.normalise(value, tp, "", problems.append)
    return bool(problems)


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
