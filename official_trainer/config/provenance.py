"""A resolved configuration: the values, what set each of them, and what had set it before.

Owns: `Resolved`; the record that decoding writes (`Trail`), with the origin and the history of each path.
Does not own: decoding (`decode.py`), or which layer comes first (`layers.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from official_trainer.config import fields, values
from official_trainer.config.declaration import Config
from official_trainer.config.errors import ConfigError, Origin, Problem
from official_trainer.config.reference_text import Reference
from official_trainer.config.text import flow

_DEFAULT = Origin("default")


@dataclasses.dataclass(frozen=True, slots=True)
class _Event:
    """A value that was set, or a section or list that was replaced; earlier events do not count below it."""

    path: str
    origin: Origin
    value: Any = None
    is_replacement: bool = False


class Trail:
    """Every setting by files and flags, in addition to the values of `base`.

    Attributes:
      references: by its path, each text with `${…}` that gave a value in force.
    """

    def __init__(self, base: Config, experiment: str = "") -> None:
        self._base = base
        self._experiment = Origin("experiment", experiment)
        self._events: list[_Event] = []
        self.references: dict[str, Reference] = {}
        self._at: dict[str, list[int]] = {}
        """The numbers of the events at each path."""

    def note(self, path: str, origin: Origin, value: Any) -> None:
        """Records that `origin` set `path`."""
        self._add(_Event(path, origin, value))

    def replace(self, path: str) -> None:
        """Records that the section or list at `path` was replaced.

        Parts below it that are not set later have the defaults of their class.
        """
        self._add(_Event(path, _DEFAULT, is_replacement=True))

    def _add(self, event: _Event) -> None:
        self._at.setdefault(event.path, []).append(len(self._events))
        self._events.append(event)

    def __len__(self) -> int:
        return len(self._events)

    def forget(self, count: int) -> None:
        """Removes all but the first `count` events."""
        while len(self._events) > count:
            self._at[self._events.pop().path].pop()

    def last(self, path: str) -> Origin | None:
        """Returns the last file or flag that set `path`, or None."""
        numbers = reversed(self._at.get(path, ()))
        return next((self._events[n].origin for n in numbers if not self._events[n].is_replacement), None)

    def is_overruled(self, path: str, by: str) -> bool:
        """Whether `by` was set after `path`, in another file or flag."""
        first, last = self._at.get(path), self._at.get(by)
        if not first or not last or first[-1] > last[-1]:
            return False
        one, other = self._events[first[-1]].origin, self._events[last[-1]].origin
        return (one.name, one.text) != (other.name, other.text)

    def touched(self) -> list[str]:
        """Returns every path that a file or a flag has set, in the order in which they were first set."""
        return list(dict.fromkeys(event.path for event in self._events if not event.is_replacement))

    def origin(self, path: str) -> Origin:
        """Returns what set `path` last."""
        found = -1
        for place in around(path):
            for number in reversed(self._at.get(place, ())):
                if place == path or self._events[number].is_replacement:
                    found = max(found, number)
                    break
        if found < 0:
            return self._origin_in_base(path)
        return self._events[found].origin

    def history(self, path: str, value: Any) -> list[tuple[Origin, Any]]:
        """Returns all origins that set `path`, first to last, with their values; `value` is the one in force."""
        steps: list[tuple[Origin, Any]] = []
        default = self.default(path)
        if default is not Ellipsis:
            steps.append((_DEFAULT, default))
        if self._origin_in_base(path).kind == "experiment":
            steps.append((self._experiment, fields.at(self._base, fields.parse_path(path))))
        events = [self._events[number] for number in self._at.get(path, ())]
        written = self.references.get(path)  # comes first, then what that gave
        steps += [
            (event.origin, event.value)
            for event in events
            if not event.is_replacement and (written is None or event.value != written)
        ]
        origin = self.origin(path)
        if not steps or steps[-1][0] != origin:
            steps.append((origin, value))
        return steps

    def default(self, path: str) -> Any:
        """Returns the default of `path` in the classes of the base; Ellipsis if there is none."""
        value: Any = self._base
        default: Any = values.class_default(type(value))
        for key in fields.parse_path(path):
            value, default = fields.child(value, key), fields.child(default, key)
            if fields.is_section(value) and type(value) is not type(default):
                default = values.class_default(type(value))
        return default

    def _origin_in_base(self, path: str) -> Origin:
        default = self.default(path)
        value = fields.at(self._base, fields.parse_path(path))
        is_default = value == default or (value != value and default != default)  # NaN equals NaN here
        if value is Ellipsis or (default is not Ellipsis and is_default):
            return _DEFAULT
        return self._experiment


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A configuration in force, and the origins of its values. Paths look like `trainer.train_steps`, `blocks[0].x`.

    Attributes:
      config: the configuration, frozen.
      experiment: its name.
      trail: what set each value.
      warnings: settings without effect, where they are allowed, and files that set nothing.

    Example:
      >>> from official_trainer.config import ExportConfig, resolve
      >>> resolved = resolve(ExportConfig(best=True), experiment="digits", sets=["best=false"])
      >>> resolved.config
      ExportConfig(at_end=True, checkpoint='latest', best=False, max_to_keep=1, formats=(), max_difference=0.02)
      >>> [(origin.brief, value) for origin, value in resolved.history("best")]
      [('class default', 'false'), ('experiment digits', 'true'), ('--set', 'false')]
    """

    config: Any
    experiment: str
    trail: Trail = dataclasses.field(repr=False, compare=False)
    warnings: tuple[Problem, ...] = dataclasses.field(default=(), repr=False, compare=False)

    def origin(self, path: str) -> Origin:
        """Returns what set the value at `path` last.

        Raises:
          ConfigError: there is no such value.
        """
        value = fields.find(self.config, path)
        if fields.is_section(value):
            raise ConfigError([Problem("is a section, and only values have an origin", path, fix="name a field of it")])
        return self.trail.origin(path)

    def history(self, path: str) -> list[tuple[Origin, str]]:
        """Returns all origins that set the value at `path`, first to last, each with the text of its value.

        Raises:
          ConfigError: there is no such value.
        """
        self.origin(path)
        steps = self.trail.history(path, fields.find(self.config, path))
        return [(origin, value.shown if isinstance(value, Reference) else flow(value)) for origin, value in steps]


def around(path: str) -> Iterator[str]:
    """Yields a path and all paths that it is inside of; and some that are none, where a quoted key has a dot."""
    yield path
    yield from (path[:end] for end, char in enumerate(path) if char in ".[")
    yield ""


def is_inside(path: str, around: str) -> bool:
    """Whether `path` is `around` or a part of it."""
    return path == around or not around or path.startswith((f"{around}.", f"{around}["))
