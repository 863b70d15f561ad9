"""Where numbers go: the Tracker contract, and sending the same numbers to several trackers.

Owns: turning nested metrics of tensors into flat names and Python floats, once, in the caller.
Does not own: any format or destination; each is one file beside this one. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.errors import UserError


class MetricError(UserError, TypeError):
    """A metric that cannot be recorded: it is not one number, or its name is taken."""


@dataclasses.dataclass(frozen=True)
class Histogram:
    """The distribution of the values of an array of numbers, of any shape."""

    values: Any


@dataclasses.dataclass(frozen=True)
class Image:
    """A picture: `[height, width, channels]`, one to four channels, uint8, or floats between 0 and 1."""

    pixels: Any


@dataclasses.dataclass(frozen=True)
class Text:
    """A text in Markdown."""

    markdown: str


Media = Histogram | Image | Text


class Tracker:
    """A destination of metrics. Subclasses override what they can show; the rest is left out.

    `values` are flat when they come through `Trackers`: `{"loss": 0.5, "dev/accuracy": 0.9}`, Python floats.
    """

    def describe(self, experiment: str, config: Mapping[str, Any]) -> None:
        """Takes the run's name and its flat config, once at each start, after `rewind`."""

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        """Records the metrics of `split` (`train`, `validation`) at a global step."""

    def publish(self, split: str, step: int, media: Mapping[str, Media]) -> None:
        """Records what is no number."""

    def rewind(self, step: int) -> None:
        """Drops everything after `step`: the run continues there. Called at every start, with 0 for a fresh run."""

    def flush(self) -> None:
        """Brings everything logged so far to its destination; called before each checkpoint."""

    def close(self) -> None:
        """Flushes and lets go; nothing is logged afterwards."""


class Trackers(Tracker):
    """Sends everything to several trackers, in their order. A tracker itself."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = tuple(trackers)

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        flat = flatten(values)
        for tracker in self._trackers:
            tracker.log(split, step, flat)

    def publish(self, split: str, step: int, media: Mapping[str, Media]) -> None:
        for tracker in self._trackers:
            tracker.publish(split, step, media)

    def describe(self, experiment: str, config: Mapping[str, Any]) -> None:
        for tracker in self._trackers:
            tracker.describe(experiment, config)

    def rewind(self, step: int) -> None:
        for tracker in self._trackers:
            tracker.rewind(step)

    def flush(self) -> None:
        for tracker in self._trackers:
            tracker.flush()

    def close(self) -> None:
        """Closes every tracker, also when one fails; the first error is raised at the end."""
        errors = []
        for tracker in self._trackers:
            try:
                tracker.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def flatten(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns nested metrics with names joined by `/`, as Python floats, in their order.

    Args:
      values: scalars (tensors, NumPy, Python numbers) or mappings of them.

    Raises:
      MetricError: a value is not one number, or two have one name.
    """
    flat: dict[str, float] = {}
    for name, value in _leaves(values, ""):
        if name in flat:
            raise MetricError(f"two metrics are named {name!r}; rename one")
        flat[name] = _number(name, value)
    return flat


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _number(name: str, value: Any) -> float:
    array = value.numpy() if hasattr(value, "numpy") else value
    shape = tuple(getattr(array, "shape", ()))
    if shape:
        raise MetricError(
            f"metric {name!r} has shape {list(shape)}; metrics are single numbers: reduce it, or leave it out"
        )
    try:
        return float(array)
    except (TypeError, ValueError):
        kind = type(value).__name__
        raise MetricError(f"metric {name!r} is {array!r} ({kind}); metrics are single numbers") from None
