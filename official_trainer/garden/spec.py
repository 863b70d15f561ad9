"""The description of a Model Garden configuration in plain values: its classes, their fields, types and values.

Owns: `describe`, which makes the description of a configuration object, and its format. Does not own: our classes made
from it (`from_garden.py`), the cache (`index.py`).

A description can be written as JSON:

    {"classes": {ID: {"doc", "bases": [ID], "one_of": bool, "fields": {NAME: {"type": TYPE, "default": VALUE}}}},
     "config": VALUE, "restrictions": [TEXT]}

ID is `module:qualname`. TYPE is one of the words `any bool int float str null`, or a list that begins with `list`,
`tuple`, `dict`, `union`, `literal` or `section`. VALUE is a scalar, or `{"list": [VALUE]}`, `{"map": {KEY: VALUE}}`,
`{"section": ID, "fields": {NAME: VALUE}}`; a field without a default has no "default". Model Garden does not enforce
its annotations: a default, or a value of the experiment, that is not of the annotated type widens the type.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union

FORMAT = 2
"""The version of the format; increase it when descriptions change."""

CONFIG = "official.modeling.hyperparams.base_config:Config"
"""The base class of Model Garden's sections, and the class of a section that is only a mapping."""
FREE = ["dict", "any"]
"""The type of such a mapping."""

_ONE_OF = "official.modeling.hyperparams.oneof:OneOfConfig"
_SCALARS: dict[Any, str] = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null"}
_LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Iterable)
_MAPPINGS = (dict, collections.abc.Mapping)
_PRIVATE = ("default_params", "restrictions")

Type = Any
Value = Any


def garden_class(config: Any) -> str:
    """Returns the class of Model Garden that a section is for, `module:qualname`; empty if there is none.

    It is an attribute of the classes that `from_garden.py` makes.
    """
    return getattr(type(config), "GARDEN", "")


def describe(config: Any) -> dict[str, Any]:
    """Returns the description of an object of class `official.modeling.hyperparams.Config`."""
    classes = _Classes()
    described = classes.value(config)
    restrictions = list(getattr(config, "_restrictions", None) or [])
    return {"format": FORMAT, "classes": classes.by_id, "config": described, "restrictions": restrictions}


def id_of(cls: type) -> str:
    """Returns the name under which a class is described."""
    return f"{cls.__module__}:{cls.__qualname__}"


def is_config_class(tp: Any) -> bool:
    """Whether `tp` is Model Garden's `Config` or derived from it."""
    return isinstance(tp, type) and any(id_of(base) == CONFIG for base in tp.__mro__)


def is_free(config: Any) -> bool:
    """Whether a section is only a mapping: without a class of its own, or with keys that are not names of fields."""
    return id_of(type(config)) == CONFIG or not all(str(name).isidentifier() for name in _contents(config))


def _contents(config: Any) -> dict[str, Any]:
    """Returns the values of a section by name, including those that its class does not declare."""
    return {name: value for name, value in vars(config).items() if not name.startswith("_")}


def family(classes: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yields the name of a described class and those of its bases."""
    yield name
    for base in classes[name]["bases"]:
        yield from family(classes, base)


class _Classes:
    """Collects the classes of a configuration while its values are described."""

    def __init__(self) -> None:
        self.by_id: dict[str, dict[str, Any]] = {}

    def value(self, value: Any) -> Value:
        if isinstance(value, list | tuple):
            return {"list": [self.value(item) for item in value]}
        if isinstance(value, dict):
            return {"map": {str(key): self.value(item) for key, item in value.items()}}
        if not is_config_class(type(value)):
            return value if type(value) in _SCALARS else str(value)
        if is_free(value):
            return {"map": {str(key): self.value(item) for key, item in _contents(value).items()}}
        self.add(type(value))
        described = self.by_id[id_of(type(value))]["fields"]
        fields = {}
        for name, part in _contents(value).items():
            fields[name] = self.value(part)
            field = described.setdefault(name, {"type": "any", "default": None})
            field["type"] = self._widened(field["type"], fields[name])
        return {"section": id_of(type(value)), "fields": fields}

    def add(self, cls: type) -> None:
        """Describes a class, its bases, and the classes of its fields."""
        if id_of(cls) in self.by_id:
            return
        fields: dict[str, Any] = {}
        bases = [base for base in cls.__bases__ if is_config_class(base) and id_of(base) not in (CONFIG, _ONE_OF)]
        self.by_id[id_of(cls)] = {
            "doc": inspect.cleandoc(cls.__dict__.get("__doc__") or ""),
            "bases": [id_of(base) for base in bases],
            "one_of": any(id_of(base) == _ONE_OF for base in cls.__mro__),
            "fields": fields,
        }
        for base in bases:
            self.add(base)
        try:
            hints = typing.get_type_hints(cls)
        except (NameError, TypeError):  # a name in an annotation cannot be found
            hints = {}
        for field in dataclasses.fields(cls):
            if field.name in _PRIVATE:
                continue
            fields[field.name] = described = {"type": self.type(hints.get(field.name, Any))}
            if field.default is not dataclasses.MISSING:
                described["default"] = self.value(field.default)
            elif field.default_factory is not dataclasses.MISSING:
                described["default"] = self.value(field.default_factory())
            if "default" in described:
                described["type"] = self._widened(described["type"], described["default"])

    def type(self, hint: Any) -> Type:
        """Returns the TYPE of an annotation; `any` for types that a configuration file cannot contain."""
        if hint in _SCALARS:
            return _SCALARS[hint]
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated:
            return self.type(arguments[0])
        if origin in (Union, types.UnionType):
            arms = [self.type(argument) for argument in arguments]
            return "any" if "any" in arms else _union(arms)
        if origin is Literal:
            return ["literal", *arguments]
        if hint in _LISTS or origin in _LISTS:
            if origin is tuple and arguments and arguments[-1] is not Ellipsis:
                return ["tuple", *map(self.type, arguments)]
            return ["list", self.type(arguments[0]) if arguments else "any"]
        if hint in _MAPPINGS or origin in _MAPPINGS:
            return ["dict", self.type(arguments[1]) if len(arguments) == 2 else "any"]
        if is_config_class(hint):
            if id_of(hint) == CONFIG:
                return FREE
            self.add(hint)
            return ["section", id_of(hint)]
        return "any"

    def _widened(self, tp: Type, value: Value) -> Type:
        if self._fits(tp, value):
            return tp
        natural = _natural(value)
        return _union([natural, *(arm for arm in arms_of(tp) if not _is_vaguer(arm, natural))])

    def _fits(self, tp: Type, value: Value) -> bool:
        if tp == "any":
            return not (isinstance(value, dict) and "section" in value)
        if isinstance(tp, str):
            accepted = {"float": (int, float)}.get(tp) or tuple(t for t, word in _SCALARS.items() if word == tp)
            return type(value) in accepted
        form, *rest = tp
        if form == "union":
            return any(self._fits(arm, value) for arm in rest)
        if form == "literal":
            return value in rest
        if not isinstance(value, dict):
            return False
        if form == "section":
            return value.get("section") is not None and rest[0] in family(self.by_id, value["section"])
        if form == "dict":
            return "map" in value and all(self._fits(rest[0], item) for item in value["map"].values())
        items = value.get("list")
        if items is None or (form == "tuple" and len(items) != len(rest)):
            return False
        arms = rest if form == "tuple" else rest * len(items)
        return all(self._fits(arm, item) for arm, item in zip(arms, items, strict=True))


def _natural(value: Value) -> Type:
    """Returns the TYPE of a value."""
    if not isinstance(value, dict):
        return _SCALARS.get(type(value), "any")
    if "section" in value:
        return ["section", value["section"]]
    if "list" in value:
        return ["list", _union([_natural(item) for item in value["list"]]) if value["list"] else "any"]
    return FREE


def arms_of(tp: Type) -> list[Type]:
    """Returns the arms of a union, or a type as its only arm."""
    return tp[1:] if tp[:1] == ["union"] else [tp]


def _union(arms: list[Type]) -> Type:
    flat: list[Type] = []
    for inner in (inner for arm in arms for inner in arms_of(arm)):
        if inner not in flat:
            flat.append(inner)
    return flat[0] if len(flat) == 1 else ["union", *flat]


def _is_vaguer(tp: Type, natural: Type) -> bool:
    """Whether a type is `Config`, the base of every section, where `natural` is one particular section."""
    if tp[:1] == natural[:1] == ["list"]:
        return _is_vaguer(tp[1], natural[1])
    return bool(tp == FREE and natural[:1] == ["section"])
