"""A table of runs as text: for a terminal, CSV, JSON, Markdown and LaTeX, each with what it takes to be read back.

Owns: how cells are written and escaped, which columns a narrow terminal shows. Does not own: the table (`table.py`).
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from official_trainer.config import lines
from official_trainer.reports.table import Cell, Column, Spread, Table, is_seed
from official_trainer.runs.differing import NOT_THERE
from official_trainer.shown import printable, shorten, wrapped
from official_trainer.tracking.jsonl import encode, strict
from official_trainer.tracking.monitored import show

Paint = Callable[[str, str], str]
"""Returns a text in a colour, given the text and the name of the colour."""

_LONGEST_CELL = 28
_GAP = "  "
_LONG_NUMBER = re.compile(r"-?\d+\.\d{7,}(e[-+]?\d+)?")
_LAST = ("took_seconds", "examples_per_second", "step")
"""Columns that a narrow terminal shows, with seeds, after those of fields."""

_MARKDOWN = re.compile(r"[\\`*|<>\[\]&~#]|(?<![^\W_])_|_(?![^\W_])")
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "±": r"$\pm$",
    "–": "--",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}


def text(cell: Cell, column: Column) -> str:
    """Returns a cell for people: numbers with four digits, mean ± deviation; empty if it is not known."""
    if cell is None:
        return ""
    if isinstance(cell, Spread):
        if cell.deviation is None or not math.isfinite(cell.mean):
            return show(cell.mean)
        if cell.deviation == 0:
            return f"{cell.mean:.4g} ± 0"
        decimals = 1 - math.floor(math.log10(cell.deviation))  # of two digits of the deviation
        if not 0 <= decimals <= 6:
            return f"{cell.mean:.4g} ± {cell.deviation:.2g}"
        return f"{cell.mean:.{decimals}f} ± {cell.deviation:.{decimals}f}"
    if column.text is not None:
        return column.text(cell)
    if isinstance(cell, float):
        return show(cell)
    if column.kind == "field" and _LONG_NUMBER.fullmatch(cell_text := str(cell)):  # as it is drawn in a sweep
        return f"{float(cell_text):.5g}"
    return printable(str(cell)).replace("\n", "\\n").replace("\t", "\\t")


def as_table(table: Table, width: int | None, paint: Paint) -> list[str]:
    """Returns lines of at most `width` columns, unless the names of runs alone need more; below them what is to say.

    Columns for which there is no room are left out, fields with long values last; a line names them.

    Args:
      table: what is shown.
      width: of the terminal; None for all columns, and one line for each row.
      paint: colours headings and the best numbers.
    """
    cells = [list(map(text, row, table.columns)) for row in table.rows]
    for row in cells:
        row[:] = [
            cell if column.kind == "run" else shorten(cell, _LONGEST_CELL)
            for cell, column in zip(row, table.columns, strict=True)
        ]
    is_filled = [any(row[i] for row in cells) for i in range(len(table.columns))]
    shown = [i for i, column in enumerate(table.columns) if column.kind in ("run", "metric") or is_filled[i]]
    widths = {i: max(len(table.columns[i].title), *(len(row[i]) for row in cells)) for i in shown}
    chosen = _fitting(table, shown, widths, width)
    best = _best(table)
    result = [paint(_GAP.join(table.columns[i].title.ljust(widths[i]) for i in chosen).rstrip(), "bold")]
    for number, row in enumerate(cells):
        line = []
        for i in chosen:
            column = table.columns[i]
            is_number = column.kind == "metric" or isinstance(table.rows[number][i], int | float)
            padded = row[i].rjust(widths[i]) if is_number else row[i].ljust(widths[i])
            line.append(paint(padded, "green") if (number, i) in best else padded)
        result.append(_GAP.join(line).rstrip())
    left = [table.columns[i].title for i in shown if i not in chosen]
    rest = [f"no room for {', '.join(left)}: a wider terminal, --fields=PATH,… or --format=csv"] if left else []
    named = [f"{row[0]}: {note}" for row, notes in zip(cells, table.notes, strict=True) for note in notes]
    below = [*table.remarks, *rest, *(printable(note).replace("\n", " ") for note in named)]
    if not below:
        return result
    return [*result, "", *(part for line in below for part in wrapped(line, width).split("\n"))]


def _fitting(table: Table, shown: Sequence[int], widths: dict[int, int], width: int | None) -> list[int]:
    """Returns the columns for which there is room, in their order: the status, metrics, fields, and then facts."""
    if width is None:
        return list(shown)

    def rank(i: int) -> tuple[int, int]:
        column = table.columns[i]
        if column.kind == "run" or column.key in ("n", "status"):
            return 0, i
        if column.kind == "metric":
            return 1, i
        return 2 + (column.key in _LAST or is_seed(column.key)), i

    chosen: list[int] = []
    for i in sorted(shown, key=rank):
        total = sum(widths[each] for each in [*chosen, i]) + len(_GAP) * len(chosen)
        if total <= width or not chosen:
            chosen.append(i)
    return sorted(chosen)


def _best(table: Table) -> set[tuple[int, int]]:
    """Returns row and column of the best number of each metric, if there are several numbers."""
    found: set[tuple[int, int]] = set()
    for i, column in enumerate(table.columns):
        if column.kind != "metric" or column.direction is None:
            continue
        numbers = {}
        for number, row in enumerate(table.rows):
            cell = row[i]
            value = cell.mean if isinstance(cell, Spread) else cell
            if isinstance(value, int | float) and not math.isnan(value):
                numbers[number] = value
        if len(numbers) > 1:
            best = max(numbers.values()) if column.direction == "max" else min(numbers.values())
            found |= {(number, i) for number, value in numbers.items() if value == best}
    return found


def as_csv(table: Table) -> str:
    """Returns comma-separated values (RFC 4180) with all digits; a mean has columns for its deviation and count."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    spreads = {i for i in range(len(table.columns)) if any(isinstance(row[i], Spread) for row in table.rows)}
    head: list[str] = []
    for i, column in enumerate(table.columns):
        key = printable(column.key)
        head += [key, f"{key} std", f"{key} n"] if i in spreads else [key]
    writer.writerow([*head, "notes"])
    for row, notes in zip(table.rows, table.notes, strict=True):
        line: list[Any] = []
        for i, cell in enumerate(row):
            if i in spreads:
                found = [cell.mean, cell.deviation, cell.count] if isinstance(cell, Spread) else [None, None, None]
                line += map(_plain, found)
            else:
                line.append(None if cell == NOT_THERE else _plain(cell))
        writer.writerow([*line, printable("; ".join(notes))])
    return out.getvalue()


def _plain(cell: Any) -> Any:
    if isinstance(cell, str):
        return printable(cell)
    return encode(cell) if isinstance(cell, float) else cell


def as_json(table: Table) -> str:
    """Returns an object with the columns, and the rows by their keys; values of fields as JSON has them."""
    columns = [{"key": each.key, "title": each.title, "direction": each.direction} for each in table.columns]
    rows: list[dict[str, Any]] = []
    for row, notes in zip(table.rows, table.notes, strict=True):
        rows.append({})
        for column, cell in zip(table.columns, row, strict=True):
            value: Any = cell
            if isinstance(cell, Spread):
                value = {"mean": cell.mean, "std": cell.deviation, "n": cell.count}
            elif column.kind == "field" and isinstance(cell, str):
                value = None if cell == NOT_THERE else lines.value(cell)
            rows[-1][column.key] = strict(value)
        rows[-1]["notes"] = list(notes)
    return json.dumps({"columns": columns, "rows": rows, "remarks": list(table.remarks)}, indent=2, allow_nan=False)


def _marked(table: Table, escaped: Callable[[str], str], bold: Callable[[str], str]) -> Iterator[list[str]]:
    """Yields the cells of each row in a language of documents, the best number of each metric in bold."""
    best = _best(table)
    for number, row in enumerate(table.rows):
        cells = [escaped(text(cell, column)) for cell, column in zip(row, table.columns, strict=True)]
        yield [bold(cell) if (number, i) in best else cell for i, cell in enumerate(cells)]


def _in_markdown(cell: str) -> str:
    return _MARKDOWN.sub(lambda match: f"\\{match[0]}", cell)


def _in_latex(cell: str) -> str:
    return "".join(_LATEX.get(char, char) for char in cell)


def as_markdown(table: Table) -> str:
    """Returns a table as GitHub shows it, the best of each metric in bold; notes are a list below it."""
    columns = table.columns
    titles = [_in_markdown(column.title) for column in columns]
    rules = ["---:" if column.kind == "metric" else "---" for column in columns]
    rows = [titles, rules, *_marked(table, _in_markdown, "**{}**".format)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    below = list(table.remarks)
    for row, notes in zip(table.rows, table.notes, strict=True):
        below += [f"{text(row[0], columns[0])}: {note}" for note in notes]
    if below:
        lines += ["", *(f"- {_in_markdown(printable(line).replace(chr(10), ' '))}" for line in below)]
    return "\n".join(lines) + "\n"


def as_latex(table: Table) -> str:
    """Returns a `tabular` for the package booktabs, the best of each metric in bold; notes are comments."""
    kinds = "".join("r" if column.kind == "metric" else "l" for column in table.columns)
    lines = [f"\\begin{{tabular}}{{{kinds}}}", r"\toprule"]
    lines += [f"{' & '.join(_in_latex(column.title) for column in table.columns)} \\\\", r"\midrule"]
    lines += [f"{' & '.join(row)} \\\\" for row in _marked(table, _in_latex, r"\textbf{{{}}}".format)]
    lines += [r"\bottomrule", r"\end{tabular}"]
    for row, notes in zip(table.rows, table.notes, strict=True):
        lines += [f"% {printable(f'{row[0]}: {note}').replace(chr(10), ' ')}" for note in notes]
    return "\n".join([*lines, *(f"% {remark}" for remark in table.remarks)]) + "\n"
