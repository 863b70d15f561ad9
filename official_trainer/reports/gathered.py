"""The runs that a report is about: which folders they are in, what they are called, which one is the best.

Owns: finding the runs and the sweep that paths name, their order, the metric that decides.
Does not own: reading a run (`reports/opened.py`) or a sweep (`sweeps/results.py`), what runs are called
(`runs/differing.py`).
"""

from __future__ import annotations

import collections
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from official_trainer import files
from official_trainer.reports import opened
from official_trainer.reports.opened import NoRunYetError, OpenedRun
from official_trainer.runs import differing
from official_trainer.runs.recorded import is_step

NO_RUNS = ("empty", "no run")
"""How folders stand that hold no run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranked:
    """A run of a report.

    Attributes:
      run: the run.
      name: what it is called on the page; unique there.
      differs: the fields in which the runs differ, by path, as YAML.
      best: its best value of the report's metric; None if it has none.
      best_step: where that was reached; None if that is not known.
      final: the last value of that metric.
      is_pruned: whether it is a trial that its sweep has ended early.
    """

    run: OpenedRun
    name: str
    differs: Mapping[str, str]
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
        first = self.runs[0]
        return first if self.direction is not None and first.best is not None else None


def gather(paths: Sequence[str], *, now_seconds: float) -> Gathered:
    """Returns the runs in folders and below them.

    Args:
      paths: run directories, folders of runs, or one sweep.
      now_seconds: the Unix time.

    Raises:
      NoRunYetError: a folder is not there, or there is no run.
      NoRunError: a folder cannot be listed.
    """
    found: dict[str, OpenedRun] = {}
    for path in paths:
        for run in opened.open_all(path, now_seconds=now_seconds):
            found.setdefault(os.path.realpath(run.directory), run)
    runs = list(found.values())
    if not any(run.status not in NO_RUNS for run in runs):
        what = ", ".join(paths)
        why = "they hold none" if len(paths) > 1 else "it holds other files" if os.listdir(paths[0]) else "it is empty"
        raise NoRunYetError(f"no run in {what}: {why}; name run directories, a folder of them, or a sweep")
    sweep = _sweep(paths)
    directories = [os.path.abspath(run.directory) for run in runs]
    names = differing.names(directories)
    folder = os.path.commonpath(directories) if len(runs) > 1 else os.path.dirname(directories[0])
    fields = differing.differing([run.recorded for run in runs])
    metric, direction = _metric(runs, sweep)
    ranked = [_ranked(*each, metric) for each in zip(runs, names, fields, strict=True)]
    ranked = [_with_best_of_curve(each, metric, direction) for each in ranked]
    pruned = _pruned(paths, sweep)
    ranked = [dataclasses.replace(each, is_pruned=each.run.directory in pruned) for each in ranked]
    return Gathered(
        paths=list(paths),
        folder=folder,
        runs=sorted(ranked, key=lambda each: _order(each, direction)),
        metric=metric,
        direction=direction,
        sweep=sweep,
    )


def _sweep(paths: Sequence[str]) -> dict[str, Any] | None:
    """Returns all that a report draws of a sweep, if its directory is all that was named."""
    from official_trainer.sweeps import results

    if len(paths) != 1 or not os.path.exists(files.join(paths[0], results.SWEEP)):
        return None
    return results.as_json(results.read(paths[0], with_runs=True))


def _pruned(paths: Sequence[str], sweep: Mapping[str, Any] | None) -> set[str]:
    """Returns the directories of the trials that a sweep has pruned."""
    trials = sweep["trials"] if sweep is not None else ()
    return {files.join(paths[0], trial["run"]) for trial in trials if trial["state"] == "pruned"}


def _metric(
    runs: Sequence[OpenedRun], sweep: Mapping[str, Any] | None
) -> tuple[str | None, Literal["higher", "lower"] | None]:
    if sweep is not None:
        name, direction = next(iter(sweep["metrics"].items()))
        return name, "higher" if direction == "max" else "lower"
    counts = collections.Counter((run.recorded.metric, run.recorded.direction) for run in runs if run.recorded.metric)
    return counts.most_common(1)[0][0] if counts else (None, None)


def _ranked(run: OpenedRun, name: str, differs: Mapping[str, str], metric: str | None) -> Ranked:
    recorded = run.recorded
    best, step = None, None
    if recorded.metric == metric and isinstance(recorded.best, float):
        best, held = recorded.best, run.record.get("best")
        step = held.get("step") if isinstance(held, Mapping) else None
    return Ranked(run=run, name=name, differs=differs, best=best, best_step=step if is_step(step) else None)


def _with_best_of_curve(ranked: Ranked, metric: str | None, direction: str | None) -> Ranked:
    """Adds the last value of the metric; and the best one, if the record has none."""
    curve = None if metric is None else ranked.run.curves.get("validation", metric)
    if curve is None or not curve.values:
        return ranked
    ranked = dataclasses.replace(ranked, final=curve.values[-1])
    points = [(value, step) for step, value in zip(curve.steps, curve.values, strict=True) if math.isfinite(value)]
    if ranked.best is not None or direction is None or not points:
        return ranked
    value, step = (max if direction == "higher" else min)(points, key=lambda point: point[0])
    return dataclasses.replace(ranked, best=value, best_step=step)


def _order(ranked: Ranked, direction: str | None) -> tuple[Any, ...]:
    best = ranked.best if ranked.best is not None and math.isfinite(ranked.best) else None
    sign = 1 if direction == "lower" else -1
    name = [part.zfill(9) if part.isdecimal() else part for part in ranked.name.replace("_", " ").split()]
    return best is None, 0.0 if best is None else sign * best, ranked.status in NO_RUNS, name
