"""Two configurations side by side: the fields that differ, both values, and what set each.

Owns: `differences` of an earlier configuration from the one in force, with the overrides that restore the old values;
`contrasts` between any two, of configurations in force and of the files of runs, and their layout.
Does not own: what a difference means for a run (`runs/resume/config_changes.py`), or where the earlier configuration is
stored.

An earlier configuration is plain: nested dicts, lists and scalars, as a YAML reader returns the output of `dump`. A
field that it lacks counts as the default of its class, so that a field added since then is not a difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.config import fields
from official_trainer.config.components import Component
from official_trainer.config.declaration import Config, OneOf
from official_trainer.config.decode import class_default
from official_trainer.config.dump import flat, recorded
from official_trainer.config.errors import Origin
from official_trainer.config.overrides import format_override
from official_trainer.config.provenance import Resolved
from official_trainer.config.text import flow, written_items

_MOST_VALUE = 40
DEFAULT = "class default"
"""The source of a value that nothing has set."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """A field whose value has changed.

    Attributes:
      path: the field, such as `trainer.train_steps`; a list or a free mapping is one field, as in the layers.
      before: the value then, plain (lists and dicts, no sections); Ellipsis if there was none and the class has no
        default.
      after: the value now, plain; Ellipsis if there is no such field any more.
      origin: what set the value now; None if there is no such field any more.
      undo: overrides that restore the old value if they come after all others; empty if that is impossible, and for the
        fields of a one-of's branch that the `undo` of its `type` deselects.
    """

    path: str
    before: Any
    after: Any
    origin: Origin | None = None
    undo: tuple[str, ...] = ()


def differences(before: Mapping[str, Any], resolved: Resolved) -> list[Difference]:
    """Returns what differs, by path.

    Args:
      before: the earlier configuration as plain data.
      resolved: the configuration in force.
    """
    differing = _Comparison(resolved).value(dict(before), resolved.config, "")
    return sorted(differing, key=lambda difference: difference.path)


class _Comparison:
    """Walks both configurations together; of a one-of, only selected branches count."""

    def __init__(self, resolved: Resolved) -> None:
        self._trail = resolved.trail

    def value(self, before: Any, now: Any, path: str) -> Iterator[Difference]:
        is_other = isinstance(now, Component) and isinstance(before, dict) and before.get("type") != now.type
        if isinstance(now, OneOf) and isinstance(before, dict) and before.get("type") != now.type:
            yield from self._choice(before, now, path)
        elif fields.is_section(now) and isinstance(before, dict) and not (now.IS_WHOLE or is_other):
            for name, part in written_items(now):
                old = before[name] if name in before else _default(now, name)
                yield from self.value(old, part, fields.join(path, name))
            for gone in before.keys() - {name for name, _ in fields.children(now)}:
                yield Difference(path=fields.join(path, str(gone)), before=before[gone], after=Ellipsis)
        elif _has_matching_sections(before, now):
            for key, part in fields.children(now):
                yield from self.value(before[key], part, fields.join(path, key))
        elif not _is_same(before, after := _plain(now)):
            undo, origin = () if before is Ellipsis else (format_override(path, before),), self._trail.origin(path)
            if fields.is_section(now):
                inside = [inner for inner, part in fields.walk(now, path) if not fields.is_section(part)]
                origin = next((differing for differing in map(self._trail.origin, inside) if differing.by_user), origin)
            yield Difference(path=path, before=before, after=after, origin=origin, undo=undo)

    def _choice(self, before: dict[Any, Any], now: OneOf, path: str) -> Iterator[Difference]:
        """Yields the change of `type`, and the values of the branch in force that are not defaults."""
        type_path, chosen = fields.join(path, "type"), before.get("type")
        undo = tuple(self._choice_undone(before, now, path))
        yield Difference(path=type_path, before=chosen, after=now.type, origin=self._trail.origin(type_path), undo=undo)
        if now.type is not None:
            new = self.value(_default(now, now.type), now.get(), fields.join(path, now.type))
            yield from (dataclasses.replace(difference, undo=()) for difference in new)

    def _choice_undone(self, before: dict[Any, Any], now: OneOf, path: str) -> Iterator[str]:
        chosen, branches = before.get("type"), dict(fields.children(now))
        if chosen is not None and chosen not in branches:
            return
        yield format_override(fields.join(path, "type"), chosen)
        if chosen is not None:
            for old in self.value(before.get(chosen, {}), branches[chosen], fields.join(path, chosen)):
                yield from old.undo


def _default(section: Config, key: str) -> Any:
    """Returns the default of a field in the class of `section`, plain; Ellipsis if it has none."""
    key = fields.field_name(key)
    part, default = getattr(section, key), class_default(type(section))
    if fields.is_section(part):
        return _plain(class_default(type(part)) or {})
    return Ellipsis if default is None else _plain(getattr(default, key))


def _has_matching_sections(before: Any, now: Any) -> bool:
    """Whether `now` and `before` are lists or mappings of equally many sections, which can be compared in pairs."""
    if not any(fields.is_section(part) for _, part in fields.children(now)):
        return False
    if isinstance(now, dict):
        return isinstance(before, dict) and before.keys() == now.keys()
    return isinstance(now, tuple) and isinstance(before, list) and len(before) == len(now)


def _plain(value: Any) -> Any:
    if fields.is_section(value) or isinstance(value, dict):
        return {key: _plain(part) for key, part in written_items(value)}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _is_same(before: Any, after: Any) -> bool:
    """Whether two plain values mean the same: 1 is 1.0 and a NaN is itself, but true is not 1."""
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(_is_same, before, after))
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(_is_same(part, after[key]) for key, part in before.items())
    if isinstance(before, bool) or isinstance(after, bool):
        return before is after
    return before == after or (before != before and after != after)


@dataclasses.dataclass(frozen=True)
class Side:
    """A field in one of two configurations.

    Attributes:
      value: plain (lists and dicts, no sections); Ellipsis if there is no such field, or a one-of does not select it.
      source: what set it; empty if there is no such field.
    """

    value: Any = Ellipsis
    source: str = ""

    @property
    def text(self) -> str:
        """The value on one line of YAML."""
        return "not there" if self.value is Ellipsis else flow(self.value)

    def as_json(self) -> dict[str, Any] | None:
        """Returns the value and what set it, for programs; None if there is no such field."""
        return None if self.value is Ellipsis else {"value": self.value, "origin": self.source}


@dataclasses.dataclass(frozen=True)
class Contrast:
    """A field that differs between two configurations.

    Attributes:
      path: the field; a list of values is one field.
      before: the field in the first.
      after: the field in the second.
    """

    path: str
    before: Side
    after: Side

    def as_json(self) -> dict[str, Any]:
        """Returns the field and both sides, for programs."""
        return {"path": self.path, "before": self.before.as_json(), "after": self.after.as_json()}


def sides(resolved: Resolved) -> dict[str, Side]:
    """Returns each field of a configuration; of a one-of, those of the selected branch.

    Of values from the `params.yaml` of a run, the source is what that has as a comment.
    """
    by_path = {}
    for path in flat(resolved.config):
        value = fields.at(resolved.config, fields.parse_path(path))
        origin, reference = resolved.trail.origin(path), resolved.trail.references.get(path)
        source = origin.brief if reference is None else f"= {reference.shown} of {origin.brief}"
        source = source if (before := recorded(origin)) is None else before
        by_path[path] = Side(_plain(value), f"experiment {resolved.experiment}" if source == "experiment" else source)
    return by_path


def written_sides(config: Mapping[str, Any], comments: Mapping[str, str], experiment: str | None) -> dict[str, Side]:
    """Returns each field of a `params.yaml`, given as `written.fields_of` returns it."""
    by_path = {}
    for path, value in config.items():
        source = comments.get(path, DEFAULT)
        by_path[path] = Side(value, f"experiment {experiment}" if source == "experiment" else source)
    return by_path


def contrasts(before: Mapping[str, Side], after: Mapping[str, Side]) -> list[Contrast]:
    """Returns the fields that differ between two configurations, in their order.

    A branch that only one of them selects is shown as far as something has set it.
    """
    differing = []
    for path in dict.fromkeys([*after, *before]):
        both = before.get(path, Side()), after.get(path, Side())
        is_implied = any(side.value is Ellipsis for side in both) and any(side.source == DEFAULT for side in both)
        if both[0].text != both[1].text and not is_implied:
            differing.append(Contrast(path, *both))
    return differing


def text(differing: Sequence[Contrast]) -> list[str]:
    """Returns the lines that show fields that differ, each with a line for either value, aligned."""
    texts = [side.text for contrast in differing for side in (contrast.before, contrast.after)]
    width = max((len(text) for text in texts if len(text) <= _MOST_VALUE), default=0)
    shown = []
    for contrast in differing:
        shown += ["", contrast.path]
        for mark, side in (("-", contrast.before), ("+", contrast.after)):
            shown.append(f"  {mark} {side.text:<{width}}  {side.source}".rstrip())
    return shown[1:]
