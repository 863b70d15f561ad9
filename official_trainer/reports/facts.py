"""The summary of a page: a few numbers about its runs, and where their time went.

Owns: which numbers there are, and the account of time over all processes of a run, with goodput. Does not
own: the runs (`content.py`), measuring time (`runs/health/time_account.py`).
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.reports.measures import Direction
from official_trainer.runs.recorded import LONGEST_SECONDS, RecordedRun, duration_text, is_step
from official_trainer.tracking.monitored import show

_BETTER = {"max": "higher is better", "min": "lower is better"}

Rows = Sequence[Mapping[str, Any]]
"""The runs as the page has them, the best first."""


def facts(
    rows: Rows, metric: str | None, direction: Direction | None, trials: Mapping[str, int] | None
) -> Iterator[tuple[str, str, str]]:
    """Yields numbers about all runs, each with what it is and a remark.

    Args:
      rows: the runs.
      metric: that decides which run is the best; None if none does.
      direction: which of its values are better.
      trials: of a sweep, how many there are by state.
    """
    states = trials or dict(collections.Counter(row["status"] or "no run" for row in rows).most_common())
    if len(rows) == 1:
        end = f" of {rows[0]['end_step']:,}" if rows[0]["end_step"] else ""
        yield "Status", rows[0]["status"], f"step {rows[0]['step'] or 0:,}{end}"
    else:
        listed = ", ".join(f"{count} {state}" for state, count in states.items())
        yield "Runs" if trials is None else "Trials", f"{sum(states.values()):,}", listed
    best = next((row for row in rows if row["best"] is not None and not row["is_pruned"]), None)
    if best is not None and direction is not None:
        step = [] if best["best_step"] is None else [f"step {best['best_step']:,}"]
        name = [best["name"]] if len(rows) > 1 else []
        yield f"Best {metric}", show(float(best["best"])), ", ".join([_BETTER[direction], *step, *name])
    times = [row["time"] for row in rows if row["time"] is not None]
    seconds = sum(sum(time["seconds"].values()) for time in times)
    if seconds > 0:
        kept = sum((time["goodput"] or 0.0) * sum(time["seconds"].values()) for time in times)
        yield "Time", duration_text(seconds), f"{100 * kept / seconds:.0f} % in steps that count"


def account(run: RecordedRun) -> dict[str, Any] | None:
    """Returns the time of a run as JSON takes it; None without a record of it.

    `seconds` has those of each phase; in `between` no process ran, or one was killed and these are after its last
    record. `goodput` is the share of all of it that went into steps whose results were kept: steps that were repeated
    after a kill count once.
    """
    total = _mapping(_mapping(run.record.get("time")).get("total"))
    seconds = {
        name: float(value)
        for name, value in _mapping(total.get("seconds")).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LONGEST_SECONDS
    }
    if not seconds:
        return None
    trained, all_seconds = total.get("steps"), sum(seconds.values())
    kept = min(1.0, run.step / trained) if is_step(trained) and trained > 0 and run.step is not None else 1.0
    return {
        "seconds": seconds,
        "goodput": round(seconds.get("steps", 0.0) * kept / all_seconds, 4) if all_seconds > 0 else None,
        "restarts": restarts if is_step(restarts := total.get("restarts")) else 0,
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
