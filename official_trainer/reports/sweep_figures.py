"""What a sweep found, for tables and pages of its runs.

Owns: the bridge to `sweeps/`, which need not be there. Does not own: reading a sweep (`sweeps/results.py`), whose
summary is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Direction = Literal["max", "min"]
"""Which values of a metric are better."""


def summary(directory: str) -> Mapping[str, Any] | None:
    """Returns the summary of the sweep in a folder; None without a sweep, and where sweeps are not installed.

    It has the `metric` that is compared and its `direction`, `counts` of trials by state, the number of the `best`
    trial, the `importance` of fields, and `trials` (`number`, `state`, `value`, `params`, `run`).
    """
    try:
        from official_trainer.sweeps import results
    except ModuleNotFoundError:
        return None
    return results.summary(directory) if results.is_sweep(directory) else None
