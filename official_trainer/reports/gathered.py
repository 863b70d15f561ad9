"""The runs that a report is about: which folders they are in, which one is the best, where their time went.

Owns: finding the runs and the sweep that paths name, their order, the metric that decides; the account of time over all
processes of a run, and goodput. Does not own: reading a run (`opened.py`) or a sweep (`sweeps/results.py`), what
runs are called (`runs/differing.py`), measuring time (`runs/health/time_account.py`).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from official_trainer import files
from official_trainer.reports import entries, measures
from official_trainer.reports.entries import Entry
from official_trainer.reports.measures import Measure
from official_trainer.reports.opened import NoRunYetError
from official_trainer.runs.recorded import LONGEST_SECONDS, is_step
from official_trainer.tracking import EVALUATION

_LEAST_BETWEEN_SECONDS = 2.0  # the record has whole seconds

NO_RUNS = ("empty", "no run")
"""How folders stand that hold no run."""


@dataclasses.dataclass(kw_only=True)
class Ranked(Entry):
    """A run of a report.

    Attributes:
      best: its best value of the report's metric; None if it has none.
      best_step: where that was reached; None if that is not known.
      final: the last value of that metric.
      is_pruned: whether it is a trial that its sweep has ended early.
    """

    best: float | None = None
    best_step: int | None = None
    final: float | None = None
    is_pruned: bool = False

    @property
    def status(self) -> str:
        """How it stands, in a word: `pruned`, or the status of the run."""
        return "pruned" if self.is_pruned else self.run.status


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gathered:
    """The runs of a report, the best first.

    Attributes:
      paths: the folders that were named.
      folder: that all runs are below.
      runs: the best first; then those without a value of the metric, by name.
      metric: what decides which run is the best; None if no run says it.
      direction: which of its values are better; None if no run says it.
      sweep: the content of `results.json`, if a sweep was named; None otherwise.
    """

    paths: Sequence[str]
    folder: str
    runs: Sequence[Ranked]
    metric: str | None = None
    direction: Literal["higher", "lower"] | None = None
    sweep: Mapping[str, Any] | None = None

    @property
    def best(self) -> Ranked | None:
        """The best run; None if no run has a value of the metric, or nothing says which values are better."""
        is_known = self.direction is not None and self.runs and self.runs[0].best is not None
        return self.runs[0] if is_known else None


def gather(paths: Sequence[str], *, now_seconds: float) -> Gathered:
    """Returns the runs in folders and below them.

    Args:
      paths: run directories, folders of runs, or one sweep.
      now_seconds: the Unix time.

    Raises:
      NoRunYetError: a folder is not there, or there is no run.
      NoRunError: a folder cannot be listed.
    """
    found = entries.find(paths, now_seconds=now_seconds)
    if not any(each.run.status not in NO_RUNS for each in found):
        what = ", ".join(paths)
        why = "they hold none" if len(paths) > 1 else "it holds other files" if os.listdir(paths[0]) else "it is empty"
        raise NoRunYetError(f"no run in {what}: {why}; name run directories, a folder of them, or a sweep")
    sweep: dict[str, Any] | None = None
    pruned: set[str] = set()
    if len(paths) == 1 and (results := measures.sweeps_of(paths[0])) is not None:
        sweep = results.as_json(results.read(paths[0], with_runs=True))
        pruned = {files.join(paths[0], trial["run"]) for trial in sweep["trials"] if trial["state"] == "pruned"}
    runs = [each.run for each in found]
    directories = [os.path.abspath(run.directory) for run in runs]
    folder = os.path.commonpath(directories) if len(runs) > 1 else os.path.dirname(directories[0])
    metric: str | None = None
    direction: Literal["higher", "lower"] | None = None
    deciding = collections.Counter((run.recorded.metric, run.recorded.direction) for run in runs if run.recorded.metric)
    if sweep is not None:
        metric, way = next(iter(sweep["metrics"].items()))
        direction = "higher" if way == "max" else "lower"
    elif deciding:
        metric, direction = deciding.most_common(1)[0][0]
    way, name = measures.DIRECTIONS.get(direction), (metric or "").replace("|", "/")
    ranked = []
    for each in found:
        made = Ranked(run=each.run, name=each.name, differs=each.differs, is_pruned=each.run.directory in pruned)
        ranked.append(made)
        if metric is None:
            continue
        curve, held = each.run.curves.get(EVALUATION, name), each.run.record.get("best")
        made.best, made.final = (Measure(name, at, way).of(each) for at in ("best", "last"))
        step = None
        if made.best is not None and made.best is each.run.recorded.best:
            step = held.get("step") if isinstance(held, Mapping) else None
        elif curve is not None and made.best in curve.values:
            step = curve.steps[curve.values.index(made.best)]
        made.best_step = step if is_step(step) else None

    def rank(each: Ranked) -> tuple[Any, ...]:
        best = each.best if each.best is not None and math.isfinite(each.best) else None
        sign = 1 if direction == "lower" else -1
        name = [part.zfill(9) if part.isdecimal() else part for part in each.name.replace("_", " ").split()]
        return best is None, 0.0 if best is None else sign * best, each.status in NO_RUNS, name

    return Gathered(
        paths=list(paths),
        folder=folder,
        runs=sorted(ranked, key=rank),
        metric=metric,
        direction=direction,
        sweep=sweep,
    )


def account(each: Ranked, *, now_seconds: float) -> dict[str, Any] | None:
    """Returns the time of a run as JSON takes it; None without a record of it.

    `parts` are the seconds of each part; `between` are those in which no process ran, and `lost` those after the last
    record of one that was killed; records of earlier versions do not tell them apart, and all are `between`. `goodput`
    is the share of all of it that went into steps whose results were kept: steps that were repeated after a kill count
    once.
    """
    record = each.run.record
    total = _mapping(_mapping(record.get("time")).get("total"))
    seconds = {
        name: float(value)
        for name, value in {**_mapping(total.get("seconds")), **_mapping(total.get("outside"))}.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LONGEST_SECONDS
    }
    if not seconds:
        return None
    wall = sum(seconds.values())
    started, ended = each.run.recorded.started_seconds, record.get("finished")
    end_seconds = now_seconds if each.status == "running" else None
    if end_seconds is None and isinstance(ended, str):
        with contextlib.suppress(ValueError):
            end_seconds = datetime.datetime.fromisoformat(ended).timestamp()
    between = 0.0 if started is None or end_seconds is None else end_seconds - started - wall
    if between >= _LEAST_BETWEEN_SECONDS and total.get("until") is None:  # a record of an earlier version
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


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
