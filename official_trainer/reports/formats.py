"""A table of runs as text: for a terminal, and as CSV, JSON and Markdown.

Owns: how cells are written for people, which columns a narrow terminal shows. Does not own: the table (`table.py`),
drawing it (rich), the formats of files (pandas).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from official_trainer.cli import terminal
from official_trainer.config.text import flow
from official_trainer.reports.table import Table, is_seed
from official_trainer.runs import recorded
from official_trainer.shown import shorten, wrapped
from official_trainer.tracking.monitored import show

if TYPE_CHECKING:
    import pandas as pd

_LONGEST_CELL = 28
_GAP = 2
_ARROWS = {"max": " ↑", "min": " ↓", None: ""}
_LAST = ("step", "took", "examples_per_second", "experiment")
"""Columns that a narrow terminal shows after those of fields, with seeds."""

_MARKDOWN = re.compile(r"[\\`*|<>\[\]&~#]|(?<![^\W_])_|_(?![^\W_])")


def texts(table: Table) -> pd.DataFrame:
    """Returns the cells for people: numbers with four digits, of a group mean ± deviation."""
    import pandas as pd

    frame, shown = table.frame, pd.DataFrame(index=table.frame.index)
    rows = frame.to_dict("records")
    for name in frame.columns.drop("notes", errors="ignore"):
        base, _, part = name.rpartition(" ") if table.is_grouped else ("", "", name)
        if name in table.metrics:
            shown[_title(table, name)] = ["" if math.isnan(value) else show(value) for value in frame[name]]
        elif base not in table.metrics:
            shown[name] = [_cell(name, value) for value in frame[name]]
        elif part == "mean":
            shown[_title(table, base)] = [_spread(row, base) for row in rows]
    return shown


def _title(table: Table, metric: str) -> str:
    return metric if ":" in metric else f"{metric}{_ARROWS[table.metrics[metric]]}"


def _spread(row: Mapping[Any, Any], metric: str) -> str:
    mean, deviation, count = (row[f"{metric} {part}"] for part in ("mean", "std", "count"))
    if not count:
        return ""
    some = f" (n={count})" if count < row["runs"] else ""
    if math.isnan(deviation) or not math.isfinite(mean):
        return f"{show(mean)}{some}"
    rounded = float(f"{deviation:.1e}")  # two digits of the deviation, and as many decimals of the mean
    decimals = 1 - math.floor(math.log10(rounded)) if rounded else 4
    if 0 <= decimals <= 6:
        return f"{mean:.{decimals}f} ± {deviation:.{decimals}f}{some}"
    return f"{mean:.4g} ± {deviation:.2g}{some}"


def _cell(name: str, value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return ""
    if name == "took":
        return recorded.duration_text(value)
    if name == "examples_per_second":
        return recorded.speed_text(value)
    if isinstance(value, float):
        return f"{value:.5g}" if len(repr(value)) > 7 else flow(value)  # as it is drawn in a sweep
    return value if isinstance(value, str) else flow(value)


def as_table(table: Table, width: int | None) -> list[str]:
    """Returns lines for a terminal: the table, and below it what else is to say.

    Columns for which there is no room are left out, facts and seeds first; a line names them. The status is always
    there, and so are metrics but for last values.

    Args:
      table: what is shown.
      width: of the terminal; None for all columns, and one line for each row.
    """
    shown = texts(table)
    if not table.is_grouped:
        shown[shown.columns[1:]] = shown[shown.columns[1:]].map(lambda cell: shorten(cell, _LONGEST_CELL))
    needed = [title for title in shown if (shown[title] != "").any()]
    widths = {title: max(len(title), *shown[title].str.len()) for title in needed}
    numbers = {title for title in needed if title.rstrip(" ↑↓") in table.metrics or title in _LAST[:3]}
    chosen = needed if width is None else _fitting(table, widths, width)
    right = {index for index, title in enumerate(chosen) if title in numbers}
    drawn = terminal.table(chosen, shown[chosen].to_numpy(), numbers=right, fit=width)
    left = [title for title in needed if title not in chosen]
    rest = [f"no room for {', '.join(left)}: a wider terminal, --fields=PATH,… or --format=csv"] if left else []
    below = [*rest, *_notes(table)]
    return [*drawn, "", *(part for line in below for part in wrapped(line, width).split("\n"))] if below else drawn


def _notes(table: Table) -> list[str]:
    if table.is_grouped:
        return []
    return [f"{run}: {note}".replace("\n", " ") for run, note in table.frame[["run", "notes"]].to_numpy() if note]


def _fitting(table: Table, widths: Mapping[str, int], width: int) -> list[str]:
    """Returns the columns for which there is room, in their order."""

    def rank(title: str) -> int:
        if title in ("run", "runs", "status") or title.rstrip(" ↑↓") in table.metrics:
            return int(title.endswith(":last"))
        if title in _LAST or is_seed(title):
            return 2
        return 0 if table.is_grouped else 1

    chosen, total = set[str](), -_GAP
    for title in sorted(widths, key=rank):
        if rank(title) == 0 or total + widths[title] + _GAP <= width:
            chosen.add(title)
            total += widths[title] + _GAP
    return [title for title in widths if title in chosen]


def as_csv(table: Table) -> str:
    """Returns comma-separated values with all digits; a metric of groups has columns for mean, std and count."""
    return table.frame.to_csv(index=False, lineterminator="\n")


def as_json(table: Table) -> str:
    """Returns a list with an object for each row; what is not known, or not finite, is null."""
    return table.frame.to_json(orient="records", indent=2, double_precision=15, force_ascii=False)


def as_markdown(table: Table) -> str:
    """Returns a table as GitHub shows it; notes are a list below it."""
    shown = texts(table)
    marked = shown.map(_in_markdown).rename(columns=_in_markdown)
    align = ["right" if title.rstrip(" ↑↓") in table.metrics else "left" for title in shown]
    text = marked.to_markdown(index=False, disable_numparse=True, colalign=align)
    below = _notes(table)
    return "\n".join([text, "", *(f"- {_in_markdown(line)}" for line in below)] if below else [text])


def _in_markdown(cell: str) -> str:
    return _MARKDOWN.sub(lambda match: f"\\{match[0]}", cell.replace("\n", " "))
