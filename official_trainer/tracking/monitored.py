"""Monitored metrics: finding what decides in an evaluation's results by its name, and which of two is better.

Owns: names of nested metrics (`a|b`), that a rule of the user compares the numbers under one name, and that an
improvement is strict and NaN is never one.
Does not own: which direction is better for which metric (`tasks/metrics.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from official_trainer.errors import UserError
from official_trainer.tracking import leaves
from official_trainer.tracking.jsonl import encode
from official_trainer.tracking.media import Media

Rule = Callable[[Mapping[str, float], Mapping[str, float]], bool]
"""Whether the numbers of one evaluation, by name, are better than those of another."""

Direction = Literal["max", "min"] | Rule
"""Whether a higher or a lower number is better, or a rule for several numbers together."""

Value = float | Mapping[str, float]
"""What is compared: a number, or for a rule several by their names."""

DIRECTIONS: Mapping[str, Literal["max", "min"]] = {"higher": "max", "lower": "min"}
"""The direction that each value of `trainer.best_checkpoint_metric_comp` means."""

COMPARISONS: Mapping[Direction, str] = {direction: word for word, direction in DIRECTIONS.items()}
"""Each direction as such a value."""


class MissingMetricError(UserError, LookupError):
    """The results of an evaluation lack a metric that is needed."""


def is_better(value: Value, than: Value | None, direction: Direction, *, min_delta: float = 0.0) -> bool:
    """Whether `value` is better `than` another; as numbers by more than `min_delta`, which a rule does not need.

    NaN is never better; every number is better than NaN, and than None, which means no value yet. Of the numbers for a
    rule, none may be NaN.
    """
    if is_nan(value):
        return False
    if than is None or is_nan(than):
        return True
    if callable(direction):
        return bool(direction(cast(Mapping[str, float], value), cast(Mapping[str, float], than)))
    assert not isinstance(value, Mapping) and not isinstance(than, Mapping), "numbers have names for a rule alone"
    return value > than + min_delta if direction == "max" else value < than - min_delta


def is_nan(value: Value) -> bool:
    """Whether a number is NaN, or one of several."""
    return any(map(math.isnan, value.values() if isinstance(value, Mapping) else (value,)))


def show(value: Value, digits: int = 4) -> str:
    """Returns a value as text: `0.9722`, or `accuracy 0.9722, seconds 12`; `NaN` and `Infinity` as rows spell them."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {show(number, digits)}" for name, number in value.items())
    return f"{value:.{digits}g}" if math.isfinite(value) else str(encode(value))


def find_value(logs: Mapping[str, Any], name: str, direction: Direction) -> Value | None:
    """Returns what `direction` compares of results: the number under `name`, or for a rule the numbers inside it."""
    if not callable(direction):
        return find_metric(logs, name)
    inside = f"{name.replace('|', '/')}/"
    flat = (("/".join(names), value) for names, value in leaves(logs))
    inner = ((path.removeprefix(inside), value) for path, value in flat if path.startswith(inside))
    return {name: float(value) for name, value in inner} or None


def find_metric(logs: Mapping[str, Any], name: str) -> float | None:
    """Returns the number under `name`, where `a|b` is `b` inside `a`; None if there is none.

    In flat logs, as actions get them, `b` inside `a` is `a/b`.
    """
    inner: Any = logs
    for key in [name] if name in logs else name.split("|"):
        if not isinstance(inner, Mapping) or key not in inner:
            return logs.get(name.replace("|", "/"))
        inner = inner[key]
    return None if isinstance(inner, Mapping) else float(inner)


def required_value(logs: Mapping[str, Any], name: str, direction: Direction = "max") -> Value:
    """Returns what `direction` compares, as `find_value` does.

    Raises:
      MissingMetricError: there is none.
    """
    value = find_value(logs, name, direction)
    if value is None:
        raise MissingMetricError(f"the evaluation left out {name!r} this time; it produced {', '.join(names(logs))}")
    return value


def numbers(logs: Any) -> Any:
    """Returns nested results with plain floats; what is not a number is left out."""
    logs = logs.as_logs() if hasattr(logs, "as_logs") else logs
    if isinstance(logs, Mapping):
        return {k: v for k, v in ((k, numbers(v)) for k, v in logs.items()) if v is not None}
    value = logs.numpy() if hasattr(logs, "numpy") else logs
    if isinstance(value, Media | str | bytes) or getattr(value, "ndim", 0) != 0:
        return None
    return float(value)


def names(logs: Mapping[str, Any]) -> list[str]:
    """Returns the names of all numbers in nested logs, in the form that `find_metric` takes."""
    return ["|".join(path) for path, _ in leaves(logs)]
