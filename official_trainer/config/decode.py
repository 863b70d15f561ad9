"""Nodes into values, by the declared types of the fields. Sections are frozen, so decoding builds new ones bottom-up.

Owns: merging a mapping into a section, lists, free mappings, unions, one-of shorthand, paths into all of these.
Does not own: the text of single values (`scalars.py`), rules across fields and Python-side mistakes (`checks.py`).

Decoding starts from the current value: where a field is declared `TaskConfig` and holds a subclass, its fields are the
subclass's. Sections merge field by field; every other value, lists and free mappings too, is replaced whole.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Literal

from official_trainer.config import fields, scalars, values
from official_trainer.config.components import Component
from official_trainer.config.declaration import Config, FrozenDict, OneOf
from official_trainer.config.errors import ConfigError, Problem
from official_trainer.config.nodes import Assignment, Node
from official_trainer.config.provenance import Trail
from official_trainer.errors import nearest

FAILED: Any = type("Failed", (), {"__repr__": lambda _: "FAILED"})()
"""What decoding returns when it has reported a problem instead."""


class Decoder:
    """Reads nodes into a configuration; collects problems, and notes who set what."""

    def __init__(self, root: Config, trail: Trail, problems: list[Problem]) -> None:
        self.root = root
        self.trail = trail
        self.problems = problems
        self._as_garden = False

    def merge(self, node: Node) -> None:
        """Merges a mapping, such as a whole file, into the root."""
        result = self.value(node, type(self.root), self.root, "")
        self.root = self.root if result is FAILED else result

    def assign(self, item: Assignment) -> None:
        """Sets the value at a path below the root."""
        result = self._descend(item, type(self.root), self.root, "")
        self.root = self.root if result is FAILED else result

    # Values.

    def value(self, node: Node, tp: Any, current: Any, path: str) -> Any:
        """Reads `node` as a `tp` to stand at `path`, where `current` (None: nothing) stands now."""
        if node.op in ("+=", "-="):
            result = self._change_items(node, tp, current, path)
        else:
            result = self._read(node, tp, current, path)
        if result is not FAILED and not fields.is_section(result):
            self._refuse_second(node, path)
            self.trail.note(path, node.origin, result)
        return result

    def _refuse_second(self, node: Node, path: str) -> None:
        """Reports a field that one file sets in two places, as `a: {b: 1}` and as `a.b: 2`."""
        first, here = self.trail.last(path), node.origin
        if first and here.kind == first.kind == "file" and first.name == here.name and first != here:
            self._fail(node, path, f"is set twice in this file, first on line {first.line}", fix="keep one")

    def _read(self, node: Node, tp: Any, current: Any, path: str) -> Any:
        bare, limits = fields.strip(tp)
        if node.kind == "value":
            return node.value
        if self._as_garden and node.is_null and node.value not in ("", "None"):  # nothing, and text in YAML
            return None
        if fields.is_union(bare):
            return self._union(node, bare, current, path)
        if fields.is_section_type(bare):
            return self._section(node, bare, current, path)
        if fields.is_list(bare) or (bare is Any and node.kind == "list"):
            return self._list(node, tuple if bare is Any else bare, current, path)
        if fields.is_mapping(bare) or (bare is Any and node.kind == "mapping"):
            return self._mapping(node, bare, current, path)
        return self._scalar(node, bare, limits, path)

    def _scalar(self, node: Node, tp: Any, limits: tuple[Any, ...], path: str, narrow: bool = False) -> Any:
        if node.kind != "scalar":
            return self._fail(node, path, f"must be {fields.describe(tp)}", got=node.shown)
        reads_null = tp in (str, Any, fields.NoneType) or node.value in typing.get_args(tp)
        if node.is_null and not reads_null:
            fix = "give a value, or remove it to keep the default"
            return self._fail(node, path, f"must be {fields.describe(tp)}", got=node.shown, fix=fix)
        if tp is fields.NoneType:
            return None if node.is_null else self._fail(node, path, "must be null", got=node.shown)
        try:
            result = scalars.read(node.value, tp, quoted=node.quoted, narrow=narrow)
        except scalars.MisreadError as error:
            return self._fail(node, path, got=node.shown, **error.parts)
        for limit in limits:
            if said := limit.problem(result):
                return self._fail(node, path, said, got=node.value)
        return result

    def _union(self, node: Node, tp: Any, current: Any, path: str) -> Any:
        arms = list(typing.get_args(tp))
        if fields.NoneType in arms:
            if node.is_null:
                return None
            arms.remove(fields.NoneType)
        fitting = [arm for arm in arms if _fits(arm, node)]
        if len(arms) == 1 or len(fitting) == 1:
            return self._read(node, (fitting or arms)[0], current, path)
        said: list[Problem] = []
        types = [fields.strip(arm)[0] for arm in fitting]
        for arm in sorted(fitting, key=fields.narrowness):
            twin = Decoder(self.root, self.trail.copy(), [])
            twin._as_garden = self._as_garden
            bare, limits = fields.strip(arm)
            if bare in (bool, int) and node.kind == "scalar":
                result = twin._scalar(node, bare, limits, path, narrow=float in types or str in types)
            else:
                result = twin._read(node, arm, current, path)
            if not twin.problems:
                self.trail.take(twin.trail)
                return result
            said += twin.problems
        outside = [p for p in said if p.got == node.value]  # the type was right, the range was not
        if outside or (said and node.kind != "scalar"):
            self.problems += outside or said
            return FAILED
        near = next((p.near for p in said if p.near), "")
        return self._fail(node, path, f"must be {fields.describe(tp)}", got=node.shown, near=near)

    def _list(self, node: Node, tp: Any, current: Any, path: str) -> Any:
        if node.kind == "scalar" and self._as_garden and node.value and str in typing.get_args(tp):
            return node.value
        if node.kind != "list":
            is_text = node.kind == "scalar" and node.value not in scalars.NULLS
            fix = f"write {fields.as_list(node.value, tp, path)}" if is_text else ""
            return self._fail(node, path, f"must be {fields.describe(tp)}", got=node.shown, fix=fix)
        types = fields.item_types(tp, len(node.value))
        if types is None:
            return self._fail(node, path, f"must be {fields.describe(tp)}", got=f"{len(node.value)} items")
        pairs = enumerate(zip(node.value, types, strict=True))
        now = dict(fields.children(current))
        is_alike = len(now) == len(node.value) and all(item.kind == "mapping" for item in node.value)
        if not self._as_garden or not is_alike or node.op == ":=":
            self.trail.replace(path)
            now = {i: values.blank(part) for i, part in now.items()}
        kept = [(item, _kept(tp, current, i), now.get(i)) for i, (item, tp) in pairs]
        items = [self.value(item, tp, blank, fields.join(path, i)) for i, (item, tp, blank) in enumerate(kept)]
        return FAILED if any(item is FAILED for item in items) else tuple(items)

    def _mapping(self, node: Node, tp: Any, current: Any, path: str) -> Any:
        if node.kind != "mapping":
            return self._fail(node, path, f"must be {fields.describe(tp)}", got=node.shown)
        if self._as_garden and isinstance(current, dict) and node.op != ":=":
            merged = self._entries(node, tp, current, path, merge=True)
            return FAILED if merged is FAILED else FrozenDict({**current, **merged})
        self.trail.replace(path)
        return self._entries(node, tp, current, path, merge=False)

    def _entries(self, node: Node, tp: Any, current: Any, path: str, merge: bool) -> Any:
        found: dict[str, Any] = {}
        for key, item in node.value:
            if self._refuse_glued(key, item, path):
                found[key.value] = FAILED
                continue
            now = (current or {}).get(key.value)
            item_type = _kept(fields.value_type(tp) if tp is not Any else Any, current or {}, key.value)
            found[key.value] = self.value(item, item_type, now if merge else None, fields.join(path, key.value))
        return FAILED if any(item is FAILED for item in found.values()) else FrozenDict(found)

    def _change_items(self, node: Node, tp: Any, current: Any, path: str) -> Any:
        """Appends to a list or a mapping, or removes from a list."""
        tp = next((arm for arm in fields.arms(tp) if fields.is_list(arm) or fields.is_mapping(arm)), None)
        if tp is None:
            verb = "append to" if node.op == "+=" else "remove from"
            return self._fail(node, path, f"is not a list or a mapping, so there is nothing to {verb}", fix="use '='")
        plain = dataclasses.replace(node, op="=")
        if fields.is_mapping(tp) and node.op == "+=":
            if node.kind != "mapping":
                return self._fail(node, path, "only a mapping can be added to a mapping", got=node.shown)
            added = self._entries(plain, tp, current, path, merge=True)
            return FAILED if added is FAILED else FrozenDict({**(current or {}), **added})
        old = current if isinstance(current, tuple) else () if current in (None, "") else (current,)
        items = plain.value if plain.kind == "list" else (plain,)
        types = fields.item_types(tp, len(old) + len(items)) or []
        if len(types) != len(old) + len(items):
            return self._fail(node, path, f"must be {fields.describe(tp)}", got=f"{len(old) + len(items)} items")
        if node.op == "+=":
            places = [fields.join(path, len(old) + i) for i in range(len(items))]
            new = [self.value(item, t, None, p) for item, t, p in zip(items, types[len(old) :], places, strict=True)]
            return FAILED if any(item is FAILED for item in new) else (*old, *new)
        return self._remove(node, tuple(zip(items, types, strict=False)), old, path)

    def _remove(self, node: Node, wanted: tuple[tuple[Node, Any], ...], old: tuple[Any, ...], path: str) -> Any:
        gone = [(item, self._read(item, tp, None, path)) for item, tp in wanted]
        for item, value in gone:
            if value is not FAILED and value not in old:
                names = [str(o) for o in old]
                near = nearest(str(value), names)
                what = f"the list does not hold {fields.show(value)}"
                self._fail(item, path, what, allowed=", ".join(names), near=near[0] if near else "")
        self.trail.replace(path, node.origin)
        return tuple(o for o in old if o not in [value for _, value in gone])

    # Sections.

    def _section(self, node: Node, tp: type[Config], current: Any, path: str) -> Any:
        if node.kind == "scalar" and not node.is_null:
            node = _written_out(node, tp)
        if issubclass(tp, Component) and (tp := self._component(node, tp, current, path)) is FAILED:
            return FAILED
        cls = type(current) if isinstance(current, tp) else tp
        if node.kind != "mapping":
            return self._not_a_section(node, cls, path)
        start = current if isinstance(current, tp) and not cls.IS_WHOLE else None
        if node.op == ":=":
            start = None
            self.trail.replace(path, node.origin)
        elif start is None:
            self.trail.replace(path)
        changes: dict[str, Any] = {}
        for key, item in node.value:
            keys = (key.value,) if key.quoted or not fields.is_path(key.value) else fields.parse_path(key.value)
            if self._refuse_glued(key, item, path):
                continue
            if item.value == "" and not item.quoted:
                item = dataclasses.replace(item, origin=key.origin, length=key.length)
            self._set_field(cls, start, changes, Assignment(keys, key, item), path)
        return self._build(cls, start, changes, path, node)

    def _component(self, node: Node, tp: type[Component], current: Any, path: str) -> Any:
        """Returns the class that `type` chooses; without it, the one that is there."""
        named = [item for key, item in node.value if key.value == "type"] if node.kind == "mapping" else []
        known = type(current) if isinstance(current, tp) else tp
        if not named or named[-1].kind != "scalar":
            if node.kind != "mapping" or known is not tp.family():
                return known
            return self._fail(node, path, "needs type", fix=f"one of {', '.join(sorted(tp.names()))}")
        try:
            return tp.family().named(named[-1].value)
        except ConfigError as error:
            place = fields.join(path, "type")
            self.problems += [dataclasses.replace(problem, path=place, **_at(named[-1])) for problem in error.problems]
            return FAILED

    def _not_a_section(self, node: Node, cls: type[Config], path: str) -> Any:
        if node.kind == "scalar" and node.value == "" and not node.quoted:
            fix = "set its fields" if node.origin.kind == "flag" else "indent its fields below it, or remove the line"
            return self._fail(node, path, "nothing is set in this section", fix=fix)
        if node.is_null:
            fix = "write type: null for none" if issubclass(cls, OneOf) else "remove it to keep the defaults"
            return self._fail(node, path, "a section cannot be null", fix=fix)
        fix = "put a space after ':'" if node.kind == "scalar" and node.is_glued else ""
        what = " or ".join([f"must be {fields.describe(cls)}", ", ".join(cls.WORDS)][: 1 + bool(cls.WORDS)])
        near = "".join(nearest(str(node.value), cls.WORDS)[:1]) if node.kind == "scalar" else ""
        return self._fail(node, path, what, got=node.shown, near=near, fix=fix)

    def _set_field(
        self, cls: type[Config], start: Config | None, changes: dict[str, Any], item: Assignment, path: str
    ) -> None:
        """Reads one field of a section into `changes`."""
        name = fields.field_name(item.keys[0])
        if name not in fields.hints(cls):
            self._unknown(cls, item, path)
            return
        assert isinstance(name, str)
        tp = fields.hints(cls)[name]
        if issubclass(cls, OneOf) and name == "type" and tp == (str | None):
            tp = Literal[tuple(fields.choices(cls))] | None
        base = start if start is not None else values.class_default(cls)
        now = changes.get(name, getattr(base, name, None))
        outside, self._as_garden = self._as_garden, cls.READS_AS_GARDEN or name in cls.READ_AS_GARDEN
        changes[name] = self._descend(item.inside(), tp, now, fields.join(path, item.keys[0]))
        self._as_garden = outside

    def _build(self, cls: type[Config], start: Config | None, changes: Mapping[str, Any], path: str, node: Node) -> Any:
        good = {name: value for name, value in changes.items() if value is not FAILED}
        if start is None:
            missing = [name for name in fields.required(cls) if name not in changes]
            if missing:
                return self._fail(node, path, f"{cls.__name__} needs {' and '.join(missing)}", fix="set it here")
            if any(name not in good for name in fields.required(cls)):
                return FAILED
        try:
            return fields.rebuild(cls, start, good)
        except (TypeError, ValueError) as error:
            return self._fail(node, path, f"{cls.__name__} refuses these values: {error}")

    # Paths.

    def _descend(self, item: Assignment, tp: Any, current: Any, path: str) -> Any:
        """Returns `current` with the value at the keys of `item` below it."""
        if not item.keys:
            return self.value(item.node, tp, current, path)
        holder, key = _holder(tp, current), item.keys[0]
        if fields.is_section_type(holder):
            cls = type(current) if isinstance(current, holder) else holder
            start = current if isinstance(current, holder) else None
            if start is None:
                self.trail.replace(path)
            changes: dict[str, Any] = {}
            self._set_field(cls, start, changes, item, path)
            return self._build(cls, start, changes, path, item.mark) if changes else FAILED
        if holder is not None and fields.is_mapping(holder) and isinstance(key, str):
            return self._set_entry(item, fields.value_type(holder), current or FrozenDict(), path)
        if holder is not None and fields.is_list(holder) and str(key).lstrip("-").isdecimal():
            return self._set_item(item, holder, current or (), path)
        what = f"is {fields.describe(tp)}, which has no part '{key}'"
        return self._fail(item.mark, path, what, fix="set it as a whole" if holder is not None else "")

    def _set_entry(self, item: Assignment, tp: Any, current: FrozenDict, path: str) -> Any:
        key = str(item.keys[0])
        place = fields.join(path, key)
        part = self._descend(item.inside(), _kept(tp, current, key), current.get(key), place)
        if part is FAILED:
            return FAILED
        result = FrozenDict({**current, key: part})
        self.trail.note(path, item.node.origin, result)
        return result

    def _set_item(self, item: Assignment, tp: Any, current: tuple[Any, ...], path: str) -> Any:
        index = int(item.keys[0]) + (len(current) if int(item.keys[0]) < 0 else 0)
        if not 0 <= index < len(current):
            return self._unknown(current, item, path)
        place, types = fields.join(path, index), fields.item_types(tp, len(current)) or [Any] * len(current)
        part = self._descend(item.inside(), types[index], current[index], place)
        if part is FAILED:
            return FAILED
        result = (*current[:index], part, *current[index + 1 :])
        self.trail.note(path, item.node.origin, result)
        return result

    def _unknown(self, section: Any, item: Assignment, path: str) -> Any:
        known = fields.unknown_field(self.root, section, path, item.keys[0], item.mark.origin)
        self.problems.append(dataclasses.replace(known, length=item.mark.length))
        return FAILED

    def _refuse_glued(self, key: Node, item: Node, path: str) -> bool:
        """Reports `name:value` without the space, which YAML takes for a name alone."""
        if item.value != "" or item.quoted or not key.is_glued:
            return False
        place = fields.join(path, key.value.partition(":")[0])
        self._fail(key, place, f"'{key.value}' is a name without a value", fix="put a space after ':'")
        return True

    def _fail(self, node: Node, path: str, what: str, **parts: str) -> Any:
        self.problems.append(Problem(what, path, **parts, **_at(node)))  # type: ignore[arg-type]
        return FAILED


def _written_out(node: Node, cls: type[Config]) -> Node:
    """Returns the mapping that a single word stands for, or the word if it stands for none."""
    plain = dataclasses.replace(node, quoted=False, op="=")
    if issubclass(cls, OneOf | Component):
        pair = dataclasses.replace(plain, value="type"), dataclasses.replace(node, op="=")
    elif node.value in cls.WORDS:
        pair = plain, dataclasses.replace(plain, value="true")
    else:
        return node
    return dataclasses.replace(node, kind="mapping", value=(pair,))


def _at(node: Node) -> dict[str, Any]:
    return {"origin": node.origin, "length": node.length}


def _fits(arm: Any, node: Node) -> bool:
    """Whether a member of a union is written the way that `node` is."""
    bare, _ = fields.strip(arm)
    if bare is Any:
        return True
    if node.kind == "list":
        return fields.is_list(bare)
    if node.kind == "mapping":
        return fields.is_section_type(bare) or fields.is_mapping(bare)
    if fields.is_section_type(bare):
        return issubclass(bare, OneOf | Component) or bool(bare.WORDS)
    if node.quoted and bare in (int, float, bool):
        return False
    return not fields.is_list(bare) and not fields.is_mapping(bare)


def _kept(tp: Any, current: Any, key: fields.Key) -> Any:
    """Returns the class of the section that stands at `key` now, where it is a subclass of the declared one."""
    if isinstance(current, tuple):
        held = current[key] if isinstance(key, int) and key < len(current) else None
    else:
        held = current.get(key) if isinstance(current, dict) else None
    return type(held) if fields.is_section_type(tp) and isinstance(held, tp) else tp


def _holder(tp: Any, current: Any) -> Any:
    """Returns the member of a type that has parts, the one that `current` is if there are several."""
    found = [bare for bare, _ in map(fields.strip, fields.arms(tp))]
    if Any in found and isinstance(current, dict | tuple):
        return dict if isinstance(current, dict) else tuple
    holders = [arm for arm in found if fields.is_section_type(arm) or fields.is_list(arm) or fields.is_mapping(arm)]
    held = [arm for arm in holders if fields.is_section_type(arm) and isinstance(current, arm)]
    return (held or holders or [None])[0]
