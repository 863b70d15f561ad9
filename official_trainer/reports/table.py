"""A table of runs as a DataFrame of pandas: metrics, the fields of their configs, status, time; also by groups.

Owns: which columns and rows there are, their order, and conditions on rows. Does not own: what is measured
(`measures.py`), how a table is written (`formats.py`).

Until it is shown a table has a column for each field of the configs, by its path: so conditions, groups and orders take
any of them, by the path or the end of it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_trainer.config.text import flow, short_names
from official_trainer.nearest import did_you_mean
from official_trainer.reports.measures import CompareError, Direction, Measure
from official_trainer.reports.opened import OpenedRun
from official_trainer.shown import first_few, printable

if TYPE_CHECKING:
    import pandas as pd

FACTS = ("status", "step", "took", "examples_per_second", "experiment")
"""What is known of a run beside its metrics and its config; `took` in seconds."""

_QUOTED_OR_NAME = re.compile(r"""'[^']*'|"[^"]*"|`[^`]+`|(?<![\w.])[^\W\d]\w*(?:\[\d+\])?(?:[.:/]\w+(?:\[\d+\])?)*""")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """What is shown.

    Attributes:
      frame: a row for each run or group; of runs the column `notes` says what went wrong and what is not known.
      metrics: the columns of metrics, and which of their values are better; None if that is not known. Of groups there
        are `NAME mean`, `NAME std` and `NAME count`.
    """

    frame: pd.DataFrame
    metrics: Mapping[str, Direction | None]

    @property
    def is_grouped(self) -> bool:
        """Whether a row is a group of runs."""
        return "run" not in self.frame


def of_runs(runs: Sequence[OpenedRun], measures: Sequence[Measure]) -> Table:
    """Returns a row for each run, with all fields of the configs; NaN where a run does not have one."""
    import pandas as pd

    columns: dict[str, Any] = {"run": [printable(run.name) for run in runs]}
    for measure in measures:
        columns[printable(measure.column)] = pd.Series([measure.of(run) for run in runs], dtype=float)
    facts = [
        (record.status or "", record.step, record.duration_seconds, record.examples_per_second, record.experiment)
        for record in (run.recorded for run in runs)
    ]
    for name, values in zip(FACTS, zip(*facts, strict=True), strict=True):
        columns[name] = pd.Series(map(_cell, values), dtype=object)
    for path in dict.fromkeys(path for run in runs for path in run.recorded.config):
        # Numbers stay as they were written, also beside what is missing, which `float64` would not do.
        columns[path] = pd.Series([_cell(run.recorded.config.get(path)) for run in runs], dtype=object)
    columns["notes"] = [printable("; ".join(run.notes)) for run in runs]
    metrics = {printable(measure.column): measure.direction for measure in measures}
    return Table(frame=pd.DataFrame(columns), metrics=metrics)


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        return flow(value)
    if value is None:
        return math.nan
    return printable(value) if isinstance(value, str) else value


# Names of columns, and which rows there are.


def column_of(name: str, table: Table, flag: str) -> str:
    """Returns the column that a name means: the whole name, or the end of the path of exactly one field.

    Raises:
      CompareError: there is no such column, or several fields have this end.
    """
    if column := _column(name, table):
        return column
    raise CompareError(_unknown(name, table, flag))


def _column(name: str, table: Table) -> str | None:
    if name in table.frame:
        return name
    ends = [column for column in table.frame if column.endswith(f".{name}")]
    return ends[0] if len(ends) == 1 else None


def _unknown(name: str, table: Table, flag: str) -> str:
    columns = [column for column in table.frame if column != "notes"]
    if ends := [column for column in columns if column.endswith(f".{name}")]:
        return f"{flag}={name}: several fields end so: {first_few(ends)}; write more of its path."
    others = [column for column in columns if "." not in column]
    hint = did_you_mean(
        name,
        dict.fromkeys([*columns, *short_names(columns).values()]),
        otherwise=f"; allowed: a field, {', '.join(others)}.",
    )
    return f"{flag}={name}: there is no such column{hint}"


def kept(table: Table, condition: str) -> Table:
    """Returns the rows for which a condition on columns holds, in the language of `DataFrame.query`.

    Raises:
      CompareError: it cannot be read, or names what is no column.
    """
    import pandas as pd

    def quoted(match: re.Match[str]) -> str:
        word = match[0].strip("`")
        column = None if word[0] in "'\"" else _column(word, table)
        return word if column is None or column.isidentifier() else f"`{column}`"

    text = _QUOTED_OR_NAME.sub(quoted, condition)
    try:
        rows = table.frame.query(text, engine="python", local_dict={}).index
    except pd.errors.UndefinedVariableError as error:
        first = str(error).split("'")[1]
        words = [match[0] for match in _QUOTED_OR_NAME.finditer(condition)]
        word = next((word for word in words if word.startswith(first)), first)
        raise CompareError(f"{_unknown(word, table, '--where')} Text is written in quotes, '{word}'") from error
    except (KeyError, NotImplementedError, SyntaxError, TypeError, ValueError, AttributeError) as error:
        why = "it says neither yes nor no" if isinstance(error, KeyError) else str(error).partition(" (<unknown>")[0]
        if "assign" in why:
            why = "it sets a value; == compares"
        how = "write it as for DataFrame.query of pandas, such as \"status == 'done' and learning_rate >= 0.001\""
        raise CompareError(f"--where={condition}: {why}; {how}") from error
    return dataclasses.replace(table, frame=table.frame.loc[rows])


# Groups, the order of rows, and which columns are shown.


def grouped(table: Table, columns: Sequence[str]) -> Table:
    """Returns a row for each combination of values, with mean, deviation and count of each metric.

    A mean is over the runs that have a number; `count` says how many these are, and `runs` how many the group has.
    """
    import pandas as pd

    groups = table.frame.groupby([*columns], dropna=False, sort=False)
    spreads = groups[[*table.metrics]].agg(["mean", "std", "count"]) if table.metrics else pd.DataFrame()
    spreads.columns = [" ".join(column) for column in spreads.columns]
    result = pd.concat([spreads, groups.size().rename("runs")], axis=1)
    if "status" not in columns:
        result["status"] = groups["status"].agg(_counts)
    return Table(frame=result.reset_index(), metrics=table.metrics)


def _counts(statuses: pd.Series) -> str:
    return ", ".join(f"{count} {status}" for status, count in statuses.value_counts().items())


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

    name = (order or next(iter(table.metrics), table.frame.columns[0])).removeprefix("-")
    is_spread = table.is_grouped and name in table.metrics
    column = f"{name} mean" if is_spread else column_of(name, table, "--sort")
    is_rising = (table.metrics.get(name) == "max") == (order or "").startswith("-")

    def rank(values: pd.Series) -> pd.Series:  # numbers as numbers, where all are
        numbers = pd.to_numeric(values, errors="coerce")
        return numbers if numbers.notna().equals(values.notna()) else values.astype(str).where(values.notna())

    frame = table.frame.sort_values(column, ascending=is_rising, na_position="last", kind="stable", key=rank)
    return dataclasses.replace(table, frame=frame)


def shown(table: Table, fields: Iterable[str]) -> Table:
    """Returns a table with these fields and all that is no field, under the shortest names that tell them apart."""
    frame, columns = table.frame, dict.fromkeys(fields)
    if not table.is_grouped:
        has_several = frame["experiment"].nunique(dropna=False) > 1
        facts = [name for name in FACTS[1:] if name != "experiment" or has_several or name in columns]
        frame = frame[[*dict.fromkeys(["run", "status", *table.metrics, *columns, *facts, "notes"])]]
    names = short_names(frame.columns)
    frame = frame.rename(columns={path: printable(names[path]) for path in columns})
    return dataclasses.replace(table, frame=frame)
