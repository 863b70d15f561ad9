"""Model Garden's configurations as ours: a section of ours for each of their classes, made from a description.

Owns: these classes, and how an experiment of theirs becomes an `ExperimentConfig` of ours. Does not own: descriptions
(`spec.py`), the way back to their objects (`live.py`).

The task and the optimizer are theirs, field by field. Trainer and runtime are our sections with their names: what their
experiment sets is set, what it leaves at Model Garden's default is at ours, and fields that only they have are there
too. So an experiment of theirs has everything that ours have, and its values are typed, traced and frozen like any.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, Optional, Union

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


class MirroredOneOf(OneOf):
    """A one-of of theirs; values below a choice that is not selected are ignored there, here with a warning."""

    GARDEN: ClassVar[str] = ""
    IS_LENIENT = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class GardenExperiment(ExperimentConfig):
    """An experiment of Model Garden.

    Attributes:
      RESTRICTIONS: what its values have to fulfil, in Model Garden's words.
      OWN: fields of trainer and runtime that Model Garden has, by section.
    """

    GARDEN: ClassVar[str] = ""
    RESTRICTIONS: ClassVar[tuple[str, ...]] = ()

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        for text in self.RESTRICTIONS:
            yield from _broken(text, self)


def garden_class(config: Any) -> str:
    """Returns which class of Model Garden a section stands for, `module:qualname`; empty if none."""
    return getattr(type(config), "GARDEN", "")


def mirror(description: Mapping[str, Any]) -> GardenExperiment:
    """Returns the experiment that a description says."""
    return _Mirrors(description["classes"]).experiment(description["config"], description["restrictions"])


class _Mirrors:
    """Our classes for those of a description, each made when first needed."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self._described = described
        self._made: dict[str, type[Config]] = {}

    def experiment(self, described: Value, restrictions: list[str]) -> GardenExperiment:
        name, held = described["section"], described["fields"]
        made = {key: self._ours(_SECTIONS[key], held[key]) if key in _SECTIONS else self.value(held[key]) for key in held}
        own = [(key, type(part) if fields.is_section(part) else self.type(self._described[name]["fields"][key]["type"]))
               for key, part in made.items()]
        cls = self._class(name, own, made, (GardenExperiment,), {"RESTRICTIONS": tuple(restrictions)})
        return cls(**made)

    def section(self, name: str) -> type[Config]:
        """Returns our class for theirs called `name`."""
        if name not in self._made:
            told = self._described[name]
            bases = tuple(self.section(base) for base in told["bases"])
            root: type[Config] = MirroredOneOf if told["one_of"] else MirroredConfig
            types: dict[str, Any] = {key: self.type(field["type"]) for key, field in told["fields"].items()}
            if told["one_of"]:
                choices = tuple(key for key, tp in types.items() if fields.is_section_type(fields.strip(_bare(tp))[0]))
                types["type"] = Optional[Literal[choices]] if choices else Optional[str]
            defaults = {key: self.value(field["default"]) for key, field in told["fields"].items() if "default" in field}
            self._made[name] = self._class(name, list(types.items()), defaults, bases or (root,), {})
        return self._made[name]

    def _class(self, name: str, types: list[tuple[str, Any]], defaults: Mapping[str, Any], bases: Any, extra: Any) -> Any:
        module, _, qualname = name.partition(":")
        own = [
            (key, tp, dataclasses.field(default=defaults[key]) if key in defaults else dataclasses.field())
            for key, tp in types
        ]
        namespace = {"__doc__": self._described[name]["doc"], "GARDEN": name, **extra}
        title = qualname.rpartition(".")[2]
        return dataclasses.make_dataclass(
            title, own, bases=bases, namespace=namespace, frozen=True, kw_only=True, module=module
        )

    def _ours(self, base: type[Config], described: Value) -> Config:
        """Returns a section of ours with what theirs sets, and with the fields that only theirs has."""
        name, held = described["section"], described["fields"]
        told, known = self._described[name]["fields"], fields.hints(base)
        types: list[tuple[str, Any]] = []
        defaults, changes = {}, {}
        for key, field in told.items():
            value = self.value(held[key])
            is_shared = key in known and not (isinstance(value, Config))
            if is_shared and ("default" not in field or held[key] != field["default"]):
                changes[key] = value
                if _refuses(known[key], value):
                    types.append((key, Union[known[key], self.type(field["type"])]))
                    defaults[key] = getattr(base(), key)
            elif not is_shared:
                types.append((key, type(value) if isinstance(value, Config) else self.type(field["type"])))
                changes[key] = defaults[key] = value
        return self._class(name, types, defaults, (base,), {})(**changes)

    def type(self, tp: Type) -> Any:
        """Returns a type that a description says in words."""
        if isinstance(tp, str):
            return _WORDS[tp]
        kind, *rest = tp
        if kind == "literal":
            return Literal[tuple(rest)]
        if kind == "section":
            return self.section(rest[0])
        arms = tuple(self.type(arm) for arm in rest)
        if kind == "union":
            return Union[arms]
        if kind == "dict":
            return dict[str, arms[0]]
        return tuple[arms] if kind == "tuple" else tuple[arms[0], ...]

    def value(self, value: Value) -> Any:
        """Returns a value that a description says."""
        if not isinstance(value, dict):
            return value
        if "list" in value:
            return tuple(self.value(item) for item in value["list"])
        if "map" in value:
            return FrozenDict({key: self.value(item) for key, item in value["map"].items()})
        return self.section(value["section"])(**{key: self.value(part) for key, part in value["fields"].items()})


def _bare(tp: Any) -> Any:
    """Returns what an optional type is when it is there."""
    arms = [arm for arm in fields.arms(tp) if arm is not type(None)]
    return arms[0] if len(arms) == 1 else tp


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
