"""`metrics.csv`: every metric of a run as one table for a spreadsheet, one row for each step and split.

Owns: the table: the columns `step`, `split`, `time` (Unix seconds), and one for each metric, in the order of their
first row; a cell is empty where a split has no such metric. Does not own: `metrics.jsonl`, which scripts should read.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from official_trainer import files
from official_trainer.config import TrackerConfig
from official_trainer.config.folders import file_problem
from official_trainer.errors import UserError
from official_trainer.tracking import MetricError, Place, Tracker

_logger = logging.getLogger(__name__)
_OWN = ("step", "split", "time")


class TableError(UserError, ValueError):
    """The file exists, and is not a table of this program."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CsvConfig(TrackerConfig):
    """One table for spreadsheets: a row for each step and split, a column for each metric.

    Attributes:
      file: name of the file, in the run directory.
    """

    file: str = "metrics.csv"

    def problems(self) -> Iterator[tuple[str, str]]:
        if problem := file_problem(self.file, suffix=".csv"):
            yield "file", problem

    def build(self, place: Place) -> CsvTracker:
        return CsvTracker(files.join(place.directory, self.file))


class CsvTracker(Tracker):
    """Writes one table; a new metric rewrites it with one more column.

    Args:
      path: local path or URL.
      clock: tells the time in Unix seconds.
    """

    def __init__(self, path: str, *, clock: Callable[[], float] = time.time) -> None:
        self.path = str(path)
        self._clock = clock
        self._file: IO[str] | None = None
        self._columns: list[str] = []  # of the file, if it is open
        self._known: set[tuple[str, str]] = set()  # (step, split) of each row, as written, if the file is open

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        """Adds a row; it replaces one of the same step and split.

        Raises:
          MetricError: a metric has the name of one of the table's own columns.
          TableError: the file was not written by this program.
        """
        for name in _OWN:
            if name in values:
                raise MetricError(f"a metric cannot be named {name!r}: {self.path} has a column of that name")
        if self._file is not None and not files.is_in_place(self._file, self.path):
            _logger.warning("%s was removed, emptied or replaced: the next rows are written to it", self.path)
            self.close()
        if self._file is None:
            self._rows()
        row = {"step": str(step), "split": split, "time": f"{self._clock():.3f}"}
        row |= {name: repr(float(value)) for name, value in values.items()}
        place = row["step"], row["split"]
        if place in self._known or not row.keys() <= set(self._columns):
            rows = [other for other in self._rows() if (other["step"], other["split"]) != place]
            self._write(list(dict.fromkeys([*self._columns, *row])), [*rows, row])
            return
        if self._file is None:
            self._file = files.open_file(self.path, "a")
        csv.DictWriter(self._file, self._columns, lineterminator="\n").writerow(row)
        self._file.flush()
        self._known.add(place)

    def rewind(self, step: int) -> None:
        """Drops rows after `step`, and a line that was cut off."""
        self.close()
        files.remove_temporaries(*os.path.split(self.path))
        if files.exists(self.path):
            rows = self._rows()
            kept = [row for row in rows if int(row["step"]) <= step]
            if len(kept) < len(rows):
                self._write(self._columns, kept)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rows(self) -> list[dict[str, str]]:
        """Returns the complete rows of the file, and removes other lines, such as half a line of a killed process."""
        text = files.read_text(self.path) if files.exists(self.path) else ""
        whole = text[: text.rfind("\n") + 1]
        head, *lines = list(csv.reader(io.StringIO(whole))) or [[]]
        if text and tuple(head[: len(_OWN)]) != _OWN:
            raise TableError(
                f"{self.path} was not written by this program: its first line is {text.partition(chr(10))[0][:60]!r}. "
                "Move it away, or name another trainer.trackers file"
            )
        rows = [dict(zip(head, line, strict=True)) for line in lines if len(line) == len(head) and line[0].isdecimal()]
        if len(rows) < len(lines):
            _logger.warning("%s: %d lines are no rows of it, left out", self.path, len(lines) - len(rows))
        self._columns = head
        self._known = {(row["step"], row["split"]) for row in rows}
        if whole != text or len(rows) < len(lines):
            self._write(self._columns, rows)
        return rows

    def _write(self, columns: list[str], rows: list[dict[str, str]]) -> None:
        self.close()
        table = io.StringIO()
        writer = csv.DictWriter(table, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        files.write_text_atomically(self.path, table.getvalue(), durable=False)
