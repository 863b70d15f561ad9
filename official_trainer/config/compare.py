"""Two configurations side by side: the fields that differ, both values, and what set them.

Owns: `differences` between the fields of any two, and their layout; `changes` of a saved configuration, with the
overrides that restore the old values.
Does not own: what a change means for a run (`runs/resume/config_changes.py`), or where a configuration is saved.

Fields are compared by path, those of a one-of by the branch that it selects. A saved configuration is plain: nested
dicts, lists and scalars, as a YAML reader returns the output of `dump`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from official_trainer.config import fields
from official_trainer.config.components import Component
from official_trainer.config.declaration import OneOf, plain
from official_trainer.config.decode import class_default
from official_trainer.config.dump import recorded
from official_trainer.config.errors import Origin
from official_trainer.config.overrides import format_override
from official_trainer.config.provenance import Resolved, Trail
from official_trainer.config.text import flow, leaves, written_items

_MOST_VALUE = 40
DEFAULT = "class default"
"""The source of a value that nothing has set."""


class Side(NamedTuple):
    """A field in one of two configurations.

    Attributes:
      value: plain (lists and dicts, no sections); Ellipsis if there is no such field, or a one-of does not select it.
      source: what set it; empty if that is unknown.
    """

    value: Any = Ellipsis
    source: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """A field that differs between two configurations.

    Attributes:
      path: the field, such as `trainer.train_steps`; a list of values is one field.
      before: its value in the first, as in `Side`.
      after: its value in the second.
      sources: what set them.
      origin: of a change: what set the value now; None if there is no such field any more.
      undo: of a change: overrides that restore the old value if they come after all others; empty if that is
        impossible, and for the fields of a one-of's branch that the `undo` of its `type` deselects.
    """

    path: str
    before: Any
    after: Any
    sources: tuple[str, str] = ("", "")
    origin: Origin | None = None
    undo: tuple[str, ...] = ()


def sides(resolved: Resolved) -> dict[str, Side]:
    """Returns the fields of a configuration by path.

    Of values from the `params.yaml` of a run, the source is what that has as a comment.
    """
    by_path = {}
    for path, value in leaves(resolved.config):
        origin, reference = resolved.trail.origin(path), resolved.trail.references.get(path)
        source = origin.brief if reference is None else f"= {reference.shown} of {origin.brief}"
        source = source if (before := recorded(origin)) is None else before
        by_path[path] = Side(plain(value), f"experiment {resolved.experiment}" if source == "experiment" else source)
    return by_path


def written_sides(config: Mapping[str, Any], comments: Mapping[str, str], experiment: str | None) -> dict[str, Side]:
    """Returns the fields of a `params.yaml`, given as `written.fields_of` returns it."""
    sources = {path: comments.get(path, DEFAULT) for path in config}
    name = {"experiment": f"experiment {experiment}"}
    return {path: Side(value, name.get(sources[path], sources[path])) for path, value in config.items()}


def differences(before: Mapping[str, Side], after: Mapping[str, Side]) -> list[Difference]:
    """Returns the fields that differ between two configurations, in their order.

    A branch that only one of them selects is shown as far as something has set it.
    """
    differing = []
    for path in dict.fromkeys([*after, *before]):
        both = before.get(path, Side()), after.get(path, Side())
        is_implied = any(side.value is Ellipsis for side in both) and any(side.source == DEFAULT for side in both)
        if not is_implied and not is_same(both[0].value, both[1].value):
            sources = both[0].source, both[1].source
            differing.append(Difference(path=path, before=both[0].value, after=both[1].value, sources=sources))
    return differing


def changes(saved: Mapping[str, Any], resolved: Resolved) -> list[Difference]:
    """Returns what differs in force from a saved configuration, by path.

    A field that the saved one lacks counts as the default of its class, so that one that was added since then is no
    change. Lists, mappings and sections that do not have the same parts are one field.

    Args:
      saved: the saved configuration.
      resolved: the configuration in force.
    """
    return sorted(_changes(saved, resolved.config, "", resolved.trail), key=lambda change: change.path)


def _changes(old: Any, now: Any, path: str, trail: Trail) -> Iterator[Difference]:
    """Yields what differs in a part of the configuration in force from the saved part, which is plain."""
    if not _is_alike(old, now):
        if not is_same(old, new := plain(now)):
            undo = () if old is Ellipsis or now is Ellipsis else (format_override(path, old),)
            origin = None if now is Ellipsis else _origin(trail, now, path)
            yield Difference(path=path, before=old, after=new, origin=origin, undo=undo)
        return
    default = class_default(type(now)) if fields.is_section(now) else None
    before: dict[Any, Any] = {**plain(default or {}), **old} if isinstance(old, dict) else dict(enumerate(old))
    if isinstance(now, OneOf) and before.get("type") != now.type:
        yield from _choice_changes(before, now, path, trail)
        return
    names = [key for key, _ in (enumerate(now) if isinstance(now, tuple) else written_items(now))]
    gone = [] if isinstance(now, OneOf) else [key for key in before if key not in names]
    for key in (*names, *gone):
        part = fields.child(now, key) if key in names else Ellipsis
        yield from _changes(before.get(key, Ellipsis), part, fields.join(path, key), trail)


def _choice_changes(old: dict[str, Any], now: OneOf, path: str, trail: Trail) -> Iterator[Difference]:
    """Yields that a one-of selects another branch, and what is set in that branch; the first one undoes it all."""
    type_path, chosen = fields.join(path, "type"), old.get("type")
    undo = [format_override(type_path, chosen)] if chosen in (None, *fields.choices(type(now))) else []
    if undo and chosen is not None:
        back = _changes(old.get(chosen, {}), getattr(now, chosen), fields.join(path, chosen), trail)
        undo += [override for change in back for override in change.undo]
    yield Difference(path=type_path, before=chosen, after=now.type, origin=trail.origin(type_path), undo=tuple(undo))
    if now.type is not None:
        for change in _changes({}, now.get(), fields.join(path, now.type), trail):
            yield dataclasses.replace(change, undo=())


def text(differing: Sequence[Difference]) -> list[str]:
    """Returns the lines that show fields that differ, with a line for either value, aligned."""
    rows = [
        (change.path, "not there" if value is Ellipsis else flow(value), source)
        for change in differing
        for value, source in zip((change.before, change.after), change.sources, strict=True)
    ]
    width = max((len(value) for _, value, _ in rows if len(value) <= _MOST_VALUE), default=0)
    shown = []
    for number, (path, value, source) in enumerate(rows):
        shown += [] if number % 2 else ["", path]
        shown.append(f"  {'+' if number % 2 else '-'} {value:<{width}}  {source}".rstrip())
    return shown[1:]


def _is_alike(old: Any, now: Any) -> bool:
    """Whether a saved part and the one in force can be compared field by field."""
    if fields.is_section(now):
        is_other = isinstance(now, Component) and isinstance(old, dict) and old.get("type") != now.type
        return isinstance(old, dict) and not now.IS_WHOLE and not is_other
    if not any(fields.is_section(part) for _, part in fields.children(now)):
        return False
    if isinstance(now, dict):
        return isinstance(old, dict) and old.keys() == now.keys()
    return isinstance(old, list) and len(old) == len(now)


def _origin(trail: Trail, value: Any, path: str) -> Origin:
    """Returns what set a value, or the first value in a section that a file or a flag has set."""
    inside = [inner for inner, part in fields.walk(value, path) if not fields.is_section(part)]
    by_user = (origin for origin in map(trail.origin, inside) if origin.by_user)
    return next(by_user, trail.origin(path)) if fields.is_section(value) else trail.origin(path)


def is_same(before: Any, after: Any) -> bool:
    """Whether two plain values mean the same: 1 is 1.0 and a NaN is itself, but true is not 1."""
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(is_same, before, after))
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(is_same(part, after[key]) for key, part in before.items())
    if isinstance(before, bool) or isinstance(after, bool):
        return before is after
    return before == after or (before != before and after != after)
