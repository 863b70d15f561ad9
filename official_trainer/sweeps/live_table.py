"""A running sweep on a terminal: a table that is drawn again in place, below one line for each trial that has ended.

Owns: which trials the table shows, drawing it, also when the terminal changes its size.
Does not own: what is shown (`sweeps/progress.py`), the columns of the table (`table.py`).
"""

from __future__ import annotations

import collections
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from official_trainer.shown import printable
from official_trainer.sweeps import ranking
from official_trainer.sweeps.failures import Failure
from official_trainer.sweeps.observer import Observer, PlainLines
from official_trainer.sweeps.progress import Progress
from official_trainer.sweeps.space import Value
from official_trainer.sweeps.table import GAP, metric_titles, rows_of
from official_trainer.sweeps.trial import Trial
from official_trainer.tracking.console import format_number, format_seconds, rich_console

_DRAW_SECONDS = 0.5
_MARGIN = 2  # columns for the `^C` that a terminal echoes behind the last line
_BEST, _NEWEST = 3, 3
_ORDINALS = ("best", "2nd", "3rd")
_STYLES = {"best": "green", "front": "green", "failed": "red", "pruned": "dim"}


class Line(NamedTuple):
    """A line of the table, and its style."""

    text: str
    style: str = ""


class _Row(NamedTuple):
    cells: Sequence[str]  # number, state, step, of a population the parent, results
    values: Mapping[str, Value]
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

    def know(self, trials: Mapping[int, Trial]) -> None:
        self._progress.know(trials)
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

    def warn(self, text: str) -> None:
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
    header, most = Line(_header(progress, width), "bold"), max(1, height // 2 - 2)
    hides = len(progress.running) > most > 1
    rows = list(_rows(progress, most - 1 if hides else most))
    if not rows:
        return [header]
    parent = ["from"] if progress.size else []
    head = ["#", "state", "step", *parent, *metric_titles(progress.objective)]
    texts = rows_of(head, [row.cells for row in rows], [row.values for row in rows], names, width)
    lines = [header, Line(texts[0], "dim"), *map(Line, texts[1:], (row.style for row in rows))]
    rest = f"and {len(progress.running) - len(rows)} more are running"
    return [*lines, Line(rest[:width], "cyan")] if hides else lines


def _header(progress: Progress, width: int) -> str:
    """Returns the counts, the best and the times, the least important ones only where there is room for them."""
    left, generation = progress.left_seconds, progress.generation
    best = ranking.best(progress.ended.values(), progress.objective)
    said = f"best {format_number(best[0].results[0])} (trial {best[0].number})" if best else ""
    counts = {"running": len(progress.running), "open": progress.open}
    counts |= {state: progress.count(state) for state in ("pruned", "failed")}
    parts = {
        "generation": "" if generation is None else f"generation {generation[0]}/{generation[1]}",
        "done": f"{progress.done}/{progress.asked} done",
        **{name: f"{count} {name}" for name, count in counts.items() if count},
        "best": f"front of {len(best)}" if best and progress.objective.others else said,
        "elapsed": format_seconds(progress.elapsed_seconds),
        "left": "" if left is None else f"eta {format_seconds(left)}",
    }
    for dropped in ("", "running", "open", "elapsed", "pruned", "failed", "best"):
        parts.pop(dropped, None)
        text = GAP.join(filter(None, parts.values()))
        if len(text) <= width:
            break
    return text


def _rows(progress: Progress, most: int) -> Iterator[_Row]:
    """Yields running trials, then the best, then the newest of the others that have ended; at most `most`."""
    running = [progress.running[number] for number in sorted(progress.running)]
    several = bool(progress.objective.others)
    ordinals = ["front"] * _BEST if several else _ORDINALS
    order = ranking.best if several else ranking.ranked
    best = order(progress.ended.values(), progress.objective)[: min(_BEST, max(0, most - len(running)))]
    others = [each for each in progress.ended.values() if each not in best]
    newest = others[::-1][: min(_NEWEST, max(0, most - len(running) - len(best)))]
    for now in running[:most]:
        step = "" if now.step is None else f"{now.step}/{now.end_step}" if now.end_step else str(now.step)
        yield _row(progress, now.trial, (now.doing, step, now.results), "cyan")
    shown = [(each, ordinal) for ordinal, each in zip(ordinals, best, strict=False)]
    shown += [(each, "done" if each.state == "complete" else str(each.state)) for each in newest]
    for each, state in shown:
        results = each.results or [value for _, value in each.reports[-1:]]
        step = "" if each.step is None else str(each.step)
        yield _row(progress, each, (state, step, results), _STYLES.get(state, ""))


def _row(progress: Progress, trial: Trial, end: tuple[str, str, Sequence[float]], style: str) -> _Row:
    """Returns the row of a trial, with its state, its step and its results."""
    state, step, results = end
    parent = [] if not progress.size else ["" if trial.parent is None else str(trial.parent)]
    return _Row((str(trial.number), state, step, *parent, *map(format_number, results)), trial.values, style)
