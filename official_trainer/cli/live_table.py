"""A running sweep on a terminal: a table that is drawn again in place, below one line for each trial that has ended.

Owns: the columns of the table and how they fit the terminal, drawing it, also when the terminal changes its size.
Does not own: what is shown (`sweeps/progress.py`), the table of a sweep that has ended (`sweeps/sweep.py`).
"""

from __future__ import annotations

import collections
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from official_trainer.errors import printable
from official_trainer.sweeps.failures import Failure
from official_trainer.sweeps.observer import Observer, PlainLines
from official_trainer.sweeps.progress import Progress, Running
from official_trainer.sweeps.trial import Trial, show
from official_trainer.tracking.console import format_number, format_seconds, rich_console

_DRAW_SECONDS = 0.5
_MARGIN = 2  # columns for the `^C` that a terminal echoes behind the last line
_BEST, _NEWEST = 3, 3
_ORDINALS = ("best", "2nd", "3rd")
_GAP = "  "
_LEAST_CELL, _WIDEST_CELL = 8, 18
_STYLES = {"failed": "red", "pruned": "dim"}


class Line(NamedTuple):
    """A line of the table, and its style."""

    text: str
    style: str = ""


class _Row(NamedTuple):
    cells: Sequence[str]  # number, state, step, results
    values: Mapping[str, object]
    style: str


class LiveTable(Observer):
    """Draws a sweep on a terminal until it is closed, which leaves the lines of ended trials there."""

    def __init__(self, progress: Progress, names: Mapping[str, str], stream: TextIO) -> None:
        """Takes what is known of the sweep, what its drawn fields are called, and the terminal."""
        self._progress, self._names = progress, names
        self._lines = PlainLines(names, self._print)
        self._console: Any = rich_console(stream)
        self._width = self._console.width
        self._printed: collections.deque[str] = collections.deque(maxlen=100)
        self._drawn_at = -math.inf
        self._live = self._new_live()

    def begin(self, trials: Mapping[int, Trial]) -> None:
        self._progress.begin(trials)
        self._draw()

    def start(self, trial: Trial, *, continues: bool) -> None:
        self._progress.start(trial, continues=continues)
        self._draw()

    def report(self, trial: Trial, step: int, results: Sequence[float]) -> None:
        self._progress.report(trial, step, results)

    def wait(self, trial: Trial, how: str, seconds: float) -> None:
        self._progress.wait(trial, how, seconds)
        self._lines.wait(trial, how, seconds)

    def end(self, trial: Trial, result: str, failure: Failure | None = None) -> None:
        self._progress.end(trial, result, failure)
        for line in self._lines.lines_of_end(trial, result, failure, self._console.width):
            self._print(line)

    def say(self, text: str) -> None:
        self._print(text)

    def look(self) -> None:
        if self._progress.elapsed_seconds - self._drawn_at >= _DRAW_SECONDS:
            self._progress.look()
            self._draw()

    def close(self) -> None:
        self._live.stop()

    def _new_live(self) -> Any:
        from rich.live import Live

        return Live(
            console=self._console,
            auto_refresh=False,  # no thread; the driver looks often enough
            transient=True,
            redirect_stderr=sys.stderr.isatty(),  # what goes to a file stays there
            vertical_overflow="crop",
        )

    def _print(self, text: str) -> None:
        from rich.text import Text

        self._printed.append(printable(text))
        self._console.print(Text(self._printed[-1]), soft_wrap=True)
        self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.text import Text

        width, height = self._console.size
        if width < self._width:
            self._begin_anew(height)
        self._width = width
        self._drawn_at = self._progress.elapsed_seconds
        lines = layout(self._progress, self._names, width - _MARGIN, height)
        shown = (Text(printable(text), style, no_wrap=True, overflow="crop") for text, style in lines)
        self._live.start()
        self._live.update(Group(*shown), refresh=True)

    def _begin_anew(self, height: int) -> None:
        """Draws all on an empty screen: the terminal may have made several lines of each one, or cut them off."""
        from rich.text import Text

        self._live.stop()
        self._console.clear()
        for text in list(self._printed)[-height:]:
            self._console.print(Text(text), soft_wrap=True)
        self._live = self._new_live()


def layout(progress: Progress, names: Mapping[str, str], width: int, height: int) -> list[Line]:
    """Returns the lines of the table: the state of the sweep, running trials, the best and the newest ones.

    Args:
      progress: what is known.
      names: what the drawn fields are called.
      width: the most columns of a line.
      height: of the terminal; the table takes at most half of it.
    """
    lines = [Line(_header(progress, width), "bold")]
    rows = list(_rows(progress, most=max(1, height // 2 - 2)))
    if not rows:
        return lines
    metrics = list(progress.objective.directions)
    cells = [("#", "state", "step", *_titles(metrics, _WIDEST_CELL)), *(row.cells for row in rows)]
    columns = [list(column) for column in itertools.zip_longest(*cells, fillvalue="")]
    room = width - sum(max(map(len, column)) + len(_GAP) for column in columns)
    columns += _value_columns([row.values for row in rows], names, room)
    numeric = (0, 2)
    padded = [
        [text.rjust(size) if number in numeric else text.ljust(size) for text in column]
        for number, column in enumerate(columns)
        if (size := max(map(len, column)))
    ]
    texts = [_GAP.join(cells).rstrip()[:width] for cells in zip(*padded, strict=True)]
    return [*lines, Line(texts[0], "dim"), *map(Line, texts[1:], (row.style for row in rows))]


def _header(progress: Progress, width: int) -> str:
    """Returns the counts, the best and the times, the least important ones only where there is room for them."""
    left, generation = progress.left_seconds, progress.generation
    counts = {"running": len(progress.running), "pruned": progress.count("pruned"), "failed": progress.count("failed")}
    parts = {
        "generation": "" if generation is None else f"generation {generation[0]}/{generation[1]}",
        "done": f"{progress.done}/{progress.asked} done",
        **{name: f"{count} {name}" for name, count in counts.items() if count},
        "best": _best(progress),
        "elapsed": format_seconds(progress.elapsed_seconds),
        "left": "" if left is None else f"eta {format_seconds(left)}",
    }
    for dropped in ("", "running", "elapsed", "pruned", "failed", "best"):
        parts.pop(dropped, None)
        text = _GAP.join(filter(None, parts.values()))
        if len(text) <= width:
            break
    return text


def _best(progress: Progress) -> str:
    best = progress.best
    if not best:
        return ""
    if progress.objective.others:
        return f"front of {len(best)}"
    return f"best {format_number(best[0].results[0])} (trial {best[0].number})"


def _rows(progress: Progress, most: int) -> Iterator[_Row]:
    """Yields running trials, then the best, then the newest of the others that have ended; at most `most`."""
    running = [progress.running[number] for number in sorted(progress.running)]
    several = bool(progress.objective.others)
    ordinals = ["front"] * _BEST if several else _ORDINALS
    best = (progress.best if several else progress.ranked)[: min(_BEST, max(0, most - len(running)))]
    others = [each for each in progress.ended.values() if each not in best]
    newest = others[::-1][: min(_NEWEST, max(0, most - len(running) - len(best)))]
    hidden = max(0, len(running) - most)
    for now in running[: most - 1 if hidden else most]:
        yield _Row(_cells_of_running(now), now.trial.values, "cyan")
    if hidden:
        yield _Row(("", f"and {hidden + 1} more"), {}, "cyan")
    for ordinal, each in zip(ordinals, best, strict=False):
        yield _Row(_cells(each, ordinal), each.values, "green" if ordinal in ("best", "front") else "")
    for each in newest:
        state = "done" if each.state == "complete" else str(each.state)
        yield _Row(_cells(each, state), each.values, _STYLES.get(state, ""))


def _cells_of_running(running: Running) -> tuple[str, ...]:
    step = "" if running.step is None else str(running.step)
    step = f"{step}/{running.end_step}" if step and running.end_step else step
    return (str(running.trial.number), running.doing, step, *map(format_number, running.results))


def _cells(trial: Trial, state: str) -> tuple[str, ...]:
    results = trial.results or [value for _, value in trial.reports[-1:]]
    step = "" if trial.step is None else str(trial.step)
    return (str(trial.number), state, step, *map(format_number, results))


def _value_columns(rows: Sequence[Mapping[str, object]], names: Mapping[str, str], room: int) -> list[list[str]]:
    """Returns the columns of the drawn values; where there is no room for all, those in the middle are left out.

    Those go first whose value is the same in all rows.
    """
    paths = [path for path in names if any(path in values for values in rows)]
    paths += [path for values in rows for path in values if path not in names and path not in paths]
    texts = {path: [_shown(values.get(path)) for values in rows] for path in paths}
    telling = [path for path in paths if len(set(texts[path])) > 1] or paths[:1]
    for kept in (paths, telling):
        for widest in range(_WIDEST_CELL, _LEAST_CELL - 1, -1):
            titles = _titles([names.get(path, path) for path in kept], widest)
            columns = [[title, *texts[path]] for title, path in zip(titles, kept, strict=True)]
            if _wide(columns) <= room:
                return columns
    gap = ["…"] * (len(rows) + 1)
    while columns:
        middle = len(columns) // 2
        columns = columns[:middle] + columns[middle + 1 :]
        shown = [*columns[:middle], gap, *columns[middle:]]
        if columns and _wide(shown) <= room:
            return shown
    return []


def _wide(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) for column in columns) + len(_GAP) * max(0, len(columns) - 1)


def _shown(value: object) -> str:
    return "-" if value is None else _shortened(" ".join(show(value).split()), _WIDEST_CELL)  # type: ignore[arg-type]


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
