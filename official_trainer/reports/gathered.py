"""The runs that a page is about: the best first, with the metric that decides, and where their time went.

Owns: their order, and the account of time over all processes of a run, with goodput. Does not own: finding and naming
runs (`entries.py`), values of metrics (`measures.py`), measuring time (`runs/health/time_account.py`).
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.reports import entries, measures, sweep_figures
from official_trainer.reports.entries import Entry
from official_trainer.reports.measures import Measure
from official_trainer.reports.opened import NoRunError
from official_trainer.reports.sweep_figures import Direction
from official_trainer.runs.recorded import LONGEST_SECONDS, is_step
from official_trainer.tracking import EVALUATION

_NO_RUNS = ("empty", "no run")


@dataclasses.dataclass(kw_only=True)
class Ranked(Entry):
    """A run of a page.

    Attributes:
      best: its best value of the metric that decides; None if it has none.
      best_step: where that was reached; None if that is not known.
      final: the last value of that metric.
    """

    best: float | None = None
    best_step: int | None = None
    final: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gathered:
    """The runs of a page.

    Attributes:
      paths: the folders that were named.
      folder: that all runs are below.
      runs: the best first; then those without a value of the metric, by name.
      metric: what decides which run is the best; None if no run says it.
      direction: which of its values are better; None if no run says it.
      sweep: what `sweep_figures.summary` returns, if the directory of a sweep was named.
    """

    paths: Sequence[str]
    folder: str
    runs: Sequence[Ranked]
    metric: str | None
    direction: Direction | None
    sweep: Mapping[str, Any] | None

    @property
    def best(self) -> Ranked | None:
        """The best run that was not pruned; None if none has a value, or nothing says which values are better."""
        whole = (run for run in self.runs if run.best is not None and run.run.status != "pruned")
        return None if self.direction is None else next(whole, None)


def gather(paths: Sequence[str], *, now_seconds: float) -> Gathered:
    """Returns the runs in folders and below them.

    Args:
      paths: run directories, folders of runs, or one sweep.
      now_seconds: the Unix time.

    Raises:
      NoRunError: a folder is not there or cannot be listed, or there is no run.
    """
    found = entries.find(paths, now_seconds=now_seconds)
    if all(entry.run.status in _NO_RUNS for entry in found):
        what = ", ".join(paths)
        why = "they hold none" if len(paths) > 1 else "it holds other files" if os.listdir(paths[0]) else "it is empty"
        raise NoRunError(f"no run in {what}: {why}; name run directories, a folder of them, or a sweep")
    directories = [os.path.abspath(entry.run.directory) for entry in found]
    deciding = measures.deciding(found, paths)
    metric, direction = next(iter(deciding.items()), (None, None))
    ranked = [_ranked(entry, metric, direction) for entry in found]

    def rank(run: Ranked) -> tuple[Any, ...]:
        best = run.best if run.best is not None and math.isfinite(run.best) else None
        sign = -1 if direction == "max" else 1
        name = [part.zfill(9) if part.isdecimal() else part for part in run.name.replace("_", " ").split()]
        return best is None, 0.0 if best is None else sign * best, run.run.status in _NO_RUNS, name

    return Gathered(
        paths=list(paths),
        folder=os.path.commonpath(directories) if len(found) > 1 else os.path.dirname(directories[0]),
        runs=sorted(ranked, key=rank),
        metric=metric,
        direction=direction,
        sweep=sweep_figures.summary(paths[0]) if len(paths) == 1 else None,
    )


def _ranked(entry: Entry, metric: str | None, direction: Direction | None) -> Ranked:
    ranked = Ranked(run=entry.run, name=entry.name, differs=entry.differs)
    curves = entry.run.curves  # all of them: a page draws them, and so the rows are read once
    if metric is None:
        return ranked
    ranked.best, ranked.final = (Measure(metric, at, direction).of(ranked) for at in ("best", "last"))
    recorded, curve, step = entry.run.record.get("best"), curves.get(EVALUATION, metric), None
    if ranked.best is not None and ranked.best is entry.run.recorded.best:
        step = recorded.get("step") if isinstance(recorded, Mapping) else None
    elif curve is not None and ranked.best in curve.values:
        step = curve.steps[curve.values.index(ranked.best)]
    ranked.best_step = step if is_step(step) else None
    return ranked


def account(ranked: Ranked) -> dict[str, Any] | None:
    """Returns the time of a run as JSON takes it; None without a record of it.

    `parts` are the seconds of each part; `between` are those in which no process ran, and `lost` those after the last
    record of one that was killed. `goodput` is the share of all of it that went into steps whose results were kept:
    steps that were repeated after a kill count once.
    """
    run, record = ranked.run.recorded, ranked.run.record
    total = _mapping(_mapping(record.get("time")).get("total"))
    seconds = {
        name: float(value)
        for name, value in {**_mapping(total.get("seconds")), **_mapping(total.get("outside"))}.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LONGEST_SECONDS
    }
    if not seconds:
        return None
    trained, all_seconds = total.get("steps"), sum(seconds.values())
    kept = min(1.0, run.step / trained) if is_step(trained) and trained > 0 and run.step is not None else 1.0
    attempts = _mapping(record.get("time")).get("attempts")
    verdict = _mapping(attempts[-1]).get("verdict") if isinstance(attempts, list) and attempts else None
    return {
        "parts": seconds,
        "goodput": round(seconds.get("steps", 0.0) * kept / all_seconds, 4) if all_seconds > 0 else None,
        "restarts": restarts if is_step(restarts := total.get("restarts")) else 0,
        "verdict": verdict if isinstance(verdict, str) else None,
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
