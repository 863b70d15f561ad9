"""Converts nodes to values by the declared types of the fields. Sections are frozen; new ones are built bottom-up.

Owns: merging a mapping into a section, lists, free mappings, unions, the short form of a one-of, paths into all these;
the same types for values of Python code, and the defaults of classes.
Does not own: single values (`scalars.py`), rules across fields (`checks.py`).

Decoding starts from the current value: where a field is declared as `TaskConfig` and holds a subclass, the fields of
the subclass are read. Sections merge field by field; all other values, also lists and free mappings, are replaced.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Mapping
from typing import Any, Literal

from official_trainer.config import fields, limits, other_names, reference_text, scalars
from official_trainer.config.components import Component, with_branch
from official_trainer.config.declaration import Config, FrozenDict, OneOf, spelling
from official_trainer.config.errors import ConfigError, Origin, Problem, best_match
from official_trainer.config.reading import Node, node_at
from official_trainer.config.reference_text import Reference
from official_trainer.config.text import quoted
from official_trainer.shown import counted, shorten

_ORDER: Mapping[Any, int] = {bool: 0, int: 1, float: 2, str: 9, Any: 10}
"""The order in which the members of a union are tried; all other types are 5."""
_NUMBER = re.compile(r"[-+]?\d*\.?\d+(e[-+]?\d+)?", re.IGNORECASE)
_CODE = Origin("default")
"""Where values of Python code begin; what set them is found by comparing them with the defaults of their classes."""
FAILED: Any = type("Failed", (), {"__repr__": lambda _: "FAILED"})()
"""What decoding returns when it has reported a problem instead."""


class Record:
    """What decoding has set, and where that was written.

    Attributes:
      references: by its path, each text with `${…}` that gave a value in force.
    """

    def __init__(self) -> None:
        self.references: dict[str, Reference] = {}
        self._num_changes = 0
        self._set: dict[str, tuple[int, Origin]] = {}
        """By path, the number of the change that set it last, and who that was."""
        self._replaced: dict[str, int] = {}
        """By path of a section, list or mapping, the number of the change that put a new one in place of it."""

    def note(self, path: str, origin: Origin) -> None:
        """Records that `origin` set `path`."""
        self._num_changes += 1
        self._set[path] = self._num_changes, origin

    def replace(self, path: str) -> None:
        """Records that the section, list or mapping at `path` was replaced.

        What is in it and is not set later has the default of its class.
        """
        self._num_changes += 1
        self._replaced[path] = self._num_changes

    def last(self, path: str) -> Origin | None:
        """Returns the last file or flag that set `path`, or None."""
        return self._set[path][1] if path in self._set else None


class Decoder:
    """Reads nodes into a configuration, collects problems, and records the origin of each value.

    Attributes:
      root: the configuration so far; texts that refer to other fields are in it as a `Reference`.
      trail: receives what sets each value.
      problems: receives what is wrong.
    """

    def __init__(self, root: Config, trail: Record, problems: list[Problem]) -> None:
        self.root = root
        self.trail = trail
        self.problems = problems
        self._as_garden = False
        self._depth = 0
        self._num_references = 0

    def merge(self, node: Node) -> None:
        """Merges a mapping, such as a whole file, or a part at a path into the root."""
        result = self.value(node, type(self.root), self.root, "")
        self.root = self.root if result is FAILED else result

    # Values.

    def value(self, node: Node, tp: Any, current: Any, path: str) -> Any:
        """Returns the value of `node`, read as type `tp`, for `path`, whose present value is `current` (None: none)."""
        if len(self.problems) >= limits.MAX_PROBLEMS:
            return FAILED
        if self._depth > limits.MAX_DEPTH:
            what = f"is nested more than {limits.MAX_DEPTH} levels deep"
            return self._fail(node, path, what, fix="write fewer levels")
        node = self._referring(node)
        if isinstance(current, Reference) and (node.is_part or node.appends):
            what = f"is {current.shown} of {current.origin.brief}, so that no part of it can be changed"
            return self._fail(node, path, what, fix="set it as a whole")
        self._depth += 1
        read = self._append if node.appends else self._typed
        result = read(node, tp, current, path)
        self._depth -= 1
        if result is not FAILED and node.start is not _CODE and not fields.is_section(result):
            first, here = self.trail.last(path), node.origin
            # A file may set a field in two places, as `a: {b: 1}` and as `a.b: 2`.
            is_same_file = first is not None and here.kind == first.kind == "file" and first.name == here.name
            if first is not None and is_same_file and first != here and not node.is_part:
                self._fail(node, path, f"is set twice in this file, first on line {first.line}", fix="keep one")
            self.trail.note(path, here)
        return result

    def _referring(self, node: Node) -> Node:
        """Returns a scalar that refers to other fields as a reference, and another one without its escapes."""
        if node.form != "scalar" or "${" not in node.value or not self.root.HAS_REFERENCES:
            return node
        if reference_text.refers(node.value):
            reference = Reference(node.value, node.origin)
            return dataclasses.replace(node, form="reference", value=reference)
        return dataclasses.replace(node, value=reference_text.unescaped(node.value))

    def _typed(self, node: Node, tp: Any, current: Any, path: str) -> Any:
        bare, ranges = fields.strip(tp)
        if node.is_part:
            return self._part(node, tp, current, path)
        types = [fields.strip(arm)[0] for arm in fields.arms(tp) if arm is not fields.NoneType]
        if node.form == "reference" and not all(map(fields.is_section_type, types)):  # nothing can refer to a section
            self._num_references += 1
            if self._num_references > limits.MAX_REFERENCES:
                what = f"is one more than the {limits.MAX_REFERENCES} references that are allowed"
                return self._fail(node, path, what, fix="write the value")
            return node.value
        if node.form == "python" and fields.is_section(node.value):
            return self._python_section(node, tp, path)
        if self._as_garden and node.is_null and node.value not in ("", "None"):  # YAML's null; None is text there
            return None
        if fields.is_union(bare):
            return self._union(node, bare, current, path)
        if fields.is_section_type(bare):
            return self._section(node, bare, current, path)
        if fields.is_list(bare) or (bare is Any and node.form == "list"):
            return self._list(node, tuple if bare is Any else bare, current, path)
        if fields.is_mapping(bare) or (bare is Any and node.form == "mapping"):
            return self._mapping(node, bare, current, path)
        return self._scalar(node, bare, ranges, path)

    def _scalar(self, node: Node, tp: Any, ranges: tuple[Any, ...], path: str, narrow: bool = False) -> Any:
        if node.form == "python":
            return self._python_value(node, tp, ranges, path)
        if node.form != "scalar":
            return self._fail(node, path, f"must be {fields.describe(tp)}", got=node.shown)
        reads_null = tp in (str, Any, fields.NoneType) or node.value in typing.get_args(tp)
        if node.is_null and not reads_null:
            fix = "give a value, or remove it to keep the default"
            return self._fail(node, path, f"must be {fields.describe(tp)}", got=node.shown, fix=fix)
        if tp is fields.NoneType:
            return None if node.is_null else self._fail(node, path, "must be null", got=node.shown)
        try:
            result = scalars.value_of(node.value, tp, quoted=node.quoted, narrow=narrow)
        except scalars.MisreadError as error:
            return self._fail(node, path, got=node.shown, **error.details)
        return self._in_range(node, result, ranges, path)

    def _in_range(self, node: Node, value: Any, ranges: tuple[Any, ...], path: str) -> Any:
        for limit in ranges:
            if refused := limit.problem(value):
                return self._fail(node, path, refused, got=fields.show(value) if node.form == "python" else node.value)
        return value

    def _python_value(self, node: Node, tp: Any, ranges: tuple[Any, ...], path: str) -> Any:
        """Returns a value of Python code in the form that its type has in configurations: an int as a float."""
        value = node.value
        if not scalars.is_of(value, tp):
            words = [str(word) for word in typing.get_args(tp)]
            near = best_match(str(value), words) if typing.get_origin(tp) is Literal else ""
            fix = "remove the quotes" if tp in (int, float) and scalars.is_number(value) else ""
            return self._fail(node, path, f"must be {fields.describe(tp)}", got=node.shown, near=near, fix=fix)
        result = tp(value) if tp in (int, float) else value
        if refused := limits.unstorable(result):
            return self._fail(node, path, refused, got=node.shown)
        return self._in_range(node, result, ranges, path)

    def _python_section(self, node: Node, tp: Any, path: str) -> Any:
        """Returns a section of Python code with its values in that form; those that are wrong stay."""
        section: Config = node.value
        allowed = [fields.strip(arm)[0] for arm in fields.arms(tp)]
        if Any not in allowed and not any(fields.is_section_type(arm) and isinstance(section, arm) for arm in allowed):
            return self._fail(node, path, f"must be {fields.describe(tp)}", got=node.shown)
        cls, changes = type(section), {}
        for name, hint in fields.hints(cls).items():
            value = getattr(section, name)
            result = self.value(python_node(value), hint, None, fields.join(path, spelling(name)))
            if result is not FAILED and result is not value:
                changes[name] = result
        return section.replace(**changes) if changes else section

    def _union(self, node: Node, tp: Any, current: Any, path: str) -> Any:
        arms = list(typing.get_args(tp))
        if fields.NoneType in arms:
            if node.is_null:
                return None
            arms.remove(fields.NoneType)
            if self._as_garden and node.form == "scalar" and len(arms) == 1:
                result = self._typed(node, arms[0], current, path)
                if not isinstance(result, OneOf):
                    return result
                # Model Garden keeps the word itself in place of an optional one-of, such as `aug_type`.
                self.trail.replace(path)
                return node.value
        fitting = [arm for arm in arms if _fits(arm, node)]
        if len(arms) == 1 or len(fitting) == 1:
            return self._typed(node, (fitting or arms)[0], current, path)
        refused: list[Problem] = []
        types = [fields.strip(arm)[0] for arm in fitting]
        num_problems = len(self.problems)
        for arm in sorted(fitting, key=functools.partial(_rank, node)):
            bare, ranges = fields.strip(arm)
            if bare in (bool, int) and node.form == "scalar":
                result = self._scalar(node, bare, ranges, path, narrow=float in types or str in types)
            else:
                result = self._typed(node, arm, current, path)
            if len(self.problems) == num_problems:
                return result
            refused += self.problems[num_problems:]
            del self.problems[num_problems:]
        outside = [p for p in refused if p.got == node.value]  # the type was right, the range was not
        if outside or (refused and node.form not in ("scalar", "python")):
            self.problems += outside or refused
            return FAILED
        near = next((p.near for p in refused if p.near), "")
        return self._fail(node, path, f"must be {fields.describe(tp)}", got=node.shown, near=near)

    def _list(self, node: Node, tp: Any, current: Any, path: str) -> Any:
        if node.form == "scalar" and self._as_garden and node.value and str in typing.get_args(tp):
            return node.value
        types = fields.item_types(tp, len(node.value)) if node.form == "list" else None
        if types is None:
            got = counted(len(node.value), "item") if node.form == "list" else node.shown
            is_item = node.form == "scalar" and not node.is_null and fields.item_types(tp, 1) is not None
            item = shorten(node.value) if is_item else ""
            item = (
                quoted(item) if item.startswith(("*", "&", "!", "%", "@")) else item
            )  # which mean something else in YAML
            fix = f"write [{item}]" if is_item else ""
            return self._fail(node, path, f"must be {fields.describe(tp)}", got=got, fix=fix)
        pairs = enumerate(zip(node.value, types, strict=True))
        now = dict(fields.children(current))
        is_alike = len(now) == len(node.value) and all(item.form == "mapping" for item in node.value)
        if not self._as_garden or not is_alike:
            self.trail.replace(path)
            now = {i: blank(part) for i, part in now.items()}
        kept = [(item, _kept(tp, current, i), now.get(i)) for i, (item, tp) in pairs]
        items = [self.value(item, tp, blank, fields.join(path, i)) for i, (item, tp, blank) in enumerate(kept)]
        return FAILED if any(item is FAILED for item in items) else tuple(items)

    def _mapping(self, node: Node, tp: Any, current: Any, path: str) -> Any:
        if node.form != "mapping":
            return self._fail(node, path, f"must be {fields.describe(tp)}", got=node.shown)
        is_merged = node.is_part or node.appends or self._as_garden
        old = current if isinstance(current, dict) else {}
        if not is_merged:
            self.trail.replace(path)
        entries: dict[str, Any] = {}
        for key, item in node.value:
            if wrong := limits.unstorable(key.value):
                return self._fail(key, path, f"the name '{shorten(key.value)}' {wrong}", fix="write it as UTF-8")
            inner = fields.join(path, key.value)
            item_type = _kept(fields.value_type(tp) if tp is not Any else Any, old, key.value)
            now = old.get(key.value) if is_merged else None
            entries[key.value] = self.value(item, item_type, now, inner)
        if any(item is FAILED for item in entries.values()):
            return FAILED
        return FrozenDict({**old, **entries} if is_merged else entries)

    def _append(self, node: Node, tp: Any, current: Any, path: str) -> Any:
        """Adds items to a list, or entries to a mapping."""
        tp = next((arm for arm in fields.arms(tp) if fields.is_list(arm) or fields.is_mapping(arm)), None)
        if tp is None:
            what = "is not a list or a mapping, so there is nothing to append to"
            return self._fail(node, path, what, fix="use '='")
        if fields.is_mapping(tp):
            if node.form != "mapping":
                return self._fail(node, path, "only a mapping can be added to a mapping", got=node.shown)
            return self._mapping(node, tp, current, path)
        old = current if isinstance(current, tuple) else () if current in (None, "") else (current,)
        items = node.value if node.form == "list" else (dataclasses.replace(node, appends=False),)
        types = fields.item_types(tp, len(old) + len(items)) or []
        if len(types) != len(old) + len(items):
            return self._fail(node, path, f"must be {fields.describe(tp)}", got=f"{len(old) + len(items)} items")
        places = [fields.join(path, len(old) + i) for i in range(len(items))]
        new = [self.value(item, t, None, p) for item, t, p in zip(items, types[len(old) :], places, strict=True)]
        return FAILED if any(item is FAILED for item in new) else (*old, *new)

    # Sections.

    def _section(self, node: Node, tp: type[Config], current: Any, path: str) -> Any:
        if node.form == "reference" or (node.form == "scalar" and not node.is_null):
            node = _expanded(node, tp)
        if issubclass(tp, Component) and (tp := self._component(node, tp, current, path)) is FAILED:
            return FAILED
        if issubclass(tp, OneOf) and tp.PLUGINS is not None and node.form == "mapping":
            node, current = self._with_branches(node, current if isinstance(current, tp) else tp(), path)
        cls = type(current) if isinstance(current, tp) else tp
        if node.form != "mapping":
            return self._not_a_section(node, cls, current, path)
        start = current if isinstance(current, tp) and (node.is_part or not cls.IS_WHOLE) else None
        if start is None:
            self.trail.replace(path)
        base = class_default(cls) if start is None else start
        changes: dict[str, Any] = {}
        for key, item in node.value:
            is_name = key.quoted or not fields.is_path(key.value)
            name, *rest = (key.value,) if is_name else fields.parse_path(key.value)
            field = fields.field_name(name)
            if field not in fields.hints(cls):
                self._unknown(cls, name, key, path)
                continue
            now = changes.get(field, getattr(base, field, None))
            changes[field] = self._field(cls, field, node_at(rest, key, item), now, path)
        good = {name: value for name, value in changes.items() if value is not FAILED}
        needed = fields.required(cls) if start is None else []
        if missing := [name for name in needed if name not in changes]:
            return self._fail(node, path, f"{cls.__name__} needs {' and '.join(missing)}", fix="set it here")
        if any(name not in good for name in needed):
            return FAILED
        try:
            return cls(**good) if start is None else start.replace(**good)
        except (TypeError, ValueError) as error:
            return self._fail(node, path, f"{cls.__name__} refuses these values: {error}")

    def _field(self, cls: type[Config], name: str, node: Node, current: Any, path: str) -> Any:
        tp = fields.hints(cls)[name]
        inner = fields.join(path, spelling(name))
        outside, self._as_garden = self._as_garden, cls.is_read_as_garden(name)
        result = self.value(node, tp, current, inner)
        self._as_garden = outside
        return result

    def _component(self, node: Node, tp: type[Component], current: Any, path: str) -> Any:
        """Returns the class that `type` chooses; without `type`, the present class."""
        named = [item for key, item in node.value if key.value == "type"] if node.form == "mapping" else []
        present = type(current) if isinstance(current, tp) else tp
        if named and reference_text.refers(str(named[-1].value)):
            what = "decides which fields there are, so it cannot refer to one"
            return self._fail(named[-1], fields.join(path, "type"), what, fix="write the word")
        if not named or named[-1].form != "scalar":
            if node.form != "mapping" or present is not tp.family():
                return present
            return self._fail(node, path, "needs type", fix=f"one of {', '.join(sorted(tp.names()))}")
        try:
            return tp.family().named(named[-1].value)
        except ConfigError as error:
            type_path = fields.join(path, "type")
            at = named[-1].origin
            self.problems += [dataclasses.replace(problem, path=type_path, origin=at) for problem in error.problems]
            return FAILED

    def _with_branches(self, node: Node, section: OneOf, path: str) -> tuple[Node, OneOf]:
        """Returns a one-of with a branch for each plug-in that a mapping names, as its `type` or as a field.

        And the mapping, without what names one that cannot be used.
        """
        pairs = []
        for key, item in node.value:
            if key.value == "type":
                is_name = item.form == "scalar" and not item.is_null and not reference_text.refers(item.value)
                name, mark = item.value if is_name else "", item
            else:
                is_path = isinstance(key.value, str) and fields.is_path(key.value)  # it is a number in `optimizer[0]`
                name, mark = str(fields.parse_path(key.value)[0]) if is_path else "", key
                is_new = fields.child(section, name) is Ellipsis and name in section.PLUGINS.names()
                name = name if is_new else ""
            try:
                cls = with_branch(type(section), name) if name else type(section)
            except ConfigError as error:
                where = fields.join(path, key.value)
                self.problems += [dataclasses.replace(p, path=where, origin=mark.origin) for p in error.problems]
                continue
            pairs.append((key, item))
            if cls is not type(section):
                section = cls(**{name: getattr(section, name) for name in fields.hints(type(section))})
        return dataclasses.replace(node, value=tuple(pairs)), section

    def _not_a_section(self, node: Node, cls: type[Config], current: Any, path: str) -> Any:
        if node.is_nothing:
            fix = "set its fields" if node.origin.kind == "flag" else "indent its fields below it, or remove the line"
            return self._fail(node, path, "nothing is set in this section", fix=fix)
        if node.is_null:
            fix = "write type: null for none" if issubclass(cls, OneOf) else "remove it to keep the defaults"
            return self._fail(node, path, "a section cannot be null", fix=fix)
        is_glued = node.form == "scalar" and not node.quoted and fields.is_path(node.value.partition(":")[0])
        fix = "put a space after ':'" if is_glued and ":" in node.value else ""
        fix = fix or _meant_inside(node, cls, current, path)
        if node.form == "python":
            fix = other_names.OF_SECTIONS.get(cls.__name__, f"write {cls.__name__}(…)")
        what = " or ".join([f"must be {fields.describe(cls)}", ", ".join(cls.WORDS)][: 1 + bool(cls.WORDS)])
        near = best_match(node.value, cls.WORDS) if node.form == "scalar" else ""
        return self._fail(node, path, what, got=node.shown, near=near, fix=fix)

    # Parts.

    def _part(self, node: Node, tp: Any, current: Any, path: str) -> Any:
        """Returns `current` with one of its parts set."""
        ((mark, inner),) = node.value
        # Of several members of a union that have parts, the class of `current` counts.
        key, types = mark.value, [fields.strip(arm)[0] for arm in fields.arms(tp)]
        holders = [arm for arm in types if fields.is_section_type(arm) or fields.is_list(arm) or fields.is_mapping(arm)]
        held = [arm for arm in holders if fields.is_section_type(arm) and isinstance(current, arm)]
        holder = (held or holders or [None])[0]
        if Any in types and isinstance(current, dict | tuple):
            holder = dict if isinstance(current, dict) else tuple
        if fields.is_section_type(holder):
            return self._section(node, holder, current, path)
        if fields.is_mapping(holder) and isinstance(key, str):
            return self._mapping(node, holder, current, path)
        index = fields.as_index(key)
        if not fields.is_list(holder) or index is None:
            what = f"is {fields.describe(tp)}, which has no part '{shorten(str(key))}'"
            return self._fail(mark, path, what, fix="set it as a whole" if holder is not None else "")
        old: tuple[Any, ...] = current or ()
        index += len(old) if index < 0 else 0
        if not 0 <= index < len(old):
            return self._unknown(old, key, mark, path)
        types = fields.item_types(holder, len(old)) or [Any] * len(old)
        part = self.value(inner, types[index], old[index], fields.join(path, index))
        return FAILED if part is FAILED else (*old[:index], part, *old[index + 1 :])

    def _unknown(self, section: Any, key: fields.Key, mark: Node, path: str) -> Any:
        if len(self.problems) >= limits.MAX_PROBLEMS:
            return FAILED
        self.problems.append(fields.unknown_field(self.root, section, path, key, mark.origin))
        return FAILED

    def _fail(self, node: Node, path: str, what: str, **more: str) -> Any:
        self.problems.append(node.problem(what, path, **more))
        return FAILED


def python_node(value: Any) -> Node:
    """Returns a value that Python code puts into a configuration as a node."""
    if isinstance(value, tuple | list):
        return Node("list", tuple(map(python_node, value)), _CODE)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        pairs = ((Node("scalar", key, _CODE, quoted=True), python_node(item)) for key, item in value.items())
        return Node("mapping", tuple(pairs), _CODE)
    return Node("python", value, _CODE)


def normalised(value: Any, tp: Any = None, path: str = "") -> tuple[Any, list[Problem]]:
    """Returns what Python code puts into a configuration as configurations hold it, and what is wrong with it.

    Lists are tuples then, mappings are frozen, and integers are floats where a float is declared. Values of another
    type stay as they are.

    Args:
      value: a section, or the value of a field.
      tp: the type of that field.
      path: where it is.
    """
    problems: list[Problem] = []
    result = Decoder(Config(), Record(), problems).value(python_node(value), tp or type(value), None, path)
    of_code = [dataclasses.replace(problem, origin=None) for problem in problems]  # which is in no file
    return (value if result is FAILED else result), of_code


def check_section(section: Config, path: str) -> None:
    """Refuses what a file could not set either: for a section that Python code makes and uses itself.

    Raises:
      ConfigError: with all problems, which call the section `path`.
    """
    _, problems = normalised(section, path=path)
    if problems := problems or [Problem(what, f"{path}.{name}") for name, what, *_ in section.problems()]:
        raise ConfigError(problems)


def class_default(cls: type[Config]) -> Config | None:
    """Returns the section as its class declares it, or None when a field has no default."""
    return _class_default(typing.cast(Any, cls))


@functools.cache
def _class_default(cls: Any) -> Config | None:
    return None if fields.required(cls) else normalised(cls())[0]


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


def _expanded(node: Node, cls: type[Config]) -> Node:
    """Returns the mapping that a single word abbreviates, or the node itself if it abbreviates none."""
    plain = dataclasses.replace(node, quoted=False)
    is_number = node.form == "scalar" and _NUMBER.fullmatch(node.value) is not None
    if issubclass(cls, Component) or (issubclass(cls, OneOf) and not is_number):
        pair = dataclasses.replace(plain, value="type"), node
    elif node.value in cls.WORDS:
        pair = plain, dataclasses.replace(plain, value="true")
    else:
        return node
    return dataclasses.replace(node, form="mapping", value=(pair,))


def _meant_inside(node: Node, cls: type[Config], current: Any, path: str) -> str:
    """Returns what to do where a one-of is given a number, for the field of this name in what its `type` selects."""
    if not issubclass(cls, OneOf) or node.form != "scalar" or _NUMBER.fullmatch(node.value) is None:
        return ""
    key, chosen = path.rpartition(".")[2], getattr(current, "type", None)
    names = (key, *other_names.ours(key))
    for choice in filter(None, (chosen, *fields.choices(cls))):
        section = fields.strip(fields.hints(cls).get(choice))[0]
        for name in names if fields.is_section_type(section) else ():
            if name in fields.hints(section):
                setting = f"{fields.join(path, choice)}.{name}={node.value}"
                return f"set {setting}" if choice == chosen else f"set {path}.type={choice} and {setting}"
    return ""


def _rank(node: Node, arm: Any) -> float:
    """Returns where a member of a union stands in the order in which they are tried."""
    bare, _ = fields.strip(arm)
    is_own_type = node.form == "python" and bare is type(node.value)  # in `int | float`, 1.0 stays a float
    return -1 if is_own_type else _ORDER.get(bare, 5)


def _fits(arm: Any, node: Node) -> bool:
    """Whether a member of a union is written in the form of `node`: scalar, list or mapping."""
    bare, _ = fields.strip(arm)
    if bare is Any:
        return True
    if node.form == "list":
        return fields.is_list(bare)
    if node.form == "mapping":
        return fields.is_section_type(bare) or fields.is_mapping(bare)
    if fields.is_section_type(bare):
        return node.form != "python" and (issubclass(bare, OneOf | Component) or bool(bare.WORDS))
    if node.quoted and bare in (int, float, bool):
        return False
    if fields.is_list(bare) or fields.is_mapping(bare):
        return False
    return node.form != "python" or scalars.is_of(node.value, bare)


def _kept(tp: Any, current: Any, key: fields.Key) -> Any:
    """Returns the class of the present section at `key` if it is a subclass of the declared one, else `tp`."""
    if isinstance(current, tuple):
        held = current[key] if isinstance(key, int) and key < len(current) else None
    else:
        held = current.get(key) if isinstance(current, dict) else None
    return type(held) if fields.is_section_type(tp) and isinstance(held, tp) else tp
