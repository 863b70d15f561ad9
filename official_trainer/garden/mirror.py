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
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from official_trainer.config import Config, FrozenDict, MultiTaskTrainerConfig, Problem, fields, values
from official_trainer.config.schema import RuntimeConfig, TrainerConfig
from official_trainer.garden.sections import (
    GardenAnnealing,
    GardenExperiment,
    GardenMultiEval,
    GardenMultiTask,
    GardenMultiTaskConfig,
    GardenMultiTaskTrainer,
    GardenRoutine,
    GardenRuntime,
    GardenTrainer,
    MirroredConfig,
    MirroredOneOf,
)
from official_trainer.garden.spec import FREE, Type, Value

_WORDS = {"any": Any, "bool": bool, "int": int, "float": float, "str": str, "null": type(None)}

_SEVERAL = "official.modeling.multitask.configs"
_EXPERIMENTS: Mapping[str, type[GardenExperiment]] = {
    f"{_SEVERAL}:MultiTaskExperimentConfig": GardenMultiTask,
    f"{_SEVERAL}:MultiEvalExperimentConfig": GardenMultiEval,
}
"""Kinds of experiments, by Model Garden's classes; others train one task."""
_ROOTS: Mapping[str, type[Config]] = {
    f"{_SEVERAL}:TaskRoutine": GardenRoutine,
    f"{_SEVERAL}:MultiTaskConfig": GardenMultiTaskConfig,
    f"{_SEVERAL}:AnnealingSampleConfig": GardenAnnealing,
}
"""Sections of theirs that have rules here."""
_GARDENS: Mapping[type[Config], type[Config]] = {
    TrainerConfig: GardenTrainer,
    MultiTaskTrainerConfig: GardenMultiTaskTrainer,
    RuntimeConfig: GardenRuntime,
}
"""Sections of an experiment that stay ours, and what they become."""


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
        kind = next((_EXPERIMENTS[each] for each in self._family(name) if each in _EXPERIMENTS), GardenExperiment)
        trainer = MultiTaskTrainerConfig if kind is GardenMultiTask else TrainerConfig
        ours: Mapping[str, type[Config]] = {"trainer": trainer, "runtime": RuntimeConfig}
        made: dict[str, Any] = {}
        types: dict[str, Any] = {}
        for key, part in held.items():
            made[key] = self._ours(ours[key], part) if key in ours else self.value(part)
            types[key] = type(made[key]) if fields.is_section(made[key]) else self.type(told[key]["type"])
        cls = self._class(name, types, made, (kind,), **constants)
        experiment: GardenExperiment = cls(**made)
        return experiment

    def _family(self, name: str) -> Iterator[str]:
        """Yields one of their classes and its bases."""
        yield name
        for base in self._described[name]["bases"]:
            yield from self._family(base)

    def section(self, name: str) -> type[Config]:
        """Returns our class for theirs called `name`."""
        if name not in self._made:
            told = self._described[name]
            bases = tuple(self.section(base) for base in told["bases"])
            types = {key: self.type(field["type"]) for key, field in told["fields"].items()}
            if told["one_of"]:
                types["type"] = _choice(told["fields"])
            given = {key: field["default"] for key, field in told["fields"].items() if "default" in field}
            defaults = {key: self.value(value) for key, value in given.items()}
            root = _ROOTS.get(name) or (MirroredOneOf if told["one_of"] else MirroredConfig)
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


def _choice(described: Mapping[str, Any]) -> Any:
    """Returns the type of a one-of's `type`: the names of its sections, or nothing."""
    names = tuple(key for key, field in described.items() if any(map(_holds_fields, _arms(field["type"]))))
    return _either(Literal[names], type(None)) if names else _either(str, type(None))


def _arms(tp: Type) -> list[Type]:
    return tp[1:] if tp[:1] == ["union"] else [tp]


def _holds_fields(tp: Type) -> bool:
    return tp == FREE or tp[:1] == ["section"]


def _either(*arms: Any) -> Any:
    return functools.reduce(operator.or_, arms)


def _refuses(tp: Any, value: Any) -> bool:
    problems: list[Problem] = []
    values.normalise(value, tp, "", problems.append)
    return bool(problems)
