"""The summary of a page: a few numbers about its runs, where their time went, and what a reader has to know.

Owns: which numbers and remarks there are, and the account of time over all processes of a run, with goodput. Does not
own: the runs (`content.py`), measuring time (`runs/health/time_account.py`).
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.reports.entries import Entry
from official_trainer.reports.sweep_figures import Direction
from official_trainer.runs.recorded import LONGEST_SECONDS, RecordedRun, duration_text, is_step
from official_trainer.shown import counted, first_few
from official_trainer.tracking.git_state import DIRTY
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
    states = trials or dict(collections.Counter(row["status"] for row in rows).most_common())
    if len(rows) == 1:
        end = f" of {rows[0]['end_step']:,}" if rows[0]["end_step"] else ""
        yield "Status", rows[0]["status"], f"step {rows[0]['step'] or 0:,}{end}"
    else:
        listed = ", ".join(f"{count} {state}" for state, count in states.items())
        yield "Runs" if trials is None else "Trials", f"{sum(states.values()):,}", listed
    best = next((row for row in rows if row["best"] is not None and row["status"] != "pruned"), None)
    if best is not None and direction is not None:
        step = [] if best["best_step"] is None else [f"step {best['best_step']:,}"]
        name = [best["name"]] if len(rows) > 1 else []
        yield f"Best {metric}", show(float(best["best"])), ", ".join([_BETTER[direction], *step, *name])
    times = [row["time"] for row in rows if row["time"] is not None]
    seconds = sum(sum(time["parts"].values()) for time in times)
    if seconds > 0:
        kept = sum((time["goodput"] or 0.0) * sum(time["parts"].values()) for time in times)
        yield "Time", duration_text(seconds), f"{100 * kept / seconds:.0f} % in steps that count"
    if restarted := [time["restarts"] for time in times if time["restarts"]]:
        yield "Restarts", f"{sum(restarted):,}", f"in {counted(len(restarted), 'run')}"
    if len(rows) > 1 and (steps := sum(row["step"] or 0 for row in rows)):
        yield "Steps", f"{steps:,}", "of all runs"


def remarks(runs: Sequence[Entry], rows: Rows, *, is_best_known: bool) -> Iterator[str]:
    """Yields what a reader has to know before comparing the runs, and what slows them down.

    Args:
      runs: the runs.
      rows: the same, as the page has them.
      is_best_known: whether a metric decides which run is the best.
    """
    if len(rows) > 1 and not (is_best_known and any(row["best"] is not None for row in rows)):
        yield "Which run is the best is not known: no run says which metric decides, or none has a value of it."
    verdicts = [row["time"]["verdict"] for row in rows if row["time"] is not None and row["time"]["verdict"]]
    if verdicts:
        yield f"Steps wait for data in {counted(len(verdicts), 'run')}: {verdicts[0]}."
    changed = [entry.name for entry in runs if str(entry.run.record.get("git_revision")).endswith(DIRTY)]
    if changed:
        yield f"Started with changes of the code that were not committed: {first_few(changed)}."


def account(run: RecordedRun) -> dict[str, Any] | None:
    """Returns the time of a run as JSON takes it; None without a record of it.

    `parts` are the seconds of each part; `between` are those in which no process ran, and `lost` those after the last
    record of one that was killed. `goodput` is the share of all of it that went into steps whose results were kept:
    steps that were repeated after a kill count once.
    """
    time = _mapping(run.record.get("time"))
    total, attempts = _mapping(time.get("total")), time.get("attempts")
    seconds = {
        name: float(value)
        for name, value in {**_mapping(total.get("seconds")), **_mapping(total.get("outside"))}.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LONGEST_SECONDS
    }
    if not seconds:
        return None
    trained, all_seconds = total.get("steps"), sum(seconds.values())
    kept = min(1.0, run.step / trained) if is_step(trained) and trained > 0 and run.step is not None else 1.0
    verdict = _mapping(attempts[-1]).get("verdict") if isinstance(attempts, list) and attempts else None
    return {
        "parts": seconds,
        "goodput": round(seconds.get("steps", 0.0) * kept / all_seconds, 4) if all_seconds > 0 else None,
        "restarts": restarts if is_step(restarts := total.get("restarts")) else 0,
        "verdict": verdict if isinstance(verdict, str) else None,
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
