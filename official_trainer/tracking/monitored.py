"""Monitored metrics: finding a number in an evaluation's results by its name, and which of two is better.

Owns: names of nested metrics (`a|b`), and the rule that an improvement is strict and that NaN is never one.
Does not own: which direction is better for which metric (`tasks/metrics.py`, `engine/evaluation.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from official_trainer.errors import UserError

Direction = Literal["max", "min"]
"""Whether a higher or a lower value is better."""

COMPARISONS: Mapping[Direction, str] = {"max": "higher", "min": "lower"}
"""Each direction as a value of `trainer.best_checkpoint_metric_comp`."""


class MissingMetricError(UserError, LookupError):
    """The results of an evaluation lack a metric that is needed."""


def is_better(value: float, than: float | None, direction: Direction, *, min_delta: float = 0.0) -> bool:
    """Whether `value` is better `than` another, by more than `min_delta`.

    NaN is never better; every number is better than NaN, and than None, which means no value yet.
    """
    if math.isnan(value):
        return False
    if than is None or math.isnan(than):
        return True
    return value > than + min_delta if direction == "max" else value < than - min_delta


def find_metric(logs: Mapping[str, Any], name: str) -> float | None:
    """Returns the number under `name`, where `a|b` is `b` inside `a`; None if there is none.

    In flat logs, as actions get them, `b` inside `a` is `a/b`.
    """
    found: Any = logs
    for key in [name] if name in logs else name.split("|"):
        if not isinstance(found, Mapping) or key not in found:
            return logs.get(name.replace("|", "/"))
        found = found[key]
    return None if isinstance(found, Mapping) else float(found)


def required_metric(logs: Mapping[str, Any], name: str) -> float:
    """Returns the number under `name`, as `find_metric` does.

    Raises:
      MissingMetricError: there is none.
    """
    found = find_metric(logs, name)
    if found is None:
        raise MissingMetricError(f"the evaluation left out {name!r} this time; it produced {', '.join(names(logs))}")
    return found


def names(logs: Mapping[str, Any]) -> list[str]:
    """Returns the names of all numbers in nested logs, in the form that `find_metric` takes."""
    found = []
    for name, value in logs.items():
        found += [f"{name}|{inner}" for inner in names(value)] if isinstance(value, Mapping) else [name]
    return found
