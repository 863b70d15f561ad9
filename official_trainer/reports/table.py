"""A table of runs: the fields in which their configs differ, their metrics, time and status; also by groups.

Owns: which columns and rows there are, and their order. Does not own: what is measured and which runs are
kept (`measures.py`), how a table is written (`formats.py`).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal

from official_trainer.config.text import flow, short_names
from official_trainer.nearest import nearest
from official_trainer.reports.entries import Entry
from official_trainer.reports.measures import OWN, CompareError, Direction, Measure, value_of
from official_trainer.runs import differing, recorded
from official_trainer.shown import first_few, printable


@dataclasses.dataclass(frozen=True)
class Spread:
    """Several numbers in one.

    Attributes:
      mean: of those that are there.
      deviation: their sample standard deviation; None of one number.
      count: how many there are.
    """

    mean: float
    deviation: float | None
    count: int


Cell = str | int | float | Spread | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """A column.

    Attributes:
      key: for programs: the path of a field, a metric as `--metrics` takes it, or a word.
      title: for people.
      kind: `run`, `metric`, `field` or `fact`.
      direction: which numbers are better; None if none is.
      text: how one of its cells is shown; None for the usual way.
    """

    key: str
    title: str
    kind: Literal["run", "metric", "field", "fact"]
    direction: Direction | None = None
    text: Callable[[Any], str] | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """What is shown.

    Attributes:
      columns: the most important first.
      rows: a cell for each column.
      notes: of each row, what went wrong with that run and what is not known.
      remarks: about the whole.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()


def is_seed(path: str) -> bool:
    """Whether a field is a seed, in which runs differ that are to be the same otherwise."""
    return path.rpartition(".")[2] == "seed"


_TOOK, _SPEED = "took_seconds", "examples_per_second"


def of_runs(found: Sequence[Entry], measures: Sequence[Measure], fields: Sequence[str] | None) -> Table:
    """Returns a row for each run.

    Args:
      found: the runs.
      measures: the metrics.
      fields: the fields that are shown; None for those that differ.
    """
    differs = dict.fromkeys(path for entry in found for path in entry.differs)
    paths = sorted(differs, key=is_seed) if fields is None else list(fields)
    names = short_names(paths)
    several = len({entry.run.recorded.experiment for entry in found}) > 1
    columns = [
        Column(key="run", title="run", kind="run"),
        *(Column(key=each.key, title=each.title, kind="metric", direction=each.direction) for each in measures),
        *(Column(key=path, title=printable(names[path]), kind="field") for path in paths),
        *([Column(key="experiment", title="experiment", kind="fact")] if several else []),
        Column(key="status", title="status", kind="fact"),
        Column(key="step", title="step", kind="fact"),
        Column(key=_TOOK, title="took", kind="fact", text=recorded.duration_text),
        Column(key=_SPEED, title="examples/s", kind="fact", text=recorded.speed_text),
    ]
    rows = [
        [
            entry.name,
            *(each.of(entry) for each in measures),
            *(_field(entry, path) for path in paths),
            *(OWN["took" if column.key == _TOOK else column.key](entry) for column in columns if column.kind == "fact"),
        ]
        for entry in found
    ]
    return Table(columns, rows, [entry.notes for entry in found])


def _field(entry: Entry, path: str) -> str | None:
    if path in OWN:
        value = value_of(entry, path)
        return None if value is None else str(value)
    if path in entry.differs:
        return entry.differs[path]
    return flow(value_of(entry, path)) if path in entry.run.recorded.config else None


def ordered(table: Table, order: str | None) -> Table:
    """Returns a table in the order of a column; without one, of its first metric, the best first.

    What is not known comes last.

    Args:
      table: the rows.
      order: title or key of a column; after a `-` the other way round.

    Raises:
      CompareError: there is no such column.
    """
    name = (order or "").removeprefix("-")
    if order is None:
        chosen = next((i for i, column in enumerate(table.columns) if column.kind == "metric"), 0)
    else:
        known: dict[str, int] = {}
        for i, column in enumerate(table.columns):  # its title, also without an arrow, its key, and the metric alone
            metric = column.key.rpartition(":")[0] or column.key
            for word in (column.title, column.title.rstrip(" ↑↓"), column.key, metric):
                known.setdefault(word, i)
        if name not in known:
            near = nearest(name, known)
            hint = f"; did you mean {near[0]}?" if near else f"; columns: {', '.join(c.title for c in table.columns)}"
            raise CompareError(f"--sort={order}: there is no such column{hint}")
        chosen = known[name]
    falls = (table.columns[chosen].direction == "max") != (order or "").startswith("-")
    there = [i for i, row in enumerate(table.rows) if not _is_missing(row[chosen])]

    def rank(i: int) -> tuple[bool, Any]:  # numbers before words
        cell = table.rows[i][chosen]
        with contextlib.suppress(ValueError):
            return False, cell.mean if isinstance(cell, Spread) else float(cell)  # type: ignore[arg-type]
        return True, cell

    there.sort(key=rank, reverse=falls)
    places = [*there, *(i for i, row in enumerate(table.rows) if _is_missing(row[chosen]))]
    return dataclasses.replace(table, rows=[table.rows[i] for i in places], notes=[table.notes[i] for i in places])


def _is_missing(cell: Cell) -> bool:
    number = cell.mean if isinstance(cell, Spread) else cell
    return number is None or number == differing.NOT_THERE or (isinstance(number, float) and math.isnan(number))


def grouped(found: Sequence[Entry], measures: Sequence[Measure], fields: Sequence[str]) -> Table:
    """Returns a row for each combination of values of fields, with mean and deviation of each metric over its runs.

    What else differs inside of groups, other than seeds, is said below, because a mean over it may mean little.
    """
    groups: dict[tuple[str | None, ...], list[Entry]] = {}
    for entry in found:
        groups.setdefault(tuple(_field(entry, field) for field in fields), []).append(entry)
    names = short_names(fields)
    columns = [
        *(Column(key=field, title=printable(names[field]), kind="field") for field in fields),
        *(Column(key=each.key, title=each.title, kind="metric", direction=each.direction) for each in measures),
        Column(key="n", title="n", kind="fact"),
        Column(key="status", title="status", kind="fact"),
        Column(key=_TOOK, title="took", kind="fact", text=recorded.duration_text),
    ]
    rows = []
    for values, members in groups.items():
        statuses = collections.Counter(member.run.status for member in members).most_common()
        took = _spread([member.run.recorded.duration_seconds for member in members])
        rows.append(
            [
                *values,
                *(_spread([each.of(member) for member in members]) for each in measures),
                len(members),
                ", ".join(f"{count} {status}" for status, count in statuses),
                took and took.mean,
            ]
        )
    varying: dict[str, None] = {}
    for members in groups.values():
        for path in dict.fromkeys(path for member in members for path in member.differs):
            several = len({member.differs.get(path) for member in members}) > 1
            if several and path not in fields and not is_seed(path):
                varying[path] = None
    remarks = []
    if varying:
        listed = first_few([*map(printable, short_names([*varying]).values())])
        remarks = [f"inside of groups these fields differ too: {listed}"]
    return Table(columns, rows, [()] * len(rows), remarks)


def _spread(values: Sequence[float | None]) -> Spread | None:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    if not all(map(math.isfinite, numbers)):
        return Spread(math.nan, math.nan if len(numbers) > 1 else None, len(numbers))
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else None
    return Spread(statistics.fmean(numbers), deviation, len(numbers))
