"""What runs are compared by: a metric at its best, at the end, or at a step; and fields, by which some are chosen.

Owns: how such a number is named, and finding it in what a run has recorded, as cheaply as that is possible; the
language of conditions, and the names of fields in it. Does not own: reading rows (`recorded_curves.py`) and records
(`runs/recorded.py`), which direction is better: the config says it, or the user; it is never guessed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any, Literal

from official_trainer import files
from official_trainer.config import lines
from official_trainer.config.text import flow
from official_trainer.errors import ExitCode, UserError
from official_trainer.nearest import did_you_mean, nearest
from official_trainer.reports.entries import Entry
from official_trainer.shown import first_few
from official_trainer.tracking import EVALUATION

Direction = Literal["max", "min"]

DIRECTIONS: Mapping[Any, Direction] = {"higher": "max", "lower": "min"}
"""Which values are better: in the config of a run, and of a sweep."""

_ARROWS: Mapping[Direction | None, str] = {"max": " ↑", "min": " ↓", None: ""}
_HOW = "allowed: NAME, NAME:max, NAME:min, NAME:last, NAME:STEP"


class CompareError(UserError, LookupError, ValueError):
    """A metric, field or column that no run has, or one that is named in a way that means nothing."""

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
        run = entry.run.recorded
        decides = run.metric is not None and self.metric == run.metric.replace("|", "/")
        is_best = self.at == "best" and self.direction == DIRECTIONS.get(run.direction)
        if decides and is_best and isinstance(run.best, float):
            return run.best
        if self.at == "last" and run.status == "done":
            found: Any = run.record.get("final_metrics")
            for name in [self.metric] if isinstance(found, dict) and self.metric in found else self.metric.split("/"):
                found = found.get(name) if isinstance(found, dict) else None
            with contextlib.suppress(ValueError):
                if not isinstance(found, dict | list | bool | None):
                    return float(found)
        curve = entry.evaluations.get(EVALUATION, self.metric)
        split, slash, name = self.metric.partition("/")
        if curve is None and slash:
            curve = entry.run.curves.get(split, name)
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


def sweeps_of(place: str) -> ModuleType | None:
    """Returns the module that reads the sweep in a folder; None without a sweep, or where sweeps are not installed."""
    if not os.path.exists(files.join(place, files.SWEEP_FILE)):
        return None
    try:
        from official_trainer.sweeps import results
    except ModuleNotFoundError:
        return None
    return results


def of_sweeps(places: Iterable[str]) -> dict[str, Direction]:
    """Returns the metrics by which the sweeps among folders compare trials, and which of their values are better."""
    found: dict[str, Direction] = {}
    for place in places:
        if (results := sweeps_of(place)) is not None:
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
      CompareError: no run has such a metric.
    """
    known: dict[str, Direction | None] = dict(directions)
    for entry in entries:
        run = entry.run.recorded
        if run.metric and not isinstance(run.best, Mapping):  # which a rule of the user's compares
            name = run.metric.replace("|", "/")
            known[name] = known.get(name) or DIRECTIONS.get(run.direction)
    if not texts:
        default = [(name, direction) for name, direction in known.items() if direction is not None]
        return [each for name, way in default for each in (Measure(name, "best", way), Measure(name, "last", way))]
    measures = [_parsed(text, known) for text in texts]
    for measure in measures:
        if any(measure.of(entry) is not None for entry in entries):
            continue
        names: dict[str, None] = {}
        for entry in entries:
            for split, found in entry.run.curves.by_split.items():
                names |= dict.fromkeys(name if split == EVALUATION else f"{split}/{name}" for name in found)
        if measure.metric in names and isinstance(measure.at, int):
            what = f"no run has recorded {measure.metric} at step {measure.at}"
            raise CompareError(f"--metrics={measure.key}: {what}")
        hint = did_you_mean(measure.metric, names, otherwise=f"; they have {first_few([*names]) or 'no metric'}")
        raise CompareError(f"--metrics={measure.metric}: no run has recorded it{hint}")
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
        raise CompareError(f"--metrics={text}: {_HOW}{f'; did you mean {name}:{near[0]}?' if near and name else ''}")
    return Measure(name, int(at), known.get(name))


# Fields of runs, and conditions on them: `trainer.train_steps>=500`, `optimizer.type=adam`, `status!=failed`.

_CONDITION = re.compile(r"\s*([^=!<>\s]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

OWN: Mapping[str, Callable[[Entry], Any]] = {
    "run": lambda entry: entry.name,
    "experiment": lambda entry: entry.run.recorded.experiment,
    "status": lambda entry: entry.run.recorded.status,
    "step": lambda entry: entry.run.recorded.step,
    "took": lambda entry: entry.run.recorded.duration_seconds,
    "examples_per_second": lambda entry: entry.run.recorded.examples_per_second,
    "best": lambda entry: entry.run.recorded.best if isinstance(entry.run.recorded.best, float) else None,
}
"""What is known of each run beside its config; `took` in seconds."""


def kept(entries: Sequence[Entry], conditions: Sequence[str]) -> list[Entry]:
    """Returns the runs that fulfil all conditions; a run that lacks a field fulfils `!=` alone.

    Raises:
      CompareError: a condition cannot be read, or no run has its field.
    """
    found = list(entries)
    for text in conditions:
        match = _CONDITION.fullmatch(text)
        if match is None or not match[3]:
            allowed = "write FIELD, one of = != < <= > >=, and a value; as in optimizer.type=adam"
            raise CompareError(f"--where={text}: {allowed}")
        name, sign, value = match.groups()
        field = path_of(name, entries, "--where")
        wanted = lines.value(value)
        if sign not in ("=", "!=") and not isinstance(wanted, int | float):
            raise CompareError(f"{sign}{value}: only numbers are larger or smaller; use = or !=")
        holds = []
        for entry in found:
            own = value_of(entry, field)
            if sign in ("=", "!="):
                is_equal = own == wanted or (isinstance(own, str) and own == value) or flow(own) == flow(wanted)
                fits = is_equal == (sign == "=")
            else:
                is_number = isinstance(own, int | float) and not isinstance(own, bool) and not isinstance(wanted, bool)
                fits = is_number and _COMPARISONS[sign](own, wanted)
            holds += [entry] if fits else []
        found = holds
    return found


def path_of(name: str, entries: Iterable[Entry], flag: str) -> str:
    """Returns the field that a name means: one of `OWN`, a path, or the end of exactly one path of these runs.

    Raises:
      CompareError: no run has such a field, or several have this end.
    """
    if name in OWN:
        return name
    paths = list(dict.fromkeys(path for entry in entries for path in entry.run.recorded.config))
    if name in paths:
        return name
    ends = [path for path in paths if path.endswith(f".{name}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise CompareError(f"{flag}={name}: several fields end so: {first_few(ends)}; write more of its path")
    depth = name.count(".") + 1
    near = nearest(name, [*OWN, *paths]) or nearest(name, {".".join(path.split(".")[-depth:]): None for path in paths})
    hint = f"; did you mean {near[0]}?" if near else f"; beside fields of configs there are {', '.join(OWN)}"
    raise CompareError(f"{flag}={name}: no run has such a field{hint}")


def value_of(entry: Entry, field: str) -> Any:
    """Returns what a run has in a field; None if it has no such field."""
    return OWN[field](entry) if field in OWN else lines.value(entry.run.recorded.config.get(field))
