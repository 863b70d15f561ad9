"""The screen of `top`: a table of runs or jobs that is drawn again as they go on, and its keys.

Owns: columns, their order and colours, which of them a narrow terminal has room for, keys. Does not own: what is known
of a run (`watched.py`). Needs textual.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, RichLog, Static

from official_trainer import files
from official_trainer.errors import UserError, describe_error
from official_trainer.launch import watched
from official_trainer.launch.watched import Watched, Watcher
from official_trainer.runs.recorded import duration_text
from official_trainer.shown import printable, wrapped
from official_trainer.tracking.console import format_number, format_seconds

LOOK_SECONDS = 2.0
_STYLES = {"running": "cyan", "done": "green", "preempted": "yellow", "silent": "yellow"}
_STYLES |= dict.fromkeys(("failed", "stalled", "died", "unreadable"), "red")
_BARS = "▁▂▃▄▅▆▇█"
_LEAST_TREND, _MOST_TREND, _LEAST_NAME, _WHOLE_NAME = 8, 32, 14, 32
_GOES_FIRST = ("host", "goodput", "trend", "job", "loss", "eta")
_LEAST = {"status": 9, "eta": 7, "loss": 8}  # what changes all the time would else move the columns
_RIGHT = ("step", "eta", "loss", "goodput")


def sparkline(values: Sequence[float], width: int) -> Text:
    """Returns a line of bars, the newest value last; `×` is one that is not finite."""
    size = max(1, math.ceil(len(values) / width))
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    means = [sum(part) / len(part) for part in parts]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, span = min(finite, default=0.0), max(finite, default=0.0) - min(finite, default=0.0)
    bars = (_BARS[round((mean - low) / span * 7) if span > 0 else 0] if math.isfinite(mean) else "×" for mean in means)
    line = Text("".join(bars), no_wrap=True)
    line.highlight_words(["×"], "red")
    return line


def cells(each: Watched, now_seconds: float) -> dict[str, Text]:
    """Returns the cells of a row by their columns; `trend` is the course of the loss."""
    run, silent, loss = each.run, each.silent_seconds(now_seconds), each.rows.losses[-1:]
    status = str(run.process.get("phase") or run.status) if run.status == "running" else run.status
    style = _STYLES.get(run.status, "dim")
    if silent > watched.SILENT_SECONDS:
        status, style = f"silent {' '.join(duration_text(silent).split()[:2])}", _STYLES["silent"]
    step = "" if run.step is None else f"{run.step}/{run.end_step}" if run.end_step else str(run.step)
    left = "" if each.left_seconds is None else format_seconds(each.left_seconds)
    is_finite = all(map(math.isfinite, loss))
    return {
        "run": Text(printable(each.name)),
        "job": Text(printable(each.state.lower())),
        "status": Text(printable(status), style),
        "step": Text(step),
        "eta": Text(left),
        "loss": Text(format_number(loss[0]) if loss else "", "" if is_finite else "bold red"),
        "trend": sparkline(each.rows.losses, _MOST_TREND),
        "goodput": Text("" if each.rows.goodput is None else f"{100 * each.rows.goodput:.0f} %"),
        "host": Text(printable(each.host)),
    }


def fit(rows: Sequence[Mapping[str, Text]], width: int) -> dict[str, int]:
    """Returns the columns that there is room for, with their widths; a gap of two is between them."""
    widths = {name: max(_LEAST.get(name, 0), len(name), *(row[name].cell_len for row in rows)) for name in rows[0]}
    widths = {name: wide for name, wide in widths.items() if name != "job" or any(row["job"].plain for row in rows)}
    full = {"run": widths["run"], "trend": max(widths["trend"], _LEAST_TREND)}
    last = max(len(row["run"].plain.rpartition("/")[2]) for row in rows) + len("…/")  # whole, where there is room
    widths |= {"run": min(widths["run"], max(_LEAST_NAME, min(last, _WHOLE_NAME))), "trend": _LEAST_TREND}
    for dropped in ("", *_GOES_FIRST):
        widths.pop(dropped, None)
        room = width - sum(widths.values()) - 2 * len(widths)
        if room >= 0:
            break
    widths["run"] = max(_LEAST_NAME, widths["run"] + min(room, 0))
    for name in ("run", "trend"):  # what is left over
        if name in widths and room > 0:
            more = min(room, full[name] - widths[name])
            widths[name], room = widths[name] + more, room - more
    return widths


def named(name: str, width: int) -> str:
    """Returns a path in a column: where it is too long, without its first folders."""
    while len(name) > width and "/" in name.removeprefix("…/"):
        name = f"…/{name.removeprefix('…/').partition('/')[2]}"
    return name if len(name) <= width else f"{name[: width - 1]}…"


def _is_as_before(each: Watched, known: Mapping[str, tuple[Watched, dict[str, Text]]]) -> bool:
    """Whether a run has ended, and its cells are known: of hundreds of runs most."""
    before = known[each.name][0] if each.name in known else None
    return before is not None and each.run is before.run and (each.run.status, each.state) == ("done", before.state)


def _last(value: float | None, sign: int = 1) -> tuple[bool, float]:
    """Returns a key that sorts what is not known last."""
    return (value is None or math.isnan(value), sign * (value or 0.0))


ORDERS: Mapping[str, Callable[[Watched], Any]] = {
    "status": lambda each: (each.run.status != "running", _last(each.run.started_seconds, -1)),
    "run": lambda each: each.name,
    "step": lambda each: _last(each.run.step, -1),
    "eta": lambda each: _last(each.left_seconds),
    "loss": lambda each: _last(each.rows.losses[-1] if each.rows.losses else None),
    "goodput": lambda each: _last(each.rows.goodput),
    "host": lambda each: each.host,
}


class Log(ModalScreen[None]):
    """What a run has printed, over the whole screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,l", "dismiss", "back")]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._head, self._text = title, text

    def compose(self) -> ComposeResult:
        yield Static(Text(self._head, "bold"))
        yield RichLog(wrap=True, highlight=False, markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(RichLog).write(Text(printable(self._text)))


class Ask(ModalScreen[bool]):
    """A question that is answered with `y` or `n`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,q", "dismiss(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Vertical(Static(self._question, markup=False), Static(Text("y yes   n no", "bold")))


class Top(App[None]):
    """Runs or jobs, drawn again every two seconds; files are read in a thread."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen, DataTable, DataTable:focus, RichLog, RichLog:focus, Footer, FooterKey, Static { background: ansi_default; }
    DataTable { height: 1fr; color: ansi_default; scrollbar-size-horizontal: 0; }
    DataTable > .datatable--header { background: ansi_default; color: ansi_default; text-style: bold; }
    DataTable > .datatable--cursor, DataTable:focus > .datatable--cursor {
      background: ansi_default; color: ansi_default; text-style: reverse;
    }
    DataTable > .datatable--even-row, DataTable > .datatable--odd-row { background: ansi_default; }
    FooterKey, .footer-key--key, .footer-key--description { color: ansi_default; background: ansi_default; }
    #about { height: 2; }
    #head, #said { height: auto; }
    Ask { align: center middle; }
    Ask Vertical { width: 64; max-width: 90%; height: auto; border: round ansi_yellow; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l", "log", "logs"),
        Binding("r", "report", "report"),
        Binding("s", "stop", "stop"),
        Binding("o", "order", "sort"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, watcher: Watcher, clock: Callable[[], float] = time.time) -> None:
        super().__init__(ansi_color=True)
        self._watcher, self._clock = watcher, clock
        self._found: list[Watched] = []
        self._order = next(iter(ORDERS))
        self._keys: list[str] = []
        self._widths: dict[str, int] = {}
        self._texts: dict[tuple[str, str], Text] = {}
        self._cells: dict[str, tuple[Watched, dict[str, Text]]] = {}

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield DataTable(cursor_type="row", cell_padding=1)
        yield Static(id="about")
        yield Static(id="said")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.look()
        self.set_interval(LOOK_SECONDS, self.look)

    def on_resize(self) -> None:
        self.draw()

    def look(self) -> None:
        """Has what has changed read and drawn, unless a file system is still being waited for."""
        if not any(each.group == "look" and each.is_running for each in self.workers):
            self.read()

    @work(thread=True, group="look")
    def read(self) -> None:
        """Reads what has changed, and draws it."""
        try:
            found = self._watcher.look(self._clock())
        except Exception as error:  # the folder is away for a moment; what one run holds must not end the screen
            reason = files.reason_of(error) if isinstance(error, OSError) else describe_error(error)
            self.call_from_thread(self.say_head, f"{reason}: {self._watcher.directory}")
            return
        self.call_from_thread(self.take, found)

    def take(self, found: list[Watched]) -> None:
        """Shows what was found."""
        self._found = found
        self.draw()

    def say_head(self, text: str) -> None:
        """Shows a line above the table."""
        self.query_one("#head", Static).update(Text(wrapped(printable(text), self.size.width, indent=""), "bold"))

    def draw(self) -> None:
        """Changes the cells that have changed; new rows or widths draw the table again."""
        table, found = self.query_one(DataTable), sorted(self._found, key=ORDERS[self._order])
        what = "job" if self._watcher.of_jobs else "run"
        self.say_head(f"{watched.counts(found, what)} · by {self._order} · {self._watcher.directory}")
        known, now = self._cells, self._clock()
        self._cells = {each.name: (each, cells(each, now)) for each in found if not _is_as_before(each, known)}
        self._cells |= {each.name: known[each.name] for each in found if each.name not in self._cells}
        rows = {each.name: dict(self._cells[each.name][1]) for each in found}
        widths = fit(list(rows.values()), self.size.width) if rows else {}
        texts: dict[tuple[str, str], Text] = {}
        for each, (key, row) in zip(found, rows.items(), strict=True):
            row |= {"run": Text(named(row["run"].plain, widths["run"]))}
            if row["trend"].cell_len > widths.get("trend", _MOST_TREND):
                row["trend"] = sparkline(each.rows.losses, widths["trend"])
            for name in widths:
                row[name].justify = "right" if name in _RIGHT else "left"
                texts[key, name] = row[name]
        if (widths, list(rows)) == (self._widths, self._keys):
            for (key, name), text in texts.items():
                if text != self._texts[key, name]:
                    table.update_cell(key, name, text)
        else:
            self._draw_again(table, widths, texts, list(rows))
        self._keys, self._widths, self._texts = list(rows), widths, texts
        self.say_about()

    def _draw_again(
        self, table: DataTable[Text], widths: Mapping[str, int], texts: Mapping[tuple[str, str], Text], keys: list[str]
    ) -> None:
        chosen = self.chosen()
        table.clear(columns=True)
        for name, width in widths.items():
            heading = Text(name, justify="right" if name in _RIGHT else "left")
            table.add_column(heading, width=width, key=name)
        for key in keys:
            table.add_row(*(texts[key, name] for name in widths), key=key)
        if chosen is not None and chosen.name in keys:
            table.move_cursor(row=keys.index(chosen.name), animate=False)

    def chosen(self) -> Watched | None:
        """Returns the run of the cursor's row; None without rows."""
        row = self.query_one(DataTable).cursor_row
        name = self._keys[row] if 0 <= row < len(self._keys) else None
        return next((each for each in self._found if each.name == name), None)

    def on_data_table_row_highlighted(self) -> None:
        self.say_about()

    def say_about(self) -> None:
        """Shows below the table what there is no room for in it."""
        each = self.chosen()
        if each is None:
            text = f"no {'jobs' if self._watcher.of_jobs else 'runs'} yet"
        else:
            run, error = each.run, str(each.run.record.get("error") or "").partition("\n")[0]
            best = f"best {run.metric} {format_number(run.best)}" if isinstance(run.best, float) else ""
            facts = [run.directory, run.experiment or "", each.host, best, error, *run.notes]
            text = " · ".join(fact for fact in facts if fact)
        lines = wrapped(printable(text), self.size.width, indent="").split("\n")
        self.query_one("#about", Static).update(Text("\n".join(lines[:2]) + (" …" if len(lines) > 2 else ""), "dim"))

    def say(self, text: str) -> None:
        """Shows what became of the last key, until the next one."""
        self.query_one("#said", Static).update(Text(wrapped(printable(text), self.size.width, indent="")))

    def action_order(self) -> None:
        """Sorts by the next column."""
        orders = list(ORDERS)
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        self.say("")
        self.draw()

    def action_log(self) -> None:
        """Shows what the run has printed."""
        if (each := self.chosen()) is not None:
            self.read_log(each)

    @work(thread=True)
    def read_log(self, each: Watched) -> None:
        """Reads it in a thread, because a scheduler may be asked."""
        try:
            text = watched.log_of(each, self._watcher.directory)
        except (OSError, UserError) as error:
            text = str(error)
        self.call_from_thread(self.push_screen, Log(each.name, text))

    @work
    async def action_stop(self) -> None:
        """Asks, then has the run stopped."""
        if (each := self.chosen()) is None:
            return
        what = "Its scheduler ends it" if each.job else "It saves its state and ends; the same command continues it"
        if await self.push_screen_wait(Ask(f"Stop {each.name}? {what}.")):
            self.do(lambda: self._watcher.stop(each))

    def action_report(self) -> None:
        """Writes the run's report beside where this was started."""
        if (each := self.chosen()) is None:
            return
        output = f"report-{re.sub('[^A-Za-z0-9.]+', '-', each.name)}.html"
        command = [sys.executable, "-m", "official_trainer", "report", each.run.directory, f"--output={output}"]

        def write() -> str:
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
            return (done.stdout + done.stderr).strip()

        self.say(f"a report is being written to {output}")
        self.do(write)

    @work(thread=True)
    def do(self, function: Callable[[], str]) -> None:
        """Does something in a thread, and says what became of it."""
        try:
            said = function()
        except (OSError, UserError) as error:
            said = str(error)
        self.call_from_thread(self.say, said)
        self.call_from_thread(self.look)
