"""What a sweep found, for tables and pages of its runs.

Owns: the bridge to `sweeps/`, which need not be there. Does not own: reading a sweep (`sweeps/results.py`), whose
summary is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Direction = Literal["max", "min"]
"""Which values of a metric are better."""

_DIRECTIONS: Mapping[str, Direction] = {"maximize": "max", "minimize": "min"}


def summary(directory: str) -> Mapping[str, Any] | None:
    """Returns the summary of the sweep in a folder; None without a sweep, and where sweeps are not installed.

    It has `objectives` (each a `metric` and a `direction`), `counts` of trials by state, the numbers of the `best`
    trials, the `importance` of fields, and `trials` (`number`, `state`, `values`, `params`, `run`).
    """
    try:
        from official_trainer.sweeps import results
    except ModuleNotFoundError:
        return None
    return results.summary(directory) if results.is_sweep(directory) else None


def directions(summary: Mapping[str, Any]) -> dict[str, Direction]:
    """Returns the metrics by which a sweep compares trials, and which of their values are better."""
    return {
        objective["metric"].replace("|", "/"): _DIRECTIONS[objective["direction"]]
        for objective in summary["objectives"]
    }
