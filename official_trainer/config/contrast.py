"""Two configurations side by side: the fields that differ, both values, and what set each.

Owns: which fields differ, of configurations in force and of the files of runs; their layout.
Does not own: what a difference means for a run, or how it is undone (`compare.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.config import fields, lines
from official_trainer.config.dump import flat, recorded
from official_trainer.config.provenance import Resolved
from official_trainer.config.text import flow

_MOST_VALUE = 40
DEFAULT = "class default"
"""The source of a value that nothing has set."""


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


def sides(resolved: Resolved) -> dict[str, Side]:
    """Returns each field of a configuration; of a one-of, those of the selected branch.

    Of values from the `params.yaml` of a run, the source is what that has as a comment.
    """
    found = {}
    for path in flat(resolved.config):
        value = fields.at(resolved.config, fields.parse_path(path))
        origin, reference = resolved.trail.origin(path), resolved.trail.references.get(path)
        source = origin.brief if reference is None else f"= {reference.shown} of {origin.brief}"
        source = source if (before := recorded(origin)) is None else before
        found[path] = Side(_plain(value), f"experiment {resolved.experiment}" if source == "experiment" else source)
    return found


def sides_of_lines(config: Mapping[str, str], experiment: str | None) -> dict[str, Side]:
    """Returns each field of a `params.yaml`, given as `lines` returns it."""
    found = {}
    for path, line in config.items():
        source = lines.comment(line) or DEFAULT
        found[path] = Side(lines.value(line), f"experiment {experiment}" if source == "experiment" else source)
    return found


def contrasts(before: Mapping[str, Side], after: Mapping[str, Side]) -> list[Contrast]:
    """Returns the fields that differ between two configurations, in their order.

    A branch that only one of them selects is shown as far as something has set it.
    """
    found = []
    for path in dict.fromkeys([*after, *before]):
        both = before.get(path, Side()), after.get(path, Side())
        is_implied = any(side.value is Ellipsis for side in both) and any(side.source == DEFAULT for side in both)
        if both[0].text != both[1].text and not is_implied:
            found.append(Contrast(path, *both))
    return found


def text(found: Sequence[Contrast]) -> list[str]:
    """Returns the lines that show fields that differ, each with a line for either value, aligned."""
    texts = [side.text for contrast in found for side in (contrast.before, contrast.after)]
    width = max((len(text) for text in texts if len(text) <= _MOST_VALUE), default=0)
    shown = []
    for contrast in found:
        shown += ["", contrast.path]
        for mark, side in (("-", contrast.before), ("+", contrast.after)):
            shown.append(f"  {mark} {side.text:<{width}}  {side.source}".rstrip())
    return shown[1:]


def as_json(side: Side) -> dict[str, Any] | None:
    """Returns a value and what set it, for programs; None if there is no such field."""
    return None if side.value is Ellipsis else {"value": side.value, "origin": side.source}


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
