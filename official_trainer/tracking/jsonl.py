"""`metrics.jsonl`: every metric of a run, one JSON object a line, for scripts.

Owns: the row format, `{"step": 10, "split": "train", "time": 1700000000.0, "loss": 0.5}`, time in Unix seconds; that
each step and split has one row; and that a row is written after everything else about its step and split.
Does not own: when rows are logged, or which other trackers there are.

Rows are strict JSON: values that are not finite are the strings "NaN", "Infinity" and "-Infinity", which `read_rows`,
and Python's `float`, convert back to numbers.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from official_trainer import files
from official_trainer.tracking import MetricError, Tracker

_logger = logging.getLogger(__name__)
_RESERVED = ("step", "split", "time")
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


class JsonlTracker(Tracker):
    """Appends rows to one file; each is handed to the operating system before `log` returns.

    Args:
      path: local path or URL.
      clock: tells the time in Unix seconds.
    """

    def __init__(self, path: str, *, clock: Callable[[], float] = time.time) -> None:
        self.path = str(path)
        self._clock = clock
        self._file: IO[str] | None = None
        self._keys: set[tuple[int, str]] | None = None  # (step, split) of each row; None until the file is read
        self._last: dict[str, Any] | None = None

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        """Appends a row; it replaces one of the same step and split.

        Raises:
          MetricError: a metric has the name of a field that every row has.
        """
        for name in _RESERVED:
            if name in values:
                raise MetricError(f"a metric cannot be named {name!r}: rows of metrics.jsonl have a field of that name")
        if self.has_row(step, split):
            self._keep(lambda row: (row["step"], row["split"]) != (step, split))
        row = {"step": step, "split": split, "time": round(self._clock(), 3)}
        row |= {name: encode(value) for name, value in values.items()}
        if self._file is None:
            self._file = files.open_file(self.path, "a")
        try:
            self._file.write(json.dumps(row, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            error.filename = self.path  # which errors of writing do not name
            raise
        self._row_keys().add((step, split))
        self._last = row

    def has_row(self, step: int, split: str) -> bool:
        """Whether `split` was logged at `step`."""
        return (step, split) in self._row_keys()

    def last(self) -> dict[str, Any] | None:
        """Returns step, split and time of the last row, which `holds` looks for; None if there is none."""
        self._row_keys()
        return None if self._last is None else {name: self._last[name] for name in _RESERVED if name in self._last}

    def holds(self, last: Mapping[str, Any]) -> bool:
        """Whether the file holds the row that `last` has returned."""
        rows = read_rows(self.path, step=last.get("step")) if files.exists(self.path) else []
        return any(last.items() <= row.items() for row in rows)

    def row(self, step: int, split: str) -> dict[str, float] | None:
        """Returns the numbers of `split` at `step`, or None if it was not logged."""
        rows = read_rows(self.path, step=step) if self.has_row(step, split) else []
        return next((numbers_of(row) for row in rows if row["split"] == split), None)

    def steps(self, split: str) -> set[int]:
        """Returns the steps at which `split` was logged."""
        return {step for step, name in self._row_keys() if name == split}

    def rewind(self, step: int) -> None:
        """Drops rows after `step`, and a line that was cut off."""
        if files.exists(self.path):
            self._keep(lambda row: row["step"] <= step)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _row_keys(self) -> set[tuple[int, str]]:
        """Returns step and split of each row; asked for at each row and each checkpoint, it says if rows are gone."""
        if self._file is not None and not files.is_in_place(self._file, self.path):
            _logger.warning(
                "%s was removed, emptied or replaced while the run writes to it. The rows that are not there any more "
                "are lost; the next ones are written to it.",
                self.path,
            )
            self.close()
            self._keys = self._last = None
        if self._keys is None:
            self._keys = set()
            if files.exists(self.path):
                self._keep(lambda row: True)  # drops an incomplete last line of a killed process
        return self._keys

    def _keep(self, is_kept: Callable[[Mapping[str, Any]], bool]) -> None:
        self.close()
        text = _read(self.path)
        lines = []
        self._keys, self._last = set(), None
        for line, row in _parse(self.path, text):  # of a long run there are too many rows to hold all of them
            if is_kept(row):
                lines.append(f"{line}\n")
                self._keys.add((row["step"], row["split"]))
                self._last = row
        if (new_text := "".join(lines)) != text:
            files.write_text_atomically(self.path, new_text)


def read_rows(path: str, *, step: int | None = None) -> list[dict[str, Any]]:
    """Returns the rows of a `metrics.jsonl`, numbers as floats; lines that are not whole are left out.

    Another process may be writing the last line now; nothing is said of it.

    Args:
      path: local path or URL.
      step: the only one whose rows are read, which is much faster; None reads all.
    """
    text = _read(path)
    try:
        files.parse_json(text[text.rfind("\n") + 1 :])
    except ValueError:
        text = text[: text.rfind("\n") + 1]
    return [
        {name: float(value) if value in _NOT_FINITE else value for name, value in row.items()}
        for _, row in _parse(path, text, step)
    ]


def numbers_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of a row, without step, split and time."""
    return {name: value for name, value in row.items() if name not in _RESERVED}


def _read(path: str) -> str:
    """Returns the text, with a mark in place of invalid bytes: they make their row invalid, not the file."""
    return files.read_bytes(path).decode("utf-8", "replace")


def _parse(path: str, text: str, step: int | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the rows, or those of a step, each with its line."""
    digits = "" if step is None else str(step)
    for number, line in enumerate(text.splitlines(), start=1):
        if digits not in line:
            continue
        try:
            row = files.parse_json(line)
            if not isinstance(row["step"], int) or not isinstance(row["split"], str):
                raise TypeError("step, split")
            if not all(map(is_encoded, numbers_of(row).values())):
                raise TypeError("metrics")
        except (ValueError, KeyError, TypeError):
            _logger.warning("%s:%d: not a whole row, left out: %.60s", path, number, line)
            continue
        if step is None or row["step"] == step:
            yield line, row


def is_encoded(value: object) -> bool:
    """Whether a value of JSON is a number, or what `encode` makes of one."""
    return isinstance(value, int | float) or value in _NOT_FINITE


def encode(value: float) -> float | str:
    """Returns a number in a form that strict JSON allows; `float` converts it back."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
