"""Where the time of a run went, from its first start to its end, and how much of it was of use.

Owns: the account over all processes of a run, and goodput. Does not own: measuring (`runs/health/time_account.py`).
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, TypeGuard

from official_trainer.reports.gathered import Ranked
from official_trainer.runs.recorded import LONGEST_SECONDS, is_step

_LEAST_BETWEEN_SECONDS = 2.0  # the record has whole seconds


def account(each: Ranked, *, now_seconds: float) -> dict[str, Any] | None:
    """Returns the time of a run as JSON takes it; None without a record of it.

    `parts` are the seconds of each part; `between` are those in which no process ran, or one that recorded nothing
    because it was killed. `goodput` is the share of all of it that went into steps whose results were kept: steps that
    were repeated after a kill count once.
    """
    record = each.run.record
    total = _mapping(_mapping(record.get("time")).get("total"))
    seconds = {name: float(value) for name, value in _mapping(total.get("seconds")).items() if _is_seconds(value)}
    if not seconds:
        return None
    wall = sum(seconds.values())
    between = (_span(each, now_seconds) or 0.0) - wall
    if between >= _LEAST_BETWEEN_SECONDS:
        seconds["between"] = round(between, 1)
    done, trained = each.run.recorded.step, total.get("steps")
    kept = min(1.0, done / trained) if is_step(trained) and trained > 0 and done is not None else 1.0
    attempts = _mapping(record.get("time")).get("attempts")
    last = attempts[-1] if isinstance(attempts, list) and attempts and isinstance(attempts[-1], Mapping) else {}
    all_seconds = sum(seconds.values())
    return {
        "parts": seconds,
        "goodput": round(seconds.get("steps", 0.0) * kept / all_seconds, 4) if all_seconds > 0 else None,
        "restarts": restarts if is_step(restarts := total.get("restarts")) else 0,
        "verdict": verdict if isinstance(verdict := last.get("verdict"), str) else None,
    }


def _span(each: Ranked, now_seconds: float) -> float | None:
    """Returns the seconds from the first start of a run to its end, or to now if it goes on."""
    started = each.run.recorded.started_seconds
    if started is None:
        return None
    if each.status == "running":
        return now_seconds - started
    finished = each.run.record.get("finished")
    try:
        return datetime.datetime.fromisoformat(finished).timestamp() - started if isinstance(finished, str) else None
    except ValueError:
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_seconds(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LONGEST_SECONDS
