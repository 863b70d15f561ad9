"""The numbers of a run by step, as its final history has them: what `metrics.jsonl` holds, in columns.

Owns: reading the rows fast, of a run that goes on, was killed in the middle of a line, or went back to an earlier step;
for a run of Model Garden's driver its TensorBoard files. Does not own: the format of rows (`tracking/jsonl.py`) and of
event files (`tracking/tensorboard.py`). Imports no TensorFlow, and writes nothing.

The rows of a run are those of training and, from `continuous_eval/`, those of an evaluator beside it. Where a run went
back, as a restart or a rollback does, what it had recorded from that step on does not count.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.runs.recorded import is_step

ROWS = "metrics.jsonl"
EVALUATOR = "continuous_eval"
"""The folder of an evaluator beside a run, with rows of its own."""

_ABOUT_ROW = ("step", "split", "time")
_LATEST_SECONDS = 1e11  # the year 5138


@dataclasses.dataclass(frozen=True)
class Curve:
    """One metric of one split: three lists of equal length, by rising step.

    Attributes:
      steps: global steps.
      values: numbers, which may be NaN or infinite.
      times: when each was recorded, in Unix seconds; None where that is not known.
    """

    steps: list[int] = dataclasses.field(default_factory=list)
    values: list[float] = dataclasses.field(default_factory=list)
    times: list[float | None] = dataclasses.field(default_factory=list)

    def at(self, step: int) -> float | None:
        """Returns the value at a step, or None if there is none."""
        return dict(zip(self.steps, self.values, strict=True)).get(step)


@dataclasses.dataclass(frozen=True)
class Curves:
    """All metrics of a run.

    Attributes:
      by_split: split (`train`, `validation`, `time`, or the name that an action gave) → name → curve.
      notes: what could not be read, and what is not known.

    Example:
      >>> from official_trainer.reports.recorded_curves import Curves, Curve
      >>> curves = Curves({"validation": {"accuracy": Curve([10, 20], [0.5, 0.75], [None, None])}})
      >>> curves.get("validation", "accuracy").values, curves.get("train", "loss")
      ([0.5, 0.75], None)
    """

    by_split: Mapping[str, Mapping[str, Curve]] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def get(self, split: str, name: str) -> Curve | None:
        """Returns a curve, or None if the run has no such metric."""
        return self.by_split.get(split, {}).get(name)

    def columns(self) -> dict[str, list[Any]]:
        """Returns every number as a row of a long table: columns `step`, `time`, `split`, `name` and `value`."""
        table: dict[str, list[Any]] = {name: [] for name in ("step", "time", "split", "name", "value")}
        for split, curves in self.by_split.items():
            for name, curve in curves.items():
                table["step"] += curve.steps
                table["time"] += curve.times
                table["split"] += [split] * len(curve.steps)
                table["name"] += [name] * len(curve.steps)
                table["value"] += curve.values
        return table


def read(directory: str, *, splits: Collection[str] | None = None) -> Curves:
    """Returns the numbers of a run; nothing, and a note, if there are none that can be read.

    Args:
      directory: a run directory.
      splits: the only ones to read, which is faster; None reads all.
    """
    notes: list[str] = []
    rows, is_there = [], False
    for folder in ("", EVALUATOR):
        read = _rows(files.join(directory, folder, ROWS), splits, notes)
        is_there = is_there or read is not None
        rows += _final(read or ())
    if not is_there and not notes:
        return _of_event_files(directory, splits)
    if not rows and splits is None and not notes:
        notes.append(f"{ROWS} is empty")
    known: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["step"]):
        known.setdefault(row["split"], {}).setdefault(row["step"], row)  # the run's own before those of its evaluator
    return Curves({split: _curves(list(found.values())) for split, found in known.items()}, tuple(notes))


def _rows(path: str, splits: Collection[str] | None, notes: list[str]) -> list[dict[str, Any]] | None:
    """Returns the rows of a file as they stand there; None if there is no such file, or it cannot be read."""
    try:
        content = files.read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        notes.append(f"{ROWS} cannot be read: {files.reason_of(error)}")
        return None
    lines = content.split(b"\n")
    last = lines.pop()  # empty, or a line that is being written, or that a killed process left
    if splits is not None:
        wanted = [f'"split": {json.dumps(split)}'.encode() for split in splits]
        lines = [line for each in wanted for line in lines if each in line]
    rows = _parsed(lines)
    if lines and len(rows) < len(lines):
        count = len(lines) - len(rows)
        notes.append(f"{count} damaged line{'s' if count > 1 else ''} of {ROWS} left out")
    return rows + (_parsed([last]) if last and splits is None else [])


def _parsed(lines: list[bytes]) -> list[dict[str, Any]]:
    """Returns the rows among lines; parsing them as one list takes half the time of line by line."""
    try:
        values = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        values = []
        for line in lines:
            try:
                values.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
    return [
        row
        for row in values
        if isinstance(row, dict) and isinstance(row.get("split"), str) and is_step(row.get("step"))
    ]


def _final(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the rows that count, in their order.

    A split's rows rise. One that does not means that the run went back: rows of that split from this step on, and rows
    of other splits after it, are of a history that was left.
    """
    kept: list[Mapping[str, Any]] = []
    reached: dict[str, int] = {}
    for row in rows:
        step, split = row["step"], row["split"]
        if reached.get(split, step - 1) >= step:
            kept = [each for each in kept if each["step"] < step or (each["step"] == step and each["split"] != split)]
            reached = {name: min(last, step) for name, last in reached.items()}
        reached[split] = step
        kept.append(row)
    return kept


def _curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Returns the metrics in the rows of one split, which have different and rising steps."""
    steps = [row["step"] for row in rows]
    recorded = [row.get("time") for row in rows]
    times = [float(t) if isinstance(t, int | float) and 0 <= t < _LATEST_SECONDS else None for t in recorded]
    found: dict[str, Curve] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        if name in _ABOUT_ROW:
            continue
        values = [row.get(name) for row in rows]
        if all(type(value) is float for value in values):  # nearly always
            found[name] = Curve(steps.copy(), values, times.copy())  # type: ignore[arg-type]
            continue
        curve = Curve()
        for step, value, time in zip(steps, map(_number, values), times, strict=True):
            if value is not None:
                curve.steps.append(step)
                curve.values.append(value)
                curve.times.append(time)
        if curve.steps:
            found[name] = curve
    return found


def _number(value: Any) -> float | None:
    """Returns a number of a row, also one that is not finite, which rows hold as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


# Runs of Model Garden's driver, whose numbers are in TensorBoard's files alone.


def _of_event_files(directory: str, splits: Collection[str] | None) -> Curves:
    from official_trainer.reports import recorded_events

    found: dict[str, dict[str, dict[int, tuple[float, float]]]] = {}
    try:
        for split, name, step, value, time in recorded_events.scalars(directory):
            if splits is None or split in splits:
                found.setdefault(split, {}).setdefault(name, {})[step] = (value, time)  # the later one counts
    except OSError as error:
        return Curves({}, (f"TensorBoard's files cannot be read: {files.reason_of(error)}",))
    if not found:
        return Curves({}, (f"no metrics: there is no {ROWS}",))
    by_split: dict[str, dict[str, Curve]] = {}
    for split, names in found.items():
        for name, points in names.items():
            values, times = zip(*(points[step] for step in sorted(points)), strict=True)
            by_split.setdefault(split, {})[name] = Curve(sorted(points), list(values), list(times))
    return Curves(by_split, (f"no {ROWS}: the metrics are those of TensorBoard's files",))
