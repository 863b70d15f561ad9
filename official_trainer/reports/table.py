"""A table of runs as a DataFrame of pandas: metrics, the fields in which configs differ, status, time; also by groups.

Owns: which columns and rows there are, their order, and conditions on rows. Does not own: what is measured
(`measures.py`), how a table is written (`formats.py`).

Each column has one name, in conditions, orders and files as on the terminal: `run`, a metric as `measures.py` names it,
a field by the shortest end of its path that no other column has, and the facts below.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_trainer.config import lines
from official_trainer.config.text import flow, short_names
from official_trainer.nearest import did_you_mean, nearest
from official_trainer.reports.entries import Entry
from official_trainer.reports.measures import CompareError, Measure
from official_trainer.reports.sweep_figures import Direction
from official_trainer.shown import first_few, printable

if TYPE_CHECKING:
    import pandas as pd

FACTS: Mapping[str, Callable[[Entry], Any]] = {
    "experiment": lambda entry: entry.run.recorded.experiment,
    "status": lambda entry: entry.run.recorded.status,
    "step": lambda entry: entry.run.recorded.step,
    "took": lambda entry: entry.run.recorded.duration_seconds,
    "examples_per_second": lambda entry: entry.run.recorded.examples_per_second,
}
"""What is known of a run beside its config; `took` in seconds."""

_QUOTED_OR_NAME = re.compile(r"""'[^']*'|"[^"]*"|`[^`]+`|(?<![\w.])[^\W\d]\w*(?:\[\d+\])?(?:[.:/]\w+(?:\[\d+\])?)*""")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """What is shown.

    Attributes:
      frame: a row for each run or group; its last column, `notes`, says what went wrong and what is not known.
      metrics: the columns of metrics, and which of their values are better; None if that is not known. Of groups there
        are `NAME mean`, `NAME std` and `NAME count`.
    """

    frame: pd.DataFrame
    metrics: Mapping[str, Direction | None]

    @property
    def is_grouped(self) -> bool:
        """Whether a row is a group of runs."""
        return "run" not in self.frame


def is_seed(path: str) -> bool:
    """Whether a field is a seed, in which runs differ that are to be the same otherwise."""
    return path.rpartition(".")[2] == "seed"


def of_runs(entries: Sequence[Entry], measures: Sequence[Measure], paths: Sequence[str] | None) -> Table:
    """Returns a row for each run.

    Args:
      entries: the runs.
      measures: the metrics.
      paths: of the fields that are shown; None for those that differ.
    """
    import pandas as pd

    differ = dict.fromkeys(path for entry in entries for path in entry.differs)
    paths = sorted(differ, key=is_seed) if paths is None else paths
    names = _column_names(paths, measures)
    columns: dict[str, Any] = {"run": [printable(entry.name) for entry in entries]}
    for measure in measures:
        columns[printable(measure.column)] = pd.Series([measure.of(entry) for entry in entries], dtype=float)
    columns |= {names[path]: _field(entries, path) for path in paths if path not in FACTS}
    facts = {name: [_fact(entry, name) for entry in entries] for name in FACTS}
    if len(set(facts["experiment"])) < 2 and "experiment" not in paths:
        del facts["experiment"]
    columns |= {name: pd.Series(values, dtype=object) for name, values in facts.items()}
    columns["notes"] = [printable("; ".join(entry.notes)) for entry in entries]
    return Table(
        frame=pd.DataFrame(columns),
        metrics={printable(measure.column): measure.direction for measure in measures},
    )


def _column_names(paths: Iterable[str], measures: Iterable[Measure]) -> dict[str, str]:
    """Returns the column of each field: the shortest end of its path that is the name of no other column."""
    others = ["run", *FACTS, "notes", *(measure.column for measure in measures)]
    shortest = short_names([*others, *paths])
    return {path: path if path in FACTS else printable(shortest[path]) for path in paths}


def _fact(entry: Entry, name: str) -> Any:
    value = FACTS[name](entry)
    return math.nan if value is None else _shown(value)


def _field(entries: Iterable[Entry], path: str) -> pd.Series:
    """Returns the values of a field; NaN for a run that does not have it, which fulfils no condition but `!=`."""
    import pandas as pd

    configs = [entry.run.recorded.config for entry in entries]
    values = [lines.value(config[path]) if path in config else math.nan for config in configs]
    # Numbers stay as they were written, also beside what is missing, which `float64` would not do.
    return pd.Series([_shown(value) for value in values], dtype=object)


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    return flow(value) if isinstance(value, list | dict) else value


# Which rows there are.


def kept(table: Table, entries: Sequence[Entry], condition: str) -> Table:
    """Returns the rows for which a condition holds, in the language of `DataFrame.query`.

    Args:
      table: the rows.
      entries: their runs, in that order.
      condition: on columns, and on any field of the configs by its path or the end of it.

    Raises:
      CompareError: it cannot be read, or names what is no column.
    """
    import pandas as pd

    frame = table.frame.copy()

    def named(match: re.Match[str]) -> str:
        word = match[0].strip("`")
        if word[0] in "'\"":
            return word
        if word not in frame and (path := _path_of(word, entries)) is not None:
            frame[word] = _field(entries, path)
        return word if word.isidentifier() or word not in frame else f"`{word}`"

    text = _QUOTED_OR_NAME.sub(named, condition)
    try:
        rows = frame.query(text, engine="python", local_dict={}).index
    except pd.errors.UndefinedVariableError as error:
        first = str(error).split("'")[1].removeprefix("BACKTICK_QUOTED_STRING_")
        words = [match[0] for match in _QUOTED_OR_NAME.finditer(condition)]
        word = next((word for word in words if word.startswith(first)), first)
        try:
            path_of(word, entries, "--where")
        except CompareError as unknown:
            raise CompareError(f"{unknown} Text is written in quotes, '{word}'") from error
        raise CompareError(f"--where={word}: write it between backticks") from error
    except (KeyError, NotImplementedError, SyntaxError, TypeError, ValueError, AttributeError) as error:
        why = "it says neither yes nor no" if isinstance(error, KeyError) else str(error).partition(" (<unknown>")[0]
        how = "write it as for DataFrame.query of pandas, such as \"status == 'done' and learning_rate >= 0.001\""
        raise CompareError(f"--where={condition}: {why}; {how}") from error
    return dataclasses.replace(table, frame=table.frame.loc[rows])


def _paths(entries: Iterable[Entry]) -> list[str]:
    return list(dict.fromkeys(path for entry in entries for path in entry.run.recorded.config))


def _ends(entries: Iterable[Entry]) -> list[str]:
    return [*short_names(_paths(entries)).values()]


def _path_of(name: str, entries: Iterable[Entry]) -> str | None:
    """Returns the path that a name is, or is the end of; None if it is of none, or of several."""
    paths = _paths(entries)
    ends = [path for path in paths if path == name] or [path for path in paths if path.endswith(f".{name}")]
    return ends[0] if len(ends) == 1 else None


def path_of(name: str, entries: Sequence[Entry], flag: str) -> str:
    """Returns the field that a name means: a fact of runs, a path, or the end of exactly one path of these runs.

    Raises:
      CompareError: no run has such a field, or several have this end.
    """
    if name in FACTS:
        return name
    if (path := _path_of(name, entries)) is not None:
        return path
    paths = _paths(entries)
    if ends := [path for path in paths if path.endswith(f".{name}")]:
        raise CompareError(f"{flag}={name}: several fields end so: {first_few(ends)}; write more of its path.")
    hint = did_you_mean(name, [*FACTS, *paths, *_ends(entries)], otherwise=f"; beside fields: {', '.join(FACTS)}.")
    raise CompareError(f"{flag}={name}: no run has such a field{hint}")


# The order of rows, and groups.


def ordered(table: Table, order: str | None) -> Table:
    """Returns a table in the order of a column; without one, of its first metric, the best first.

    What is not known comes last.

    Args:
      table: the rows.
      order: name of a column; after a `-` the other way round.

    Raises:
      CompareError: there is no such column.
    """
    import pandas as pd

    suffix = " mean" if table.is_grouped else ""
    name = (order or next((f"{metric}{suffix}" for metric in table.metrics), table.frame.columns[0])).removeprefix("-")
    name = f"{name}{suffix}" if name in table.metrics and suffix else name
    if name not in table.frame:
        near = nearest(name, table.frame.columns)
        columns = ", ".join(table.frame.columns.drop("notes", errors="ignore"))
        hint = f"; did you mean {near[0]}?" if near else f"; columns: {columns}"
        raise CompareError(f"--sort={order}: there is no such column{hint}")
    falls = table.metrics.get(name.removesuffix(suffix)) == "max"
    is_rising = falls == (order or "").startswith("-")

    def rank(column: pd.Series) -> pd.Series:  # numbers as numbers, where all are
        numbers = pd.to_numeric(column, errors="coerce")
        return numbers if numbers.notna().equals(column.notna()) else column.astype(str).where(column.notna())

    frame = table.frame.sort_values(name, ascending=is_rising, na_position="last", kind="stable", key=rank)
    return dataclasses.replace(table, frame=frame)


def grouped(table: Table, entries: Sequence[Entry], paths: Sequence[str]) -> Table:
    """Returns a row for each combination of values of fields, with mean, deviation and count of each metric.

    A mean is over the runs that have a number; `count` says how many these are, and `runs` how many the group has.

    Args:
      table: of runs.
      entries: its runs, before some were left out.
      paths: the fields, as `path_of` returns them.
    """
    import pandas as pd

    names = _column_names(paths, ())
    frame = table.frame.drop(columns=[name for name in names.values() if name in table.frame])
    kept = [entries[row] for row in frame.index]
    for path, name in names.items():
        values = pd.Series([_fact(entry, path) for entry in kept]) if path in FACTS else _field(kept, path)
        frame[name] = values.set_axis(frame.index)
    groups = frame.groupby([*names.values()], dropna=False, sort=False)
    spreads = groups[[*table.metrics]].agg(["mean", "std", "count"]) if table.metrics else pd.DataFrame()
    spreads.columns = [" ".join(column) for column in spreads.columns]
    result = pd.concat([spreads, groups.size().rename("runs")], axis=1)
    if "status" not in names:
        result["status"] = groups["status"].agg(_counts)
    result["took"] = groups["took"].agg(lambda seconds: seconds.astype(float).mean())
    return Table(frame=result.reset_index(), metrics=table.metrics)


def _counts(statuses: pd.Series) -> str:
    return ", ".join(f"{count} {status}" for status, count in statuses.value_counts().items())
