"""The output of a run for the user: a progress bar and aligned results on a terminal, plain lines elsewhere.

Owns: the wording and the frequency of this output; that it fits the terminal, and that control characters are shown,
not obeyed. Does not own: the program's log (`logging`), or when progress is reported. Only this module
imports rich for a run, and only on a terminal.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from official_trainer.shown import printable, shorten, wrapped
from official_trainer.tracking import EVALUATION, Media, Tracker

_logger = logging.getLogger(__name__)
_NOT_SHOWN = ("batch_loss", "smoothed_loss", "learning_rate")  # in metrics.jsonl and TensorBoard; too much here
_CURVES = ("time", "optimizer", "intermediates")
_LINE_INTERVAL_SECONDS = 5.0
_BAR_INTERVAL_SECONDS = 0.1
_WIDTH_WITH_SPEED = 60  # columns; on a narrower terminal the bar has no room for the speed
_MOST_BELOW = 16  # metrics below the bar
_VALUE_WIDTH = 6  # of most numbers, so that what stands after them does not move
_LEAST_NAME = 12


class Console(Tracker):
    """Shows progress, metrics and messages. A tracker.

    Args:
      stream: where the text goes.
      end_step: global step at which training ends, which may be set later; None if that is not known.
      monitored: the metric of an evaluation that is shown first, `a|b` if it is `b` inside `a`; empty for none.
      quiet: whether nothing is shown.
      clock: tells the time in seconds.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        end_step: int | None,
        monitored: str = "",
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.end_step = end_step
        self._monitored = monitored
        self._clock = clock
        self._shown_at = -math.inf
        self._speed = ""
        self._rate_start: tuple[int, float] | None = None  # (step, time) from which the speed is measured
        self._metrics: dict[str, float] = {}  # of the last summary, without its loss
        self._before: dict[str, Mapping[str, float]] = {}  # the last results of each split
        self._afterwards = ""
        self._view = _Bar(stream) if can_redraw(stream) and not quiet else _Lines(None if quiet else stream)

    @contextlib.contextmanager
    def _until_closed(self) -> Iterator[None]:
        """Stops all output when it cannot be written (a closed pipe, a lost terminal), so that the run continues."""
        try:
            yield
        except OSError as error:
            _logger.warning("nothing more is shown: %s", error)
            self._view = _Lines(None)

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        """Shows metrics: those of `train` in the progress, others as results.

        Rows of splits that only serve for curves, such as `time`, are not shown.
        """
        if split in _CURVES:
            return
        if split == "train":
            shown = {name: value for name, value in values.items() if name not in _NOT_SHOWN}
            loss = shown.pop("training_loss", None)
            self._metrics = shown
            self._show(step, shown if loss is None else {"loss": loss, **shown})
            return
        before = self._before.get(split, {})
        first, best = self._monitored.replace("|", "/"), f"best_{self._monitored}"
        notes = {name: _change(value, before.get(name)) for name, value in values.items()}
        if first in values:
            del notes[first]
            note = _compared(values[first], values.get(best), before.get(best, before.get(first)))
            notes = {first: note, **notes}
            if self._view.is_bar:
                notes.pop(best, None)  # the line of the metric says it
        self._before[split] = dict(values)
        with self._until_closed():
            self._view.results(split, step, [_Result(_name(n), float(values[n]), note) for n, note in notes.items()])
        self._say_afterwards()

    def publish(self, split: str, step: int, media: Mapping[str, Media]) -> None:
        """Says what an evaluation has for trackers that show it."""
        if split == EVALUATION:
            counts = Counter(type(thing).__name__.lower() for thing in media.values())
            shown = ", ".join(f"{count} {noun}{'s' if count > 1 else ''}" for noun, count in counts.items())
            self.message(f"{split} @ {step}: {shown}")

    def progress(self, step: int, *, loss: float, examples_per_second: float) -> None:
        """Shows the progress of training; it is cheap enough for every window, and most calls show nothing.

        The first window's speed is not shown: most of its time is tracing.
        """
        if self._rate_start is None:
            self._rate_start = (step, self._clock())
        else:
            self._speed = f"{format_number(examples_per_second)} examples/s"
        completes_bar = self._view.is_bar and step == self.end_step
        if completes_bar or self._clock() - self._shown_at >= self._view.interval_seconds:
            self._show(step, {"loss": loss, **(self._metrics if self._view.is_bar else {})})

    def doing(self, what: str, step: int) -> None:
        """Shows below the bar what happens while no step runs: `evaluating`."""
        if self._view.is_bar:
            self._show(step, {}, what)

    def message(self, text: str, *, after_results: bool = False) -> None:
        """Shows a line; if `after_results`, below those that come next."""
        if after_results:
            self._afterwards = text
            return
        with self._until_closed():
            self._view.line(printable(text))

    def _say_afterwards(self) -> None:
        if text := self._afterwards:
            self._afterwards = ""
            self.message(text)

    def hint(self, *commands: str) -> None:
        """Shows what to do next to a person; not where the output is a file or is read by a program."""
        with self._until_closed():
            self._view.commands([printable(command) for command in commands])

    def rewind(self, step: int) -> None:
        """Restarts the measurement of the speed, and comparisons with earlier results; earlier output stays."""
        self._rate_start = None
        self._before = {}

    def close(self) -> None:
        """Restores the terminal."""
        self._say_afterwards()
        with self._until_closed():
            self._view.close()

    def _show(self, step: int, metrics: Mapping[str, float], what: str = "") -> None:
        self._shown_at = self._clock()
        steps = f"step {step}" if self.end_step is None else f"step {step}/{self.end_step}"
        shown = [(_name(name), format_number(value)) for name, value in metrics.items()]
        start, since = self._rate_start or (step, 0.0)
        time_left = ""
        if self.end_step is not None and start < step < self.end_step:
            seconds = (self._clock() - since) / (step - start) * (self.end_step - step)
            time_left = f"eta {format_seconds(seconds)}"
        with self._until_closed():
            self._view.progress(_Progress(step, self.end_step, steps, shown, self._speed, time_left, what))


class _Progress(NamedTuple):
    step: int
    end_step: int | None
    steps: str  # `step 10/100`
    metrics: Sequence[tuple[str, str]]
    speed: str
    time_left: str
    doing: str  # what happens instead of a step


class _Result(NamedTuple):
    name: str
    value: float
    note: str  # how it compares with earlier ones


class _Lines:
    """Lines for a file or a pipe; without a stream nothing is shown."""

    interval_seconds = _LINE_INTERVAL_SECONDS
    is_bar = False

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def progress(self, progress: _Progress) -> None:
        metrics = "  ".join(f"{name} {value}" for name, value in progress.metrics)
        self.line("  ".join(filter(None, (progress.steps, metrics, progress.speed, progress.time_left))))

    def results(self, split: str, step: int, results: Sequence[_Result]) -> None:
        metrics = "  ".join(f"{result.name} {format_number(result.value)}" for result in results)
        self.line(f"{split} @ {step}: {metrics}")

    def line(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def commands(self, commands: Sequence[str]) -> None:
        """Shows commands to a person alone."""

    def close(self) -> None:
        """Restores what was changed."""


class _Bar(_Lines):
    """A bar and the metrics of training below it, always at the bottom; everything else above."""

    interval_seconds = _BAR_INTERVAL_SECONDS
    is_bar = True

    def __init__(self, stream: TextIO) -> None:
        from rich import live, progress, table

        self._console = rich_console(stream)
        self._live = live.Live(
            console=self._console,
            auto_refresh=False,  # no thread; the loop calls often enough
            redirect_stderr=sys.stderr.isatty(),  # what goes to a file stays there
            vertical_overflow="crop",
        )
        fitted = table.Column(no_wrap=True, overflow="ellipsis")
        self._progress = progress.Progress(
            progress.TextColumn("{task.description}", markup=False, table_column=fitted),
            progress.BarColumn(bar_width=None),
            progress.TextColumn("{task.fields[speed]}", style="dim", table_column=fitted.copy()),
            progress.TextColumn("{task.fields[time_left]}", style="cyan", table_column=fitted.copy()),
            auto_refresh=False,
            expand=True,
        )
        self._task = self._progress.add_task("", total=None, speed="", time_left="")
        self._metrics: Sequence[tuple[str, str]] = ()
        self._is_doing = False

    def progress(self, progress: _Progress) -> None:
        self._metrics, self._is_doing = progress.metrics or self._metrics, bool(progress.doing)
        self._progress.update(
            self._task,
            description=progress.steps,
            completed=progress.step,
            total=progress.end_step,
            speed=progress.speed if self._console.width >= _WIDTH_WITH_SPEED else "",
            time_left=progress.time_left,
        )
        self._show_below(progress.doing)

    def _show_below(self, doing: str = "") -> None:
        """Shows below the bar what happens instead of a step, or else the metrics."""
        from rich import columns, console
        from rich.text import Text

        shown = [f"{name} {value:<{_VALUE_WIDTH}}" for name, value in self._metrics[:_MOST_BELOW]]
        shown += ["…"] if len(self._metrics) > _MOST_BELOW else []
        texts = [Text(text, no_wrap=True, overflow="ellipsis") for text in ([doing] if doing else shown)]
        self._live.start()
        self._live.update(console.Group(self._progress, columns.Columns(texts, padding=(0, 2))), refresh=True)

    def results(self, split: str, step: int, results: Sequence[_Result]) -> None:
        from rich import columns, padding
        from rich.text import Text

        values = max((len(format_number(result.value)) for result in results), default=0)
        longest = max((len(result.name) for result in results), default=0)
        names = min(longest, max(self._console.width // 2, _LEAST_NAME))

        def cell(result: _Result) -> Text:
            style = "bold" if math.isfinite(result.value) else "bold red"
            note = (f"  {result.note}", "dim" if result.note[:1] in "+-" else "green")
            value = (f"{format_number(result.value):<{values}}", style)
            return Text.assemble(f"{shorten(result.name, names):<{names}}  ", value, *([note] if result.note else []))

        self._done()
        self._console.print(Text.assemble((split, "bold"), f" at step {step}"))
        others: Any = columns.Columns(list(map(cell, results[1:])), padding=(0, 4), column_first=True)
        for block in (*map(cell, results[:1]), others):
            self._console.print(padding.Padding(block, (0, 0, 0, 2), expand=False))

    def line(self, text: str) -> None:
        self._console.print(wrapped(text, self._console.width), soft_wrap=True)

    def commands(self, commands: Sequence[str]) -> None:
        self.line("next:")
        for command in commands:  # in lines that a shell reads as one
            lines = wrapped(command, self._console.width - 4, "    ").split("\n")
            self.line("  " + " \\\n  ".join(lines))

    def close(self) -> None:
        self._done()
        self._live.stop()

    def _done(self) -> None:
        """Shows the metrics again, after what was shown instead of them."""
        if self._is_doing:
            self._is_doing = False
            self._show_below()


def can_redraw(stream: TextIO) -> bool:
    """Whether a stream is a terminal on which a line can be written again."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def rich_console(stream: TextIO) -> Any:
    """Returns a `rich.console.Console` that writes to a terminal what it is given, as it is."""
    from rich import console

    return console.Console(file=stream, force_terminal=True, highlight=False, markup=False)


@contextlib.contextmanager
def working(text: str, *, quiet: bool = False) -> Iterator[None]:
    """Shows on a terminal, on stderr, that something is done that takes seconds, until the block ends.

    Where stderr is no terminal that can be redrawn, nothing is shown.

    Args:
      text: what is done: `importing TensorFlow`.
      quiet: whether nothing is shown there either.
    """
    if quiet or not can_redraw(sys.stderr):
        yield
        return
    from rich import live, spinner

    shown = live.Live(
        spinner.Spinner("dots", text),
        console=rich_console(sys.stderr),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # what is piped stays there
    )
    try:  # not `with`: Ctrl-C may come while it starts, and has to restore the terminal then too
        shown.start(refresh=True)
        yield
    finally:
        shown.stop()


def _name(name: str) -> str:
    return printable(name).replace("\n", "\\n")


def _compared(value: float, best: float | None, before: float | None) -> str:
    """Returns how a monitored metric compares with the best so far.

    Args:
      value: of this evaluation.
      best: the best so far, this one included; None if that is not known.
      before: the best before this evaluation, or where that is not known, the value of the last one.
    """
    if best is None:
        return _change(value, before)
    if value == best == before:
        return "as good as the best"
    if value == best:
        change = _change(value, before)
        return f"best so far, {change}" if change else "best so far"
    change = _change(value, best)
    return f"{change} from the best, {format_number(best)}" if change else f"the best is {format_number(best)}"


def _change(value: float, before: float | None) -> str:
    """Returns the difference with its sign; empty where there is none to tell."""
    if before is None or not math.isfinite(value - before):
        return ""
    difference = value - before
    return f"{'-' if difference < 0 else '+'}{format_number(abs(difference))}"


def format_number(value: float) -> str:
    """Returns a number in about four digits: `0.9722`, `21034`, `1e-05`."""
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def format_seconds(seconds: float) -> str:
    """Returns a duration: `0:12`, `1:02:03`, `2d 1:02:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour}:{minute:02d}:{second:02d}"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"
