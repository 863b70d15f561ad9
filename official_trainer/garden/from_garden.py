"""Converts Model Garden's configurations to ours: one section class for each of their classes, from a description.

Owns: making these classes, converting an experiment to an `ExperimentConfig`. Does not own: descriptions (`spec.py`),
the opposite direction (`to_garden.py`).

The task and the optimizer have Model Garden's fields. Trainer and runtime are our sections: values that the experiment
sets are set, fields that it leaves at Model Garden's default have our default, and fields that only Model Garden has
are added. So the experiment has all fields of ours, and its values are typed, traced and frozen like all others.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping
from typing import Any, Literal

from official_trainer.config import Config, FrozenDict, MultiTaskTrainerConfig, fields
from official_trainer.config.decode import normalised
from official_trainer.config.schema import RuntimeConfig, TrainerConfig
from official_trainer.garden.sections import (
    GardenAnnealing,
    GardenExperiment,
    GardenMultiEval,
    GardenMultiTask,
    GardenMultiTaskConfig,
    GardenMultiTaskTrainer,
    GardenOneOf,
    GardenRoutine,
    GardenRuntime,
    GardenSection,
    GardenTrainer,
)
from official_trainer.garden.spec import FREE, Type, Value, arms_of, family

_WORDS = {"any": Any, "bool": bool, "int": int, "float": float, "str": str, "null": type(None)}

_SEVERAL = "official.modeling.multitask.configs"
_EXPERIMENTS: Mapping[str, type[GardenExperiment]] = {
    f"{_SEVERAL}:MultiTaskExperimentConfig": GardenMultiTask,
    f"{_SEVERAL}:MultiEvalExperimentConfig": GardenMultiEval,
}
"""Kinds of experiments by Model Garden's class; all other classes train one task."""
_ROOTS: Mapping[str, type[Config]] = {
    f"{_SEVERAL}:TaskRoutine": GardenRoutine,
    f"{_SEVERAL}:MultiTaskConfig": GardenMultiTaskConfig,
    f"{_SEVERAL}:AnnealingSampleConfig": GardenAnnealing,
}
"""Base classes, with rules, for some of Model Garden's classes."""
_GARDENS: Mapping[type[Config], type[Config]] = {
    TrainerConfig: GardenTrainer,
    MultiTaskTrainerConfig: GardenMultiTaskTrainer,
    RuntimeConfig: GardenRuntime,
}
"""Our sections of an experiment, and the subclass of each that takes Model Garden's additional fields."""


def from_description(description: Mapping[str, Any], module: str = "") -> GardenExperiment:
    """Returns the experiment of a description; `module` is the one that registers it with Model Garden, if any."""
    constants = {"RESTRICTIONS": tuple(description["restrictions"]), "MODULE": module}
    return _Converter(description["classes"]).experiment(description["config"], constants)


class _Converter:
    """Makes our classes for those of a description, each when it is first needed."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self._described = described
        self._made: dict[str, type[Config]] = {}

    def experiment(self, described: Value, constants: Mapping[str, Any]) -> GardenExperiment:
        """Returns the experiment with a described value; `constants` are set on its class."""
        name, values_of = described["section"], described["fields"]
        declared = self._described[name]["fields"]
        related = family(self._described, name)
        base = next((_EXPERIMENTS[class_id] for class_id in related if class_id in _EXPERIMENTS), GardenExperiment)
        trainer = MultiTaskTrainerConfig if base is GardenMultiTask else TrainerConfig
        ours: Mapping[str, type[Config]] = {"trainer": trainer, "runtime": RuntimeConfig}
        made: dict[str, Any] = {}
        types: dict[str, Any] = {}
        for key, part in values_of.items():
            made[key] = self._ours(ours[key], part) if key in ours else self.value(part)
            types[key] = type(made[key]) if fields.is_section(made[key]) else self.type(declared[key]["type"])
        cls = self._class(name, types, made, (base,), **constants)
        experiment: GardenExperiment = cls(**made)
        return experiment

    def section(self, name: str) -> type[Config]:
        """Returns our class for Model Garden's class `name`."""
        if name not in self._made:
            described = self._described[name]
            declared = described["fields"]
            bases = tuple(self.section(base) for base in described["bases"])
            types = {key: self.type(field["type"]) for key, field in declared.items()}
            if described["one_of"]:
                arms = {key: arms_of(field["type"]) for key, field in declared.items()}
                names = tuple(key for key in arms if any(arm == FREE or arm[:1] == ["section"] for arm in arms[key]))
                types["type"] = _either(Literal[names] if names else str, type(None))
            defaults = {key: self.value(field["default"]) for key, field in declared.items() if "default" in field}
            root = _ROOTS.get(name) or (GardenOneOf if described["one_of"] else GardenSection)
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
        """Returns a frozen dataclass with the name of Model Garden's class."""
        module, _, qualname = name.partition(":")
        missing = dataclasses.MISSING
        declared = [(key, tp, dataclasses.field(default=defaults.get(key, missing))) for key, tp in types.items()]
        namespace = {"__doc__": self._described[name]["doc"], "__module__": module, "GARDEN": name, **constants}
        title = qualname.rpartition(".")[2]
        return dataclasses.make_dataclass(title, declared, bases=bases, namespace=namespace, frozen=True, kw_only=True)

    def _ours(self, base: type[Config], described: Value) -> Config:
        """Returns our section with the values that Model Garden's sets, and with the fields that only that has."""
        name, values_of = described["section"], described["fields"]
        theirs, ours, start = self._described[name]["fields"], fields.hints(base), base()
        types: dict[str, Any] = {}
        defaults: dict[str, Any] = {}
        changes: dict[str, Any] = {}
        for key, field in theirs.items():
            value = self.value(values_of[key])
            if key not in ours or fields.is_section(value):
                types[key] = type(value) if fields.is_section(value) else self.type(field["type"])
                changes[key] = defaults[key] = value
            elif values_of[key] != field.get("default", Ellipsis):
                changes[key] = value
                if normalised(value, ours[key])[1]:
                    types[key], defaults[key] = _either(ours[key], self.type(field["type"])), getattr(start, key)
        sides = {
            "NOT_OURS": tuple(key for key in types if key not in ours),
            "OURS": frozenset(key for key in ours if key not in theirs),
            "SET_THERE": frozenset(key for key in ours if key in theirs and "null" not in arms_of(theirs[key]["type"])),
        }
        section: Config = self._class(name, types, defaults, (_GARDENS[base],), **sides)(**changes)
        return section

    def type(self, tp: Type) -> Any:
        """Returns the Python type for a described type."""
        if isinstance(tp, str):
            return _WORDS[tp]
        form, *rest = tp
        if form == "literal":
            return Literal[tuple(rest)]
        if form == "section":
            return self.section(rest[0])
        arms: Any = tuple(self.type(arm) for arm in rest)
        if form == "union":
            return _either(*arms)
        if form == "dict":
            return dict.__class_getitem__((str, arms[0]))
        return tuple.__class_getitem__(arms if form == "tuple" else (arms[0], ...))

    def value(self, value: Value) -> Any:
        """Returns the value for a described value."""
        if not isinstance(value, dict):
            return value
        if "list" in value:
            return tuple(self.value(item) for item in value["list"])
        if "map" in value:
            return FrozenDict({key: self.value(item) for key, item in value["map"].items()})
        return self.section(value["section"])(**{key: self.value(part) for key, part in value["fields"].items()})


def _either(*arms: Any) -> Any:
    return functools.reduce(operator.or_, arms)
