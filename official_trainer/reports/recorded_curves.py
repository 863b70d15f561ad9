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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.lazy import load
from official_trainer.runs.recorded import is_step
from official_trainer.tracking.tensorboard import EventFiles

ROWS = "metrics.jsonl"
EVALUATOR = "continuous_eval"
"""The folder of an evaluator beside a run, with rows of its own."""

_ABOUT_ROW = ("step", "split", "time")

Row = Mapping[str, Any]
"""Numbers by name, with their `step`, `split` and Unix `time`."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """One metric of one split: two lists of equal length, by rising step.

    Attributes:
      steps: global steps.
      values: numbers, which may be NaN or infinite.
    """

    steps: list[int] = dataclasses.field(default_factory=list)
    values: list[float] = dataclasses.field(default_factory=list)

    def at(self, step: int) -> float | None:
        """Returns the value at a step, or None if there is none."""
        return dict(zip(self.steps, self.values, strict=True)).get(step)


@dataclasses.dataclass(frozen=True)
class Curves:
    """All metrics of a run.

    Attributes:
      by_split: split (`train`, `validation`, `time`, or the name that an action gave) → name → curve.
      notes: what could not be read, and what is not known.
    """

    by_split: Mapping[str, Mapping[str, Curve]] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def get(self, split: str, name: str) -> Curve | None:
        """Returns a curve, or None if the run has no such metric."""
        return self.by_split.get(split, {}).get(name)


def read(directory: str) -> Curves:
    """Returns the numbers of a run; nothing, and a note, if there are none that can be read."""
    notes: list[str] = []
    rows: list[Row] = []
    is_there = False
    for folder in ("", EVALUATOR):
        in_file = _in_file(files.join(directory, folder, ROWS), notes)
        is_there = is_there or in_file is not None
        rows += _final(in_file or ())
    if not is_there and not notes:
        try:
            rows = list(_of_event_files(directory))
            notes.append(f"no {ROWS}: the metrics are those of TensorBoard's files" if rows else f"there is no {ROWS}")
        except OSError as error:
            notes.append(f"TensorBoard's files cannot be read: {files.reason_of(error)}")
    elif not rows and not notes:
        notes.append(f"{ROWS} is empty")
    first_rows: dict[tuple[int, str], Row] = {}
    for row in rows:  # those of the run come before those of its evaluator
        first_rows.setdefault((row["step"], row["split"]), row)
    by_split: dict[str, list[Row]] = {}
    for row in sorted(first_rows.values(), key=lambda row: row["step"]):
        by_split.setdefault(row["split"], []).append(row)
    return Curves({split: _curves(rows) for split, rows in by_split.items()}, tuple(notes))


def _in_file(path: str, notes: list[str]) -> list[Row] | None:
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
    rows = _parsed(lines)
    if count := len(lines) - len(rows):
        notes.append(f"{count} damaged line{'s' if count > 1 else ''} of {ROWS} left out")
    return rows + (_parsed([last]) if last else [])


def _parsed(lines: list[bytes]) -> list[Row]:
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


def _final(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows that count, in their order.

    A split's rows rise. One that does not means that the run went back: rows of that split from this step on, and rows
    of other splits after it, are of a history that was left.
    """
    kept: list[Row] = []
    reached: dict[str, int] = {}
    for row in rows:
        step, split = row["step"], row["split"]
        if reached.get(split, step - 1) >= step:
            kept = [old for old in kept if old["step"] < step or (old["step"] == step and old["split"] != split)]
            reached = {name: min(last, step) for name, last in reached.items()}
        reached[split] = step
        kept.append(row)
    return kept


def _curves(rows: Sequence[Row]) -> dict[str, Curve]:
    """Returns the metrics in the rows of one split, which have different and rising steps."""
    curves: dict[str, Curve] = {}
    for name in dict.fromkeys(name for row in rows for name in row if name not in _ABOUT_ROW):
        points = [(row["step"], number) for row in rows if (number := _number(row.get(name))) is not None]
        if points:
            curves[name] = Curve(*map(list, zip(*points, strict=True)))
    return curves


def _number(value: Any) -> float | None:
    """Returns a number of a row, also one that is not finite, which rows hold as text; None for anything else."""
    if type(value) is float:  # nearly always
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _of_event_files(directory: str) -> Iterator[Row]:
    """Yields the numbers of a run of Model Garden's driver; of two with one name and step the later."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    events = EventFiles(directory)
    for split in events.folders(""):
        for event in events.events(split):
            for value in event.summary.value:
                if (number := _scalar(value)) is not None:
                    row = rows.setdefault((split, event.step), {"step": event.step, "split": split})
                    row |= {"time": event.wall_time, value.tag: number}
    yield from rows.values()


def _scalar(value: Any) -> float | None:
    """Returns the number of a summary, in the forms of TensorFlow 1 and 2; None for anything else."""
    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    if value.WhichOneof("value") != "tensor" or value.metadata.plugin_data.plugin_name not in ("scalars", ""):
        return None
    array = load("tensorboard.util.tensor_util").make_ndarray(value.tensor)
    return float(array) if array.size == 1 and array.dtype.kind in "fiu" else None
