"""A resolved configuration: the values, and what set each of them.

Owns: `Resolved`; what set each path last (`Trail`), from the record that decoding writes.
Does not own: decoding (`decode.py`), or which layer comes first (`layers.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from official_trainer.config import fields
from official_trainer.config.declaration import Config
from official_trainer.config.decode import Record, class_default
from official_trainer.config.errors import ConfigError, Origin, Problem

_DEFAULT = Origin("default")


class Trail(Record):
    """What files and flags have set, over the values of `base`."""

    def __init__(self, base: Config, experiment: str = "") -> None:
        super().__init__()
        self._base = base
        self._experiment = Origin("experiment", experiment)

    def touched(self) -> list[str]:
        """Returns every path that a file or a flag has set, in the order in which they were first set."""
        return list(self._set)

    def is_overruled(self, path: str, by: str) -> bool:
        """Whether `by` was set after `path`, in another file or flag."""
        if path not in self._set or by not in self._set:
            return False
        (first, one), (last, other) = self._set[path], self._set[by]
        return first < last and (one.name, one.text) != (other.name, other.text)

    def origin(self, path: str) -> Origin:
        """Returns what set `path` last."""
        number, origin = self._set.get(path, (0, self._origin_in_base(path)))
        is_replaced = any(self._replaced.get(outer, 0) > number for outer in around(path))
        return _DEFAULT if is_replaced else origin

    def default(self, path: str) -> Any:
        """Returns the default of `path` in the classes of the base; Ellipsis if there is none."""
        value: Any = self._base
        default: Any = class_default(type(value))
        for key in fields.parse_path(path):
            value, default = fields.child(value, key), fields.child(default, key)
            if fields.is_section(value) and type(value) is not type(default):
                default = class_default(type(value))
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
      >>> resolved.origin("best").brief, resolved.origin("at_end").brief
      ('--set', 'class default')
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


def around(path: str) -> Iterator[str]:
    """Yields a path and all paths that it is inside of; and some that are none, where a quoted key has a dot."""
    yield path
    yield from (path[:end] for end, char in enumerate(path) if char in ".[")
    yield ""


def is_inside(path: str, around: str) -> bool:
    """Whether `path` is `around` or a part of it."""
    return path == around or not around or path.startswith((f"{around}.", f"{around}["))
