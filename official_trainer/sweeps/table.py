"""The table of a sweep: a row for each trial, as wide as the terminal, and below it what is known of the whole.

Owns: its columns, how drawn values fit, also those of a running sweep, the lines below.
Does not own: what is shown (`sweeps/results.py`), the rest of a running sweep's table (`live_table.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.shown import wrapped
from official_trainer.sweeps.observer import fields_of, name_of
from official_trainer.sweeps.results import Results
from official_trainer.sweeps.settings import Objective
from official_trainer.sweeps.space import Value
from official_trainer.sweeps.trial import show
from official_trainer.tracking.console import format_number

GAP = "  "
_LEAST_CELL, _WIDEST_OF_SEVERAL, _WIDEST_CELL = 8, 12, 18
_LEFT_OUT = "…"
_NUMERIC = (0, 2)  # of the columns number, state, step
_MOST_REASONS = 10


def lines(found: Results, content: Mapping[str, Any], width: int, *, by_rank: bool = False) -> list[str]:
    """Returns the lines of a table that is at most `width` columns wide, and of what stands below it.

    Args:
      found: the sweep.
      content: what `results.json` holds of it.
      width: of the terminal.
      by_rank: whether the best trials come first, and not the first ones.
    """
    if not found.results:
        return ["no trial has started yet"]
    # Why trials failed or cannot be read, or were pruned by something else than the pruner.
    said = [each for each in found.results if each.trial.reason and not each.trial.reason.startswith("by ")]
    below = [f"trial {each.trial.number} {each.state}: {each.trial.reason}" for each in said[:_MOST_REASONS]]
    below += [f"and {len(said) - _MOST_REASONS} more such trials"] if len(said) > _MOST_REASONS else []
    if shares := content["importances"]:
        below.append("importance: " + ", ".join(f"{name_of(each, found.names)} {shares[each]:.0%}" for each in shares))
    spent, without = content["steps"]["spent"], content["steps"]["without_pruning"]
    if without > spent:
        below.append(f"pruning saved {without - spent} of {without} steps")
    wrap = [each for line in below for each in wrapped(" ".join(line.split()), width, indent="  ").split("\n")]
    return [*table(found, width, by_rank=by_rank), *([""] if below else []), *wrap]


def table(found: Results, width: int, *, by_rank: bool = False) -> list[str]:
    """Returns the lines of the table alone."""
    shown = found.ranked if by_rank else found.results
    words = dict.fromkeys((each.number for each in found.best), "front" if found.objective.others else "best")
    size, rows = found.population.size if found.population else None, []
    for each in shown:
        number, parent = each.trial.number, each.trial.parent
        line = [str(number // size + 1), "" if parent is None else str(parent)] if size else []
        state = words.get(number) or {"complete": "done", "not done": "open"}.get(each.state, each.state)
        step = "" if each.step is None else str(each.step)
        rows.append([str(number), state, step, *line, *map(format_number, each.results)])
    head = ["#", "state", "step", *(["gen", "from"] if size else []), *metric_titles(found.objective)]
    return rows_of(head, rows, [each.trial.values for each in shown], found.names, width)


def rows_of(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    values: Sequence[Mapping[str, Value]],
    names: Mapping[str, str],
    width: int,
) -> list[str]:
    """Returns the lines of a table: a title, then the rows, with as many drawn values as there is room for.

    Args:
      head: titles of the first columns, which are number, state and step, and further ones.
      rows: cells below them; a row may have fewer.
      values: of each row, path of a field → what was drawn.
      names: what the drawn fields are called.
      width: the most columns of a line.
    """
    columns = [list(column) for column in itertools.zip_longest(head, *rows, fillvalue="")]
    room = width - sum(max(map(len, column)) + len(GAP) for column in columns)
    columns += _value_columns(values, names, room)
    padded = [
        [text.rjust(size) if number in _NUMERIC else text.ljust(size) for text in column]
        for number, column in enumerate(columns)
        if (size := max(map(len, column)))
    ]
    return [GAP.join(cells).rstrip()[:width] for cells in zip(*padded, strict=True)]


def metric_titles(objective: Objective) -> list[str]:
    """Returns what the columns of the results are called; of several metrics shorter, as values need the room."""
    names = list(objective.directions)
    return _titles(names, _WIDEST_CELL if len(names) == 1 else _WIDEST_OF_SEVERAL)


def _value_columns(rows: Sequence[Mapping[str, Value]], names: Mapping[str, str], room: int) -> list[list[str]]:
    """Returns the columns of the drawn values; where there is no room for all, those in the middle are left out.

    Those go first whose value is the same in all rows.
    """
    drawn = [fields_of(values, names) for values in rows]
    paths = [path for path in names if any(path in values for values in drawn)]
    paths += dict.fromkeys(path for values in drawn for path in values if path not in names)
    texts = {path: [show(values[path]) if path in values else "-" for values in drawn] for path in paths}
    texts = {path: [_shortened(" ".join(each.split()), _WIDEST_CELL) for each in texts[path]] for path in texts}
    texts[_LEFT_OUT] = ["…"] * len(rows)
    telling = [path for path in paths if len(set(texts[path])) > 1] or paths[:1]
    counts = range(len(telling) - 1, 0, -1)
    fewer = ([*telling[: (each + 1) // 2], _LEFT_OUT, *telling[len(telling) - each // 2 :]] for each in counts)
    for kept in (paths, telling, *fewer):
        called = [names.get(path, path) for path in kept]
        for widest in (max(map(len, called), default=0), *range(_WIDEST_CELL, _LEAST_CELL - 1, -1)):
            short = _titles(called, widest)
            columns = [[title, *texts[path]] for title, path in zip(short, kept, strict=True)]
            if sum(max(map(len, column)) + len(GAP) for column in columns) - len(GAP) <= room:
                return columns
    return []


def _titles(names: Sequence[str], widest: int) -> list[str]:
    """Returns names that are no wider than that, as far as they stay different."""
    while len(set(short := [_shortened(name, widest) for name in names])) < len(set(names)):
        widest += 1
    return short


def _shortened(text: str, width: int) -> str:
    """Returns text cut in its middle, as both ends of a name may say what it is."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"
