"""Two configurations side by side: the fields that differ, both values, and what set each.

Owns: which fields are shown, their layout for a terminal of 80 columns.
Does not own: what a difference means for a run, or how it is undone (`compare.py`).
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from official_trainer.config import fields
from official_trainer.config.dump import flat, recorded
from official_trainer.config.provenance import Resolved
from official_trainer.config.text import flow

_WIDTH = 80
_MOST_VALUE = 40


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


def contrasts(before: Resolved, after: Resolved) -> list[Contrast]:
    """Returns the fields that differ, in the order of the configurations.

    Of a one-of, the selected branches count. A branch that only one of them selects is shown as far as it differs from
    the defaults of its class.
    """
    left, right = flat(before.config), flat(after.config)
    found = []
    for path in dict.fromkeys([*right, *left]):
        sides = _side(before, path, left), _side(after, path, right)
        if sides[0].text != sides[1].text and not any(_is_implied(each, path, sides) for each in (before, after)):
            found.append(Contrast(path, *sides))
    return found


def text(found: Sequence[Contrast]) -> list[str]:
    """Returns the lines that show fields that differ, each with a line for either value, aligned."""
    sides = [side for contrast in found for side in (contrast.before, contrast.after)]
    width = max((len(side.text) for side in sides if len(side.text) <= _MOST_VALUE), default=0)
    lines = []
    for contrast in found:
        lines += ["", contrast.path, *_lines("-", contrast.before, width), *_lines("+", contrast.after, width)]
    return lines[1:]


def as_json(side: Side) -> dict[str, Any] | None:
    """Returns a value and what set it, for programs; None if there is no such field."""
    return None if side.value is Ellipsis else {"value": side.value, "origin": side.source}


def _side(resolved: Resolved, path: str, values: dict[str, Any]) -> Side:
    if path not in values:
        return Side()
    value = fields.at(resolved.config, fields.parse_path(path))
    return Side(_plain(value), _source(resolved, path))


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _is_implied(resolved: Resolved, path: str, sides: tuple[Side, Side]) -> bool:
    """Whether only one side has a field, and its value is the default of the class that it belongs to."""
    there = [side.text for side in sides if side.value is not Ellipsis]
    default = resolved.trail.default(path)
    return len(there) == 1 and default is not Ellipsis and flow(default) == there[0]


def _source(resolved: Resolved, path: str) -> str:
    """Returns what set a value; for the `params.yaml` of a run, what that has as a comment."""
    before = recorded(resolved.trail.origin(path))
    if before is None:
        return resolved.trail.source(path)
    return f"experiment {resolved.experiment}" if before == "experiment" else before


def _lines(mark: str, side: Side, width: int) -> Iterator[str]:
    """Yields a value and what set it, on one line if there is room."""
    line = f"  {mark} {side.text:<{width}}  {side.source}".rstrip()
    if len(side.text) <= width and (len(line) <= _WIDTH or not side.source):
        yield line
        return
    yield from textwrap.wrap(
        side.text, _WIDTH, initial_indent=f"  {mark} ", subsequent_indent="    ", break_on_hyphens=False
    )
    if side.source:
        yield f"    {' ' * width}  {side.source}" if len(side.source) + width + 6 <= _WIDTH else f"      {side.source}"
