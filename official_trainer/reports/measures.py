"""A number of a run that runs are compared by: a metric at its best, at the end, or at a step.

Owns: how such a number is named, and finding it in what a run has recorded, as cheaply as that is possible. Does not
own: reading rows (`recorded_curves.py`), which direction is better (the config or the user says it).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from official_trainer import files
from official_trainer.errors import ExitCode, UserError
from official_trainer.nearest import did_you_mean, nearest
from official_trainer.reports import recorded_curves as curves
from official_trainer.reports.recorded_curves import Curve, Curves
from official_trainer.runs.recorded import RecordedRun
from official_trainer.shown import first_few, shorten
from official_trainer.tracking import EVALUATION

Direction = Literal["max", "min"]

_DIRECTIONS: Mapping[Any, Direction] = {"higher": "max", "lower": "min"}
_ARROWS: Mapping[Direction | None, str] = {"max": " ↑", "min": " ↓", None: ""}
_LINE, _LONGEST_ERROR = "\n", 120
_HOW = "allowed: NAME, NAME:max, NAME:min, NAME:last, NAME:STEP"


class MeasureError(UserError, ValueError):
    """A metric that no run has recorded, or that is named in a way that means nothing."""

    exit_code = ExitCode.CONFIG


@dataclasses.dataclass
class Entry:
    """A run that is compared.

    Attributes:
      run: what its files say.
      name: what it is called beside the others.
      differs: the fields of its config that differ from the others', by path, as YAML.
    """

    run: RecordedRun
    name: str
    differs: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def evaluations(self) -> Curves:
        """The metrics of its evaluations alone, which is quicker to read."""
        return curves.read(self.run.directory, splits=(EVALUATION,))

    @functools.cached_property
    def curves(self) -> Curves:
        """All its metrics."""
        return curves.read(self.run.directory)

    @property
    def notes(self) -> list[str]:
        """What went wrong, and what is not known of the run and of what was read of its metrics."""
        error = self.run.record.get("error")
        said = [f"error: {shorten(str(error).strip().partition(_LINE)[0], _LONGEST_ERROR)}"] if error else []
        read = [vars(self)[name].notes for name in ("evaluations", "curves") if name in vars(self)]
        return list(dict.fromkeys([*self.run.notes, *said, *(note for notes in read for note in notes)]))

    @property
    def direction(self) -> Direction | None:
        """Which values are better of the metric that decides in this run, by its config."""
        return _DIRECTIONS.get(self.run.direction)


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
    def title(self) -> str:
        """The heading of its column."""
        if self.at == "best":
            return f"{self.metric}{_ARROWS[self.direction]}"
        return f"{self.metric} {self.at if self.at == 'last' else f'@{self.at}'}"

    @property
    def key(self) -> str:
        """Its name for programs, in the form that `parse` takes."""
        return f"{self.metric}:{self.direction if self.at == 'best' else self.at}"

    def of(self, entry: Entry) -> float | None:
        """Returns the number of a run; None if it has none."""
        run = entry.run
        decides = run.metric is not None and self.metric == run.metric.replace("|", "/")
        if decides and self.at == "best" and self.direction == entry.direction and isinstance(run.best, float):
            return run.best
        if self.at == "last" and (found := _final(run, self.metric)) is not None:
            return found
        curve = _curve(entry, self.metric)
        return None if curve is None else _at(curve, self.at, self.direction)


def of_sweeps(places: Iterable[str]) -> dict[str, Direction]:
    """Returns the metrics by which the sweeps among folders compare trials, and which of their values are better."""
    found: dict[str, Direction] = {}
    for place in places:
        if os.path.exists(os.path.join(place, files.SWEEP_FILE)):
            from official_trainer.sweeps import results

            with contextlib.suppress(results.SweepError, AttributeError, KeyError, TypeError):
                objective = results.read_identity(place)["sweep"]["objective"]
                given = {objective["metric"]: objective["direction"], **objective["others"]}
                found |= {name.replace("|", "/"): way for name, way in given.items() if way in _ARROWS and way}
    return found


def of_runs(
    entries: Sequence[Entry], texts: Sequence[str], directions: Mapping[str, Direction] = MappingProxyType({})
) -> list[Measure]:
    """Returns the measures that texts name; without any, the best and the last value of what decides in these runs.

    Args:
      entries: the runs.
      texts: `NAME`, `NAME:max`, `NAME:min`, `NAME:last` or `NAME:STEP`.
      directions: metrics that decide beside those of the configs, and which of their values are better.

    Raises:
      MeasureError: no run has such a metric.
    """
    known: dict[str, Direction | None] = dict(directions)
    for entry in entries:
        if entry.run.metric and not isinstance(entry.run.best, Mapping):  # which a rule of the user's compares
            name = entry.run.metric.replace("|", "/")
            known[name] = known.get(name) or entry.direction
    if not texts:
        default = [(name, direction) for name, direction in known.items() if direction is not None]
        return [each for name, way in default for each in (Measure(name, "best", way), Measure(name, "last", way))]
    measures = [_parsed(text, known) for text in texts]
    for measure in measures:
        if all(measure.of(entry) is None for entry in entries):
            raise _missing(measure, entries)
    return measures


def _parsed(text: str, known: Mapping[str, Direction | None]) -> Measure:
    name, colon, at = text.rpartition(":")
    if not colon:
        direction = known.get(text)
        return Measure(text, "last" if direction is None else "best", direction)
    if at in ("max", "min"):
        return Measure(name, "best", at)  # type: ignore[arg-type]
    if at == "last":
        return Measure(name, "last", known.get(name))
    if not at.isdecimal() or not name:
        near = nearest(at, ("max", "min", "last"))
        raise MeasureError(f"--metrics={text}: {_HOW}{f'; did you mean {name}:{near[0]}?' if near and name else ''}")
    return Measure(name, int(at), known.get(name))


def _missing(measure: Measure, entries: Iterable[Entry]) -> MeasureError:
    """Returns what to raise for a metric that no run has."""
    names: dict[str, None] = {}
    for entry in entries:
        for split, found in entry.curves.by_split.items():
            names |= dict.fromkeys(name if split == EVALUATION else f"{split}/{name}" for name in found)
    if measure.metric in names and isinstance(measure.at, int):
        return MeasureError(f"--metrics={measure.key}: no run has recorded {measure.metric} at step {measure.at}")
    if not names:
        return MeasureError(f"--metrics={measure.metric}: none of these runs has recorded a metric")
    hint = did_you_mean(measure.metric, names, otherwise=f"; they have {first_few([*names])}")
    return MeasureError(f"--metrics={measure.metric}: no run has recorded it{hint}")


def _final(run: RecordedRun, metric: str) -> float | None:
    """Returns a metric of the last evaluation of a run that is done, by its record."""
    found: Any = run.record.get("final_metrics") if run.status == "done" else None
    for name in [metric] if isinstance(found, dict) and metric in found else metric.split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    try:
        return None if isinstance(found, dict | list | bool | None) else float(found)
    except ValueError:
        return None


def _curve(entry: Entry, metric: str) -> Curve | None:
    if (found := entry.evaluations.get(EVALUATION, metric)) is not None:
        return found
    split, slash, name = metric.partition("/")
    return entry.curves.get(split, name) if slash else None


def _at(curve: Curve, at: str | int, direction: Direction | None) -> float | None:
    if isinstance(at, int):
        return curve.at(at)
    if at == "last":
        return curve.values[-1]
    numbers = [value for value in curve.values if not math.isnan(value)] or curve.values[-1:]
    return max(numbers) if direction == "max" else min(numbers)
