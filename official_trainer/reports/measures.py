"""What runs are compared by: a metric at its best, at the end, or at a step.

Owns: how such a number is named, and finding it in what a run has recorded, as cheaply as that is possible. Does not
own: reading rows (`recorded_curves.py`) and records (`runs/recorded.py`), which direction is better: the config says
it, or the user; it is never guessed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from official_trainer.errors import ExitCode, UserError
from official_trainer.nearest import did_you_mean
from official_trainer.reports.opened import OpenedRun
from official_trainer.shown import first_few
from official_trainer.tracking import EVALUATION
from official_trainer.tracking.monitored import DIRECTIONS

Direction = Literal["max", "min"]
"""Which values of a metric are better."""

_HOW = "allowed: NAME, NAME:max, NAME:min, NAME:last, NAME:STEP"


class CompareError(UserError, LookupError, ValueError):
    """A metric, field, column or condition that means nothing for these runs."""

    exit_code = ExitCode.CONFIG


@dataclasses.dataclass(frozen=True)
class Measure:
    """A number of each run.

    Attributes:
      metric: name of the metric; of the evaluations, or with the name of its split before it, `train/training_loss`.
      at: `best`, `last`, or a step.
      direction: which values are better; None if it is not known.
    """

    metric: str
    at: Literal["best", "last"] | int
    direction: Direction | None = None

    @property
    def column(self) -> str:
        """The name of its column: that of the metric at its best, else with `:last` or the step behind it."""
        return self.metric if self.at == "best" else f"{self.metric}:{self.at}"

    def of(self, run: OpenedRun) -> float | None:
        """Returns the number of a run; None if it has none."""
        record = run.recorded
        decides = record.metric is not None and self.metric == record.metric.replace("|", "/")
        is_best = self.at == "best" and self.direction == DIRECTIONS.get(record.direction or "")
        if decides and is_best and isinstance(record.best, float):  # without reading its rows
            return record.best
        curve = run.curves.get(EVALUATION, self.metric)
        split, slash, name = self.metric.partition("/")
        if curve is None and slash:
            curve = run.curves.get(split, name)
        if curve is None:
            return None
        if isinstance(self.at, int):
            return curve.at(self.at)
        if self.at == "last":
            return curve.values[-1]
        if self.direction is None:
            return None
        numbers = [value for value in curve.values if not math.isnan(value)] or curve.values[-1:]
        return max(numbers) if self.direction == "max" else min(numbers)


def sweep_summary(directory: str) -> Mapping[str, Any] | None:
    """Returns the summary of the sweep in a folder; None without a sweep, and where sweeps are not installed.

    It has the `metric` that is compared and its `direction`, `counts` of trials by state, the number of the `best`
    trial, the `importance` of fields, and `trials` (`number`, `state`, `value`, `params`, `run`).
    """
    try:
        from official_trainer.sweeps import results
    except ModuleNotFoundError:
        return None
    return results.summary(directory) if results.is_sweep(directory) else None


def deciding(runs: Iterable[OpenedRun], summaries: Iterable[Mapping[str, Any] | None]) -> dict[str, Direction | None]:
    """Returns the metrics that decide which run is the best, and which of their values are better.

    Args:
      runs: those whose configs name such a metric.
      summaries: what `sweep_summary` returns for their folders; those of sweeps are the first.
    """
    directions: dict[str, Direction | None] = {}
    for summary in summaries:
        if summary is not None:
            directions[summary["metric"].replace("|", "/")] = summary["direction"]
    for record in (run.recorded for run in runs):
        if record.metric and not isinstance(record.best, Mapping):  # which a rule of the user's compares
            name = record.metric.replace("|", "/")
            directions[name] = directions.get(name) or DIRECTIONS.get(record.direction or "")
    return directions


def of_runs(
    runs: Sequence[OpenedRun], texts: Sequence[str], directions: Mapping[str, Direction | None]
) -> list[Measure]:
    """Returns the measures that texts name; without any, the best value of what decides in these runs.

    Args:
      runs: the runs.
      texts: `NAME`, `NAME:max`, `NAME:min`, `NAME:last` or `NAME:STEP`.
      directions: the metrics that decide, as `deciding` returns them.

    Raises:
      CompareError: no run has such a metric.
    """
    if not texts:
        return [Measure(name, "best", way) for name, way in directions.items() if way is not None]
    measures = [_parsed(text, directions) for text in texts]
    for text, measure in zip(texts, measures, strict=True):
        if any(measure.of(run) is not None for run in runs):
            continue
        names: dict[str, None] = {}
        for run in runs:
            for split, curves in run.curves.by_split.items():
                names |= dict.fromkeys(name if split == EVALUATION else f"{split}/{name}" for name in curves)
        if measure.metric in names and isinstance(measure.at, int):
            raise CompareError(f"--metrics={text}: no run has recorded {measure.metric} at step {measure.at}")
        hint = did_you_mean(measure.metric, names, otherwise=f"; they have {first_few([*names]) or 'no metric'}")
        raise CompareError(f"--metrics={text}: no run has recorded {measure.metric}{hint}")
    return measures


def _parsed(text: str, directions: Mapping[str, Direction | None]) -> Measure:
    name, colon, at = text.rpartition(":")
    if not colon:
        direction = directions.get(text)
        return Measure(text, "last" if direction is None else "best", direction)
    if at in ("max", "min"):
        return Measure(name, "best", cast(Direction, at))
    if at == "last":
        return Measure(name, "last", directions.get(name))
    if not at.isdecimal() or not name:
        near = did_you_mean(at, ("max", "min", "last"), prefix=f"{name}:") if name else ""
        raise CompareError(f"--metrics={text}: {_HOW}{near}")
    return Measure(name, int(at), directions.get(name))
