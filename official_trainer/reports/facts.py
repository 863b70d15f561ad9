"""The summary of a page: a few numbers about its runs, and what a reader has to know before trusting them.

Owns: which numbers and remarks there are. Does not own: facts about runs (`gathered.py`), messages of errors, which
stand with the runs.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.reports.gathered import Gathered
from official_trainer.runs.recorded import duration_text
from official_trainer.shown import counted, first_few
from official_trainer.tracking.git_state import DIRTY
from official_trainer.tracking.monitored import show

_BETTER = {"max": "higher is better", "min": "lower is better"}


def facts(found: Gathered, times: Sequence[Mapping[str, Any] | None]) -> Iterator[tuple[str, str, str]]:
    """Yields numbers about all runs, each with what it is and a remark.

    Args:
      found: the runs.
      times: `gathered.account` of each.
    """
    runs = [run.run.recorded for run in found.runs]
    statuses = collections.Counter(run.status for run in runs).most_common()
    if len(runs) == 1:
        end = "" if not runs[0].end_step else f"of {runs[0].end_step:,}"
        yield "Status", runs[0].status, f"step {runs[0].step or 0:,} {end}".rstrip()
    elif found.sweep is None:
        yield "Runs", f"{len(runs):,}", ", ".join(f"{count} {status}" for status, count in statuses)
    else:
        counts = found.sweep["counts"]
        yield "Trials", f"{sum(counts.values()):,}", ", ".join(f"{count} {state}" for state, count in counts.items())
    if (best := found.best) is not None and best.best is not None:
        where = [_BETTER[found.direction or "max"]]
        where += [] if best.best_step is None else [f"step {best.best_step:,}"]
        where += [best.name] if len(runs) > 1 else []
        yield f"Best {found.metric}", show(best.best), ", ".join(where)
    known = [time for time in times if time is not None]
    seconds = sum(sum(time["parts"].values()) for time in known)
    if seconds > 0:
        kept = sum((time["goodput"] or 0.0) * sum(time["parts"].values()) for time in known)
        yield "Time", duration_text(seconds), f"{100 * kept / seconds:.0f} % in steps that count"
        if restarted := [time["restarts"] for time in known if time["restarts"]]:
            yield "Restarts", f"{sum(restarted):,}", f"in {counted(len(restarted), 'run')}"
    if len(runs) > 1 and (steps := sum(run.step or 0 for run in runs)):
        yield "Steps", f"{steps:,}", "of all runs"


def remarks(found: Gathered, times: Sequence[Mapping[str, Any] | None]) -> Iterator[str]:
    """Yields what a reader has to know before comparing the runs, and what slows them down.

    Args:
      found: the runs.
      times: `gathered.account` of each.
    """
    if found.best is None and len(found.runs) > 1:
        yield "Which run is the best is not known: no run says which metric decides, or none has a value of it."
    if verdicts := collections.Counter(time["verdict"] for time in times if time is not None and time["verdict"]):
        yield f"Steps wait for data in {counted(verdicts.total(), 'run')}: {next(iter(verdicts))}."
    changed = [run.name for run in found.runs if str(run.run.record.get("git_revision")).endswith(DIRTY)]
    if changed:
        yield f"Started with changes of the code that were not committed: {first_few(changed)}."
