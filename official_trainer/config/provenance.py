"""A resolved configuration: the values, what set each of them, and what had set it before.

Owns: `Resolved`; the record that decoding writes (`Trail`), with the origin and the history of each path.
Does not own: decoding (`decode.py`), or which layer comes first (`layers.py`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from official_trainer.config import fields, values
from official_trainer.config.declaration import Config
from official_trainer.config.errors import ConfigError, Origin, Problem
from official_trainer.config.text import flow

_BASE = Origin("experiment", "the base")


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a value. `time` orders settings; those before a section was replaced do not count below it."""

    origin: Origin
    value: Any
    time: int


class Trail:
    """Every setting by files and flags, in addition to the values of `base`."""

    def __init__(self, base: Config, experiment: str = "") -> None:
        self._base = base
        self._experiment = Origin("experiment", experiment)
        self._settings: dict[str, list[Setting]] = {}
        self._replaced: dict[str, tuple[int, Origin | None]] = {}
        self._time = 0

    def note(self, path: str, origin: Origin, value: Any) -> None:
        """Records that `origin` set `path`."""
        self._time += 1
        self._settings.setdefault(path, []).append(Setting(origin, value, self._time))

    def replace(self, path: str, origin: Origin | None = None) -> None:
        """Records that the section or list at `path` was replaced.

        Parts below it that are not set later have this `origin`, or without one the defaults of their class.
        """
        self._time += 1
        self._replaced[path] = self._time, origin

    def reset(self, path: str, origin: Origin, value: Any) -> None:
        """Records that `origin` restored `value`, which the base has at `path`."""
        for place, part in fields.walk(value, path):
            if place != path and not fields.is_section(part):
                self.note(place, origin, part)
        self._time += 1
        self._replaced[path] = self._time, _BASE

    def last(self, path: str) -> Origin | None:
        """Returns the last file or flag that set `path`, or None."""
        found = self._settings.get(path)
        return found[-1].origin if found else None

    def touched(self) -> list[str]:
        """Returns every path that a file or a flag has set, in the order in which they were first set."""
        return list(self._settings)

    def take(self, other: Trail) -> None:
        """Takes over the content of `other`, a `copy` that was changed."""
        self._settings, self._replaced, self._time = other._settings, other._replaced, other._time

    def copy(self) -> Trail:
        """Returns an independent copy."""
        twin = Trail(self._base, self._experiment.name)
        twin._settings = {path: list(found) for path, found in self._settings.items()}
        twin._replaced, twin._time = dict(self._replaced), self._time
        return twin

    def origin(self, path: str) -> Origin:
        """Returns what set `path` last."""
        cut, owner = self._cut(path)
        last = self._settings.get(path, [None])[-1]
        if last is not None and last.time > cut:
            return last.origin
        if cut and owner is not _BASE:
            return owner or Origin("default")
        return self._origin_in_base(path)

    def history(self, path: str, value: Any) -> list[tuple[Origin, Any]]:
        """Returns all origins that set `path`, first to last, with their values; `value` is the one in force."""
        steps: list[tuple[Origin, Any]] = []
        default = self.default(path)
        if default is not Ellipsis:
            steps.append((Origin("default"), default))
        if self._origin_in_base(path).kind == "experiment":
            steps.append((self._experiment, fields.at(self._base, fields.parse_path(path))))
        steps += [(setting.origin, setting.value) for setting in self._settings.get(path, [])]
        origin = self.origin(path)
        if not steps or steps[-1][0] != origin:
            steps.append((origin, value))
        return steps

    def _cut(self, path: str) -> tuple[int, Origin | None]:
        """Returns the time at which `path`, or something around it, was last replaced, and the origin."""
        times = [found for around, found in self._replaced.items() if is_inside(path, around)]
        return max(times, key=lambda found: found[0], default=(0, None))

    def default(self, path: str) -> Any:
        """Returns the default of `path` in the classes of the base; Ellipsis if there is none."""
        value: Any = self._base
        default: Any = values.class_default(type(value))
        for key in fields.parse_path(path):
            value = dict(fields.children(value)).get(key, Ellipsis)
            default = dict(fields.children(default)).get(key, Ellipsis)
            if fields.is_section(value) and type(value) is not type(default):
                default = values.class_default(type(value))
        return default

    def _origin_in_base(self, path: str) -> Origin:
        default = self.default(path)
        value = fields.at(self._base, fields.parse_path(path))
        if value is Ellipsis or (default is not Ellipsis and _same(value, default)):
            return Origin("default")
        return self._experiment


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A configuration in force, and the origins of its values. Paths look like `trainer.train_steps`, `blocks[0].x`.

    Attributes:
      config: the configuration, frozen.
      experiment: its name.
      trail: what set each value.
      warnings: settings without effect, where they are allowed.
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
        return [(origin, flow(value)) for origin, value in steps]


def is_inside(path: str, around: str) -> bool:
    """Whether `path` is `around` or a part of it."""
    return path == around or not around or path.startswith((f"{around}.", f"{around}["))


def _same(a: Any, b: Any) -> bool:
    """Whether two values are equal; a NaN equals itself."""
    return a == b or (a != a and b != b)
