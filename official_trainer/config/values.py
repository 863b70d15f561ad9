"""Normalises Python values: lists to tuples, mappings to frozen ones, integers to floats where a float is declared.

Owns: checking and normalising values that Python code puts into a configuration; the defaults of classes.
Does not own: text (`decode.py`), rules across fields (`checks.py`).
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from typing import Any, Literal

from official_trainer.config import fields, limits
from official_trainer.config.declaration import Config, FrozenDict, OneOf, spelling
from official_trainer.config.errors import Problem, best_match, not_a_choice

Report = Callable[[Problem], Any]


def class_default(cls: type[Config]) -> Config | None:
    """Returns the section as its class declares it, or None when a field has no default."""
    return _class_default(typing.cast(Any, cls))


@functools.cache
def _class_default(cls: Any) -> Config | None:
    return None if fields.required(cls) else normalise(cls(), cls, "", lambda problem: None)


def blank(value: Any) -> Config | None:
    """Returns a section with the defaults of its class, but with subsections of their present classes.

    None if the class declares the same subsections, and for a value that is not a section.
    """
    default = class_default(type(value)) if fields.is_section(value) else None
    if default is None:
        return None
    changes = {}
    for name in fields.hints(type(value)):
        part, declared = getattr(value, name), getattr(default, name)
        if fields.is_section(part) and type(part) is not type(declared):
            changes[name] = blank(part) or class_default(type(part))
    return default.replace(**changes) if changes and all(changes.values()) else None


def normalise(value: Any, tp: Any, path: str, report: Report) -> Any:
    """Returns a Python value in the form that its type has in configurations; see the first line of this module.

    Reports values that are not of the type and leaves them as they are.
    """
    if fields.is_section(value):
        return _normalise_section(value, tp, path, report)
    bare, ranges = fields.strip(tp)
    arms = fields.arms(tp) if fields.is_union(bare) else []
    # The arm of the value's own type comes first: in `int | float`, 1.0 stays a float.
    for arm in sorted(arms, key=lambda arm: fields.strip(arm)[0] is not type(value)):
        found: list[Problem] = []
        result = normalise(value, arm, path, found.append)
        if not found:
            return result
    if fields.is_union(bare) or not _has_type(value, bare):
        words = [str(each) for each in typing.get_args(bare)] if typing.get_origin(bare) is Literal else []
        return _refuse(value, f"must be {fields.describe(bare)}", path, report, near=best_match(str(value), words))
    for limit in ranges:
        if refused := limit.problem(value):
            return _refuse(value, refused, path, report)
    result = value
    if isinstance(value, tuple | list):
        types = fields.item_types(bare, len(value)) if bare is not Any else [Any] * len(value)
        pairs = enumerate(zip(value, types or [], strict=True))
        result = tuple(normalise(item, t, fields.join(path, i), report) for i, (item, t) in pairs)
    elif isinstance(value, dict):
        t = Any if bare is Any else fields.value_type(bare)
        result = FrozenDict({key: normalise(item, t, fields.join(path, key), report) for key, item in value.items()})
    elif bare in (int, float) and type(value) is not bare:
        result = bare(value)
    for part in (result, *(result if isinstance(result, dict) else ())):  # and the names in a mapping
        if refused := limits.unstorable(part):
            return _refuse(value, refused, path, report)
    return result


def _normalise_section(value: Config, tp: Any, path: str, report: Report) -> Any:
    allowed = [bare for bare, _ in map(fields.strip, fields.arms(tp))]
    if Any not in allowed and not any(fields.is_section_type(arm) and isinstance(value, arm) for arm in allowed):
        return _refuse(value, f"must be {fields.describe(tp)}", path, report)
    cls = type(value)
    parts = {
        name: normalise(getattr(value, name), hint, fields.join(path, spelling(name)), report)
        for name, hint in fields.hints(cls).items()
    }
    branches = [name for name in parts if name != "type"]
    if isinstance(value, OneOf) and value.type is not None and value.type not in branches:
        if value.type in fields.choices(type(value)):
            what = f"{cls.__name__}.type allows '{value.type}', for which the class has no field"
            report(Problem(what, fields.join(path, "type"), fix=f"declare the field {value.type}"))
        else:
            report(not_a_choice(fields.join(path, "type"), value.type, branches))
    return value.replace(**parts)


def _has_type(value: Any, tp: Any) -> bool:
    if tp is Any:
        return value is None or isinstance(value, bool | int | float | str | tuple | list | dict)
    if typing.get_origin(tp) is Literal:
        return any(value == option and type(value) is type(option) for option in typing.get_args(tp))
    if fields.is_list(tp):
        return isinstance(value, tuple | list) and fields.item_types(tp, len(value)) is not None
    if fields.is_mapping(tp):
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if tp is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if tp is int:
        return (isinstance(value, int) and not isinstance(value, bool)) or (
            isinstance(value, float) and value.is_integer()
        )
    return isinstance(value, tp) and not fields.is_section_type(tp)


def _refuse(value: Any, what: str, path: str, report: Report, near: str = "") -> Any:
    report(Problem(what, path, got=fields.show(value), near=near))
    return value
