"""A running sweep on a terminal: a table that is drawn again in place, below one line for each trial that has ended.

Owns: how far the sweep is, by what the driver tells and by the records of the running trials; which trials the table
shows, and drawing it, also when the terminal changes its size.
Does not own: the columns of the table (`table.py`).
"""

from __future__ import annotations

import collections
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from official_trainer import files
from official_trainer.files import RUN_FILE, STATUS_FILE
from official_trainer.shown import printable
from official_trainer.sweeps import ranking
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.failures import Failure
from official_trainer.sweeps.observer import Observer, PlainLines
from official_trainer.sweeps.settings import Objective
from official_trainer.sweeps.table import GAP, metric_titles, rows_of
from official_trainer.sweeps.trial import Trial
from official_trainer.tracking.console import format_number, format_seconds, rich_console

_DRAW_SECONDS = 0.5
_MARGIN = 2  # columns for the `^C` that a terminal echoes behind the last line
_BEST, _NEWEST = 3, 3
_ORDINALS = ("best", "2nd", "3rd")
_STYLES = {"best": "green", "front": "green", "failed": "red", "pruned": "dim"}
_DOING = {"train": "train", "evaluate": "eval", "save": "save", "export": "export"}
_ENDED = ("done", "failed", "preempted", "refused")  # an earlier process wrote it: this one has not begun


class Line(NamedTuple):
    """A line of the table, and its style."""

    text: str
    style: str = ""


@dataclasses.dataclass
class Running:
    """A trial that runs.

    Attributes:
      trial: its record.
      since: when it was started.
      doing: what it does.
      step: its last known step; None before.
      end_step: its last step; None while that is not known.
      results: of the metrics that are compared, in its last evaluation; empty before.
    """

    trial: Trial
    since: float
    doing: str = "start"
    step: int | None = None
    end_step: int | None = None
    results: Sequence[float] = ()


class Progress(Observer):
    """What is known of a sweep while it runs.

    Attributes:
      asked: how many trials are to be complete or pruned.
      objective: what they are compared by.
      ended: the trials that have ended, the newest last.
      running: those that run here, by number.
      size: of the population; None for trials that are independent of each other.
    """

    def __init__(
        self,
        directory: str,
        *,
        asked: int,
        parallel: int,
        objective: Objective,
        size: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.asked, self.objective, self.size = asked, objective, size
        self.ended: dict[int, Trial] = {}
        self.running: dict[int, Running] = {}
        self._begun: set[int] = set()
        self._directory, self._parallel = directory, parallel
        self._clock, self._began = clock, clock()
        self._seconds = 0.0  # that the trials took which have ended since then
        self._counted = 0  # how many of them count

    def know(self, trials: Mapping[int, Trial]) -> None:
        self._begun = {number for number, each in trials.items() if each.state is None}
        for number in self._begun:
            self.ended.pop(number, None)  # `sweep retry` has it run again
        for number, each in trials.items():
            if each.state is not None:
                self.ended.setdefault(number, each)

    def start(self, trial: Trial, *, continues: bool) -> None:
        self.running[trial.number] = Running(trial, self._clock())

    def report(self, trial: Trial, step: int, results: Sequence[float]) -> None:
        if trial.number in self.running:
            self.running[trial.number].results = results

    def wait(self, trial: Trial, how: str, seconds: float) -> None:
        self.running[trial.number].doing = "wait"

    def end(self, trial: Trial, result: str, failure: Failure | None = None) -> None:
        self.ended[trial.number] = trial
        if running := self.running.pop(trial.number, None):
            self._seconds += self._clock() - running.since
            self._counted += self._counts(trial)

    def look(self) -> None:
        for number, running in self.running.items():
            place = trials.run_directory(self._directory, number)
            try:
                status = files.read_json(files.join(place, STATUS_FILE))
                record = files.read_json(files.join(place, RUN_FILE))
            except Exception:  # not there yet, replaced just now, or on a storage that fails: the next look may have it
                continue
            if (phase := status.get("phase")) is not None and phase not in _ENDED:
                running.doing = _DOING.get(phase, "start")
                running.step = status.get("step") or running.step
                running.end_step = (record.get("steps") or {}).get("end")

    @property
    def elapsed_seconds(self) -> float:
        """Since the sweep was started, or started again."""
        return self._clock() - self._began

    def counts(self) -> dict[str, int]:
        """Returns how many trials are done, run here, are worked on or left elsewhere, were pruned and have failed."""
        return {
            "done": sum(map(self._counts, self.ended.values())),
            "running": len(self.running),
            "open": len(self._begun - self.running.keys() - self.ended.keys()),
            **{state: sum(each.state == state for each in self.ended.values()) for state in ("pruned", "failed")},
        }

    def left_seconds(self) -> float | None:
        """Returns how long the rest will take, if the others take as long as those that have ended; None before."""
        if not self._counted:
            return None
        each = self._seconds / self._counted  # pruned trials are shorter, failed ones take time and do not count
        now, counts = self._clock(), self.counts()
        spent = sum(min(now - running.since, each) for running in self.running.values())
        left = self.asked - counts["done"]
        return max(0.0, left * each - spent) / max(1, min(left, self._parallel + counts["open"]))

    def _counts(self, trial: Trial) -> bool:
        return trial.state in ("complete", "pruned") or self.size is not None


class LiveTable(Observer):
    """Draws a sweep on a terminal until it is closed, which leaves the lines of ended trials there."""

    def __init__(self, progress: Progress, names: Mapping[str, str], stream: TextIO) -> None:
        """Takes what is known of the sweep, what its drawn fields are called, and the terminal."""
        self._progress, self._names = progress, names
        self.report, self.say, self.warn = progress.report, self._print, self._print  # type: ignore[method-assign]
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

    def wait(self, trial: Trial, how: str, seconds: float) -> None:
        self._progress.wait(trial, how, seconds)
        self._lines.wait(trial, how, seconds)

    def end(self, trial: Trial, result: str, failure: Failure | None = None) -> None:
        self._progress.end(trial, result, failure)
        for line in self._lines.lines_of_end(trial, result, failure, self._console.width):
            self._print(line)

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
        if width < self._width:  # the terminal may have made several lines of each one, or cut them off
            self._live.stop()
            self._console.clear()
            for text in list(self._printed)[-height:]:
                self._console.print(Text(text), soft_wrap=True)
            self._live = self._new_live()
        self._width = width
        self._drawn_at = self._progress.elapsed_seconds
        lines = layout(self._progress, self._names, width - _MARGIN, height)
        shown = (Text(printable(text), style, no_wrap=True, overflow="crop") for text, style in lines)
        self._live.start()
        self._live.update(Group(*shown), refresh=True)


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
    head, found = ["#", "state", "step", *parent, *metric_titles(progress.objective)], []
    for trial, (state, step, results), _ in rows:
        line = parent and ["" if trial.parent is None else str(trial.parent)]
        found.append([str(trial.number), state, step, *line, *map(format_number, results)])
    texts = rows_of(head, found, [trial.values for trial, _, _ in rows], names, width)
    lines = [header, Line(texts[0], "dim"), *map(Line, texts[1:], (style for _, _, style in rows))]
    rest = f"and {len(progress.running) - len(rows)} more are running"
    return [*lines, Line(rest[:width], "cyan")] if hides else lines


def _header(progress: Progress, width: int) -> str:
    """Returns the counts, the best and the times, the least important ones only where there is room for them."""
    left, counts, parts = progress.left_seconds(), progress.counts(), {}
    best = ranking.best(progress.ended.values(), progress.objective)
    if progress.size is not None:
        generations = progress.asked // progress.size
        parts["generation"] = f"generation {min(len(progress.ended) // progress.size + 1, generations)}/{generations}"
    parts["done"] = f"{counts.pop('done')}/{progress.asked} done"
    parts |= {name: f"{count} {name}" for name, count in counts.items() if count}
    if best:
        one = f"best {format_number(best[0].results[0])} (trial {best[0].number})"
        parts["best"] = f"front of {len(best)}" if progress.objective.others else one
    parts["elapsed"] = format_seconds(progress.elapsed_seconds)
    parts |= {} if left is None else {"left": f"eta {format_seconds(left)}"}
    for dropped in ("", "running", "open", "elapsed", "pruned", "failed", "best"):
        parts.pop(dropped, None)
        text = GAP.join(parts.values())
        if len(text) <= width:
            break
    return text


def _rows(progress: Progress, most: int) -> Iterator[tuple[Trial, tuple[str, str, Sequence[float]], str]]:
    """Yields running trials, then the best, then the newest of the others that have ended; at most `most`.

    Each with its state, its step and its results, and its style.
    """
    running = [progress.running[number] for number in sorted(progress.running)]
    several = bool(progress.objective.others)
    ordinals = ["front"] * _BEST if several else _ORDINALS
    order = ranking.best if several else ranking.ranked
    best = order(progress.ended.values(), progress.objective)[: min(_BEST, max(0, most - len(running)))]
    others = [each for each in progress.ended.values() if each not in best]
    newest = others[::-1][: min(_NEWEST, max(0, most - len(running) - len(best)))]
    for now in running[:most]:
        step = "" if now.step is None else f"{now.step}/{now.end_step}" if now.end_step else str(now.step)
        yield now.trial, (now.doing, step, now.results), "cyan"
    shown = [(each, ordinal) for ordinal, each in zip(ordinals, best, strict=False)]
    shown += [(each, "done" if each.state == "complete" else str(each.state)) for each in newest]
    for each, state in shown:
        results = each.results or [value for _, value in each.reports[-1:]]
        yield each, (state, "" if each.step is None else str(each.step), results), _STYLES.get(state, "")
