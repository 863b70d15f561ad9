"""A table of runs as people read it on a terminal.

Owns: how cells are written for people. Does not own: the table (`table.py`), drawing it (rich), the formats of files
(pandas).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from official_trainer.cli import terminal
from official_trainer.config.text import flow
from official_trainer.reports.table import Table
from official_trainer.runs import recorded
from official_trainer.shown import shorten, wrapped
from official_trainer.tracking.monitored import show

if TYPE_CHECKING:
    import pandas as pd

_LONGEST_CELL = 28
_GAP = 2
_ARROWS = {"max": " ↑", "min": " ↓", None: ""}
_NUMBERS = ("runs", "step", "took", "examples_per_second")


def _texts(table: Table) -> pd.DataFrame:
    """Returns the cells for people: numbers with four digits, of a group mean ± deviation."""
    import pandas as pd

    frame, texts = table.frame, pd.DataFrame(index=table.frame.index)
    for name in frame.columns.drop("notes", errors="ignore"):
        metric, _, part = name.rpartition(" ")
        if name in table.metrics:
            texts[_title(table, name)] = ["" if math.isnan(value) else show(value) for value in frame[name]]
        elif not table.is_grouped or metric not in table.metrics:
            texts[name] = [_cell(name, value) for value in frame[name]]
        elif part == "mean":
            texts[_title(table, metric)] = [_spread(row, metric) for row in frame.to_dict("records")]
    return texts


def _title(table: Table, metric: str) -> str:
    return metric if ":" in metric else f"{metric}{_ARROWS[table.metrics[metric]]}"


def _spread(row: Mapping[Any, Any], metric: str) -> str:
    mean, deviation, count = (row[f"{metric} {part}"] for part in ("mean", "std", "count"))
    if not count:
        return ""
    spread = "" if math.isnan(deviation) else f" ± {show(deviation, 2)}"
    return f"{show(mean)}{spread}" + (f" (n={count})" if count < row["runs"] else "")


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

    Args:
      table: what is shown.
      width: of the terminal, which shows the columns for which there is room, and a line with the names of the others;
        None for all columns, and one line for each row.
    """
    texts = _texts(table)
    if not table.is_grouped:
        texts[texts.columns[1:]] = texts[texts.columns[1:]].map(lambda cell: shorten(cell, _LONGEST_CELL))
    titles = [title for title in texts if (texts[title] != "").any()]
    chosen: list[str] = []
    total = -_GAP
    for title in titles:
        total += max(len(title), *texts[title].str.len()) + _GAP
        if width is None or total <= width or len(chosen) < 2:
            chosen.append(title)
    numbers = {i for i, title in enumerate(chosen) if title.rstrip(" ↑↓") in table.metrics or title in _NUMBERS}
    drawn = terminal.table(chosen, texts[chosen].to_numpy(), numbers=numbers, fit=width)
    left = titles[len(chosen) :]
    rest = [f"no room for {', '.join(left)}: a wider terminal, --fields=PATH,… or --format=csv"] if left else []
    if not table.is_grouped:
        rest += [f"{run}: {note}".replace("\n", " ") for run, note in table.frame[["run", "notes"]].to_numpy() if note]
    return [*drawn, "", *(text for line in rest for text in wrapped(line, width).split("\n"))] if rest else drawn
