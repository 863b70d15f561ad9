"""The fields of a section: their types, types in words, documentation, allowed values; paths to them.

Owns: access to sections (`is_section`, `hints`, `rebuild`), questions about types, the syntax of paths.
Does not own: reading (`decode.py`) or checking (`checks.py`) values.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import keyword
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeGuard, Union

from official_trainer.config import other_names
from official_trainer.config.declaration import ChangeKind, Config, OneOf, spelling
from official_trainer.config.errors import ConfigError, Origin, Problem, best_match, line_of_class
from official_trainer.shown import shorten

NoneType = type(None)
_DATACLASS = "@dataclasses.dataclass(frozen=True, kw_only=True)"
_MOST_PLACES = 5000
Key = str | int

KEY = r"(?:[A-Za-z0-9_][A-Za-z0-9_-]*|'(?:[^']|'')*'|\"[^\"]*\")"
PATH = rf"{KEY}(?:\.{KEY}|\[-?[0-9]+\])*"
_INDEX = re.compile(r"-?[0-9]+")
_LONGEST_INDEX = 19  # no list is as long, and Python refuses to convert thousands of digits
_PART = re.compile(rf"\[(-?[0-9]+)\]|\.?({KEY})")
_WORDS: dict[Any, tuple[str, str]] = {
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
    str: ("text", "texts"),
    NoneType: ("null", "nulls"),
    Any: ("any value", "any values"),
}


# Sections.


def is_section(value: Any) -> TypeGuard[Config]:
    """Whether `value` is a section."""
    return isinstance(value, Config)


def is_section_type(tp: Any) -> TypeGuard[type[Config]]:
    """Whether values of type `tp` are sections."""
    return isinstance(tp, type) and issubclass(tp, Config)


def hints(cls: type[Config]) -> Mapping[str, Any]:
    """Returns the type of each field of a section class, `Annotated` kept.

    Raises:
      ConfigError: the class is declared in a way that no configuration can be read into.
    """
    return _hints(typing.cast(Any, cls))


@functools.cache
def _hints(cls: Any) -> Mapping[str, Any]:
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    try:
        declared_types = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        _refuse(cls, "", f"the type {error.name!r} cannot be found; define or import it at the top of the module")
    for name in inspect.get_annotations(cls):
        if name not in cls.__dataclass_fields__ and typing.get_origin(declared_types[name]) is not typing.ClassVar:
            _refuse(cls, name, f"{name!r} is not a field; put {_DATACLASS} on the class")
    for name in names:
        if callable(getattr(OneOf if issubclass(cls, OneOf) else Config, name, None)):
            _refuse(cls, name, f"a field must not be called {name!r}, which is a method of every section; rename it")
    for name in names:
        _check_readable(cls, name, declared_types[name])
    readable = {name: _without_change_kind(declared_types[name]) for name in names}
    if branches := [name for name in names if issubclass(cls, OneOf) and name != "type"]:
        readable["type"] = _choice(cls, readable["type"], branches)
    return types.MappingProxyType(readable)


def _choice(cls: type[OneOf], tp: Any, branches: list[str]) -> Any:
    """Returns the type of a one-of's `type`, in which each choice has its field."""
    literals = [arm for arm in arms(tp) if typing.get_origin(arm) is Literal]
    if not literals:
        words: Any = Literal[tuple(branches)]
        return words | None if NoneType in arms(tp) else words
    if missing := [word for literal in literals for word in typing.get_args(literal) if word not in branches]:
        _refuse(cls, "type", f"type allows {missing[0]!r}, for which the class has no field; declare the field")
    return tp


def _without_change_kind(tp: Any) -> Any:
    bare, *extra = typing.get_args(tp) if typing.get_origin(tp) is Annotated else [tp]
    kept = [note for note in extra if not isinstance(note, ChangeKind)]
    return Annotated[(bare, *kept)] if kept else bare


def change_kinds(cls: type[Config]) -> Mapping[str, ChangeKind]:
    """Returns what a change of each field of a section class means, of those that are declared with it."""
    return _change_kinds(typing.cast(Any, cls))


@functools.cache
def _change_kinds(cls: Any) -> Mapping[str, ChangeKind]:
    declared = typing.get_type_hints(cls, include_extras=True)
    notes = {name: getattr(tp, "__metadata__", ()) for name, tp in declared.items()}
    kinds = {name: note for name, noted in notes.items() for note in noted if isinstance(note, ChangeKind)}
    return types.MappingProxyType(kinds)


def field_name(key: Key) -> str:
    """Returns the name of the field that is written as `key`: `not_` for `not`."""
    return f"{key}_" if keyword.iskeyword(str(key)) else str(key)


def required(cls: type[Config]) -> list[str]:
    """Returns the fields without a default."""
    missing = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.init and f.default is missing and f.default_factory is missing]


def choices(cls: type[OneOf]) -> list[str]:
    """Returns the choices for the `type` of a one-of."""
    literals = [arm for arm in arms(hints(cls)["type"]) if typing.get_origin(arm) is Literal]
    return [choice for literal in literals for choice in typing.get_args(literal)]


def docs(cls: type[Config]) -> Mapping[str, str]:
    """Returns the text of each field from the `Attributes:` blocks of the class and its bases.

    A section without such a text has the first line of its class.
    """
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        _, _, block = inspect.cleandoc(base.__dict__.get("__doc__") or "").partition("Attributes:\n")
        name = ""
        for line in block.splitlines():
            if not line.startswith("  "):
                if line.strip():
                    break
            elif match := re.match(r"  (\w+): (.*)", line):
                name, texts[match[1]] = match[1], match[2]
            elif name and line.strip():
                texts[name] += " " + line.strip()
    sections = {name: summary(tp) for name, tp in hints(cls).items() if is_section_type(tp)}
    return types.MappingProxyType({**sections, **texts})


def summary(cls: type[Config]) -> str:
    """Returns the first line of the class's own docstring."""
    doc = inspect.cleandoc(cls.__dict__.get("__doc__") or "").partition("\n")[0]
    return "" if doc.startswith(f"{cls.__name__}(") else doc  # dataclass writes the signature where there is none


def _refuse(cls: type, name: str, what: str) -> typing.NoReturn:
    what = f"class {cls.__module__}.{cls.__qualname__}: {what}"
    raise ConfigError([Problem(what, origin=line_of_class(cls, name))])


def _check_readable(cls: type, name: str, tp: Any) -> None:
    bare, _ = strip(tp)
    if bare in _WORDS or is_section_type(bare) or typing.get_origin(bare) is Literal:
        return
    if is_union(bare) or is_list(bare) or is_mapping(bare):
        for part in typing.get_args(bare):
            if part is not Ellipsis:
                _check_readable(cls, name, part)
        return
    is_class = isinstance(bare, type) and (dataclasses.is_dataclass(bare) or bare.__module__ == cls.__module__)
    fix = f"; make it a subclass of config.Config, and write {_DATACLASS} above it" if is_class else ""
    allowed = "numbers, text, bool, None, Literal, tuple[X, ...], dict[str, X] and config classes"
    what = f"field {name!r} has type {bare.__name__ if is_class else bare}, which a configuration cannot contain{fix}"
    _refuse(cls, name, f"{what}; allowed: {allowed}")


# Types.


def strip(tp: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns a type without its `Annotated`, and the limits found there."""
    if typing.get_origin(tp) is Annotated:
        bare, *extra = typing.get_args(tp)
        return bare, tuple(limit for limit in extra if hasattr(limit, "problem"))
    return tp, ()


def is_union(tp: Any) -> bool:
    """Whether `tp` is `A | B`."""
    return typing.get_origin(tp) in (Union, types.UnionType)


def arms(tp: Any) -> list[Any]:
    """Returns the members of a union, or the type itself."""
    bare, _ = strip(tp)
    return list(typing.get_args(bare)) if is_union(bare) else [tp]


def is_list(tp: Any) -> bool:
    """Whether values of `tp` are written as a list; they are held as a tuple."""
    return tp in (tuple, list) or typing.get_origin(tp) in (tuple, list)


def item_types(tp: Any, count: int) -> list[Any] | None:
    """Returns the types of `count` items of a list type, or None when it cannot have so many."""
    args = typing.get_args(tp)
    if not args:
        return [Any] * count
    if typing.get_origin(tp) is list or args[-1] is Ellipsis:
        return [args[0]] * count
    return list(args) if len(args) == count else None


def is_mapping(tp: Any) -> bool:
    """Whether values of `tp` are free mappings from text."""
    return tp is dict or typing.get_origin(tp) is dict


def value_type(tp: Any) -> Any:
    """Returns the type of the values of a mapping type."""
    return typing.get_args(tp)[1] if typing.get_args(tp) else Any


def describe(tp: Any, many: bool = False) -> str:
    """Returns a type in words, to follow "must be"."""
    bare, limits = strip(tp)
    if limits:
        return " ".join([describe(bare, many), *(limit.allowed for limit in limits)])
    if bare in _WORDS:
        return _WORDS[bare][many]
    if is_union(bare):
        return _either([describe(arm, many) for arm in typing.get_args(bare)])
    if typing.get_origin(bare) is Literal:
        return _either([show(arg) for arg in typing.get_args(bare)])
    if is_list(bare):
        args = typing.get_args(bare)
        if args and args[-1] is not Ellipsis and typing.get_origin(bare) is tuple:
            return f"{'lists' if many else 'a list'} of {len(args)} items ({', '.join(describe(arg) for arg in args)})"
        return f"{'lists' if many else 'a list'} of {describe(args[0] if args else Any, many=True)}"
    if is_mapping(bare):
        return f"{'mappings' if many else 'a mapping'} to {describe(value_type(bare), many=True)}"
    return f"{'sections' if many else 'a section'} ({bare.__name__})"


def show(value: Any) -> str:
    """Returns a value as messages show it."""
    if is_section(value):
        return f"a {type(value).__name__}"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to write thousands of digits
    return shorten(repr(value))


def _either(texts: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


# Paths.


def is_path(text: str) -> bool:
    """Whether `parse_path` can split `text`."""
    return re.fullmatch(PATH, text) is not None


def parse_path(text: str) -> tuple[Key, ...]:
    """Splits `a.b[0].'c d'` into keys; the text must match `PATH`."""
    keys: list[Key] = []
    for index, key in _PART.findall(text):
        if index:
            keys.append(as_index(index) or 0)
        elif key[0] == "'":
            keys.append(key[1:-1].replace("''", "'"))
        else:
            keys.append(key.strip('"'))
    return tuple(keys)


def as_index(key: Key) -> int | None:
    """Returns the index that a key is in a list, or None if it is a name. One of very many digits is cut."""
    return int(str(key)[:_LONGEST_INDEX]) if _INDEX.fullmatch(str(key)) else None


def join(path: str, key: Key) -> str:
    """Returns the path of `key` inside `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    plain = key.isidentifier() or (re.fullmatch(KEY, key) and key[0] not in "'\"")
    name = key if plain else "'" + key.replace("'", "''") + "'"
    return f"{path}.{name}" if path else name


def path_of(keys: tuple[Key, ...]) -> str:
    """Returns keys as a path."""
    return functools.reduce(join, keys, "")


def children(value: Any) -> Iterator[tuple[Key, Any]]:
    """Yields the parts of a section, list or mapping; nothing for other values."""
    if is_section(value):
        yield from ((spelling(name), getattr(value, name)) for name in hints(type(value)))
    elif isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, tuple | list):
        yield from enumerate(value)


def child(value: Any, key: Key) -> Any:
    """Returns the part of a section, list or mapping at `key`; Ellipsis if there is none."""
    if is_section(value):
        name = field_name(key)
        return getattr(value, name) if name in hints(type(value)) and spelling(name) == key else Ellipsis
    if isinstance(value, dict):
        return value.get(key, Ellipsis)
    if isinstance(value, tuple | list) and isinstance(key, int) and 0 <= key < len(value):
        return value[key]
    return Ellipsis


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every part of `value` with its path, outer parts first."""
    yield path, value
    for key, part in children(value):
        yield from walk(part, join(path, key))


def settle(value: Any, keys: tuple[Key, ...]) -> tuple[Key, ...]:
    """Returns `keys` with items of lists counted from 0: `-1` and the text `0` become numbers."""
    settled: list[Key] = []
    for key in keys:
        if isinstance(value, tuple) and (index := as_index(key)) is not None:
            key = index + (len(value) if index < 0 else 0)
        settled.append(key)
        value = child(value, key)
    return tuple(settled)


def at(value: Any, keys: tuple[Key, ...]) -> Any:
    """Returns the value at `keys` below `value`, or Ellipsis if there is none."""
    for key in settle(value, keys):
        value = child(value, key)
    return value


def find(config: Any, path: str) -> Any:
    """Returns the value at `path`.

    Raises:
      ConfigError: there is no such value; names the nearest.
    """
    value, reached = config, ""
    for key in settle(config, parse_path(path) if is_path(path) else (path,)):
        part = child(value, key)
        if part is Ellipsis:
            raise ConfigError([unknown_field(config, value, reached, key)])
        value, reached = part, join(reached, key)
    return value


def unknown_field(root: Any, section: Any, path: str, key: Key, origin: Origin | None = None) -> Problem:
    """Returns the problem that `section` (a value, or the class of one), at `path` below `root`, has no part `key`."""
    cls = section if isinstance(section, type) else type(section)
    names = list(map(spelling, hints(cls))) if is_section_type(cls) else [str(name) for name, _ in children(section)]
    if isinstance(section, tuple):
        what, allowed = "there is no such item", f"0 to {len(section) - 1}" if section else "none, the list is empty"
        return Problem(what, join(path, key), allowed=allowed, origin=origin)
    if not is_section_type(cls) and not isinstance(section, dict):
        what = f"{path} is {show(section)}, which has no fields"
        return Problem(what, join(path, key), origin=origin)
    if not path and origin is not None and origin.kind == "file":
        names.append("base")  # files that this one is over
    ours = other_names.ours(str(key))
    near = next((name for name in ours if name in names), "")
    elsewhere = "" if near else _inside(cls, str(key), path) or _elsewhere(root, str(key), ours)
    if not near and not (ours and elsewhere):
        near = best_match(str(key), names)
    where = f" of {cls.__name__}" if is_section_type(cls) and path else ""
    return Problem(
        f"unknown field{where}",
        join(path, key),
        allowed="" if near or elsewhere else ", ".join(names[:12]) + (", …" if len(names) > 12 else ""),
        near=near,
        fix=elsewhere,
        origin=origin,
    )


def _elsewhere(root: Any, key: str, ours: Sequence[str]) -> str:
    """Says where else a field `key` is, or what it is called here; a value before a section, and both before others."""
    for sections in (in_force(root), walk(root)):
        named = [(path, value) for path, value in itertools.islice(sections, _MOST_PLACES) if "." in path]
        matching = [(path, value) for path, value in named if path.rpartition(".")[2] in (key, *ours)]
        paths = [path for path, value in matching if not is_section(value)] or [path for path, _ in matching]
        if paths and all(path.endswith(f".{key}") for path in paths):
            return f"{key} exists at {' and '.join(paths[:3])}"
        if paths:
            return f"{key} is called {' or '.join(paths[:3])} here"
    return other_names.OF_ITEMS.get(key.lower(), "")


def _inside(cls: Any, key: str, path: str) -> str:
    """Says that a field `key` is one of a section in this one, which may not be there yet, as `type` of `source`."""
    for name, tp in hints(cls).items() if is_section_type(cls) else ():
        if NoneType in arms(tp) and any(is_section_type(arm) and key in hints(arm) for arm in arms(tp)):
            return f"put it under {name}, as {join(join(path, name), key)}"
    return ""


def in_force(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """As `walk`, but of a one-of only what is selected."""
    yield path, value
    for key, part in children(value):
        if not isinstance(value, OneOf) or key in ("type", value.type):
            yield from in_force(part, join(path, key))
