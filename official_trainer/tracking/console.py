"""The output of a run for the user: a progress bar on a terminal, plain lines elsewhere.

Owns: the wording and the frequency of this output; that control characters are shown, not obeyed. Does not own: the
program's log (`logging`), or when progress is reported. Only this module imports rich, and only on a terminal.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from official_trainer.errors import printable
from official_trainer.tracking import EVALUATION, Media, Tracker

_logger = logging.getLogger(__name__)
_NOT_SHOWN = ("batch_loss", "smoothed_loss", "learning_rate")  # in metrics.jsonl and TensorBoard; too much here
_CURVES = ("time", "optimizer", "intermediates")
_LINE_INTERVAL_SECONDS = 5.0
_BAR_INTERVAL_SECONDS = 0.1


class Console(Tracker):
    """Shows progress, metrics and messages. A tracker.

    Args:
      stream: where the text goes.
      end_step: global step at which training ends; None if that is not known.
      quiet: whether nothing is shown.
      clock: tells the time in seconds.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        end_step: int | None,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.end_step = end_step
        self._clock = clock
        self._shown_at = -math.inf
        self._speed = ""
        self._rate_start: tuple[int, float] | None = None  # (step, time) from which the speed is measured
        is_interactive = stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._view = _View() if quiet else _Bar(stream) if is_interactive else _Lines(stream)

    @contextlib.contextmanager
    def _until_closed(self) -> Iterator[None]:
        """Stops all output when it cannot be written (a closed pipe, a lost terminal), so that the run continues."""
        try:
            yield
        except OSError as error:
            _logger.warning("nothing more is shown: %s", error)
            self._view = _View()

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        """Shows metrics: those of `train` in the progress (a bar has room for the loss only), others in a line.

        Rows of splits that only serve for curves, such as `time`, are not shown.
        """
        if split in _CURVES:
            return
        if split == "train":
            shown = {name: value for name, value in values.items() if name not in _NOT_SHOWN}
            loss = shown.pop("training_loss", None)
            shown = shown if loss is None else {"loss": loss, **shown}
            self._show(step, _metrics(dict(list(shown.items())[: 1 if self._view.is_bar else None])))
        else:
            self.message(f"{split} @ {step}: {_metrics(values)}")

    def publish(self, split: str, step: int, media: Mapping[str, Media]) -> None:
        """Says what an evaluation has for trackers that show it."""
        if split == EVALUATION:
            counts = Counter(type(thing).__name__.lower() for thing in media.values())
            shown = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items())
            self.message(f"{split} @ {step}: {shown}")

    def set_end_step(self, end_step: int | None) -> None:
        """Takes the step at which training ends, once it is known, or when it changes."""
        self.end_step = end_step

    def progress(self, step: int, *, loss: float, examples_per_second: float) -> None:
        """Shows the progress of training; it is cheap enough for every window, and most calls show nothing.

        The first window's speed is not shown: most of its time is tracing.
        """
        if self._rate_start is None:
            self._rate_start = (step, self._clock())
        else:
            self._speed = f"{examples_per_second:.0f} examples/s"
        completes_bar = self._view.is_bar and step == self.end_step
        if completes_bar or self._clock() - self._shown_at >= self._view.interval_seconds:
            self._show(step, f"loss {format_number(loss)}")

    def message(self, text: str) -> None:
        """Shows a line."""
        with self._until_closed():
            self._view.line(printable(text))

    def rewind(self, step: int) -> None:
        """Restarts the measurement of the speed; earlier output stays."""
        self._rate_start = None

    def close(self) -> None:
        """Restores the terminal."""
        with self._until_closed():
            self._view.close()

    def _show(self, step: int, metrics: str) -> None:
        self._shown_at = self._clock()
        place = f"step {step}" if self.end_step is None else f"step {step}/{self.end_step}"
        with self._until_closed():
            self._view.progress(step, self.end_step, (place, metrics, self._speed, self._eta(step)))

    def _eta(self, step: int) -> str:
        """Returns the remaining time as text; empty while it is unknown."""
        if self.end_step is None or self._rate_start is None:
            return ""
        start, since = self._rate_start
        if step <= start:
            return ""
        seconds = (self._clock() - since) / (step - start) * (self.end_step - step)
        return f"eta {format_seconds(seconds)}" if step < self.end_step else ""


_Texts = tuple[str, str, str, str]  # place, metrics, speed, time left


class _View:
    """How output is shown; this one shows nothing."""

    interval_seconds = math.inf
    is_bar = False

    def progress(self, step: int, end_step: int | None, texts: _Texts) -> None: ...

    def line(self, text: str) -> None: ...

    def close(self) -> None: ...


class _Lines(_View):
    interval_seconds = _LINE_INTERVAL_SECONDS

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def progress(self, step: int, end_step: int | None, texts: _Texts) -> None:
        self.line("  ".join(text for text in texts if text))

    def line(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


class _Bar(_View):
    interval_seconds = _BAR_INTERVAL_SECONDS
    is_bar = True

    def __init__(self, stream: TextIO) -> None:
        from rich import console, progress, table

        self._console = console.Console(file=stream, force_terminal=True, highlight=False, markup=False)

        def text(number: int, style: str = "none") -> progress.TextColumn:
            # Metrics are shortened on a narrow terminal; the other texts are short.
            column = table.Column(no_wrap=True, overflow="ellipsis" if number == 1 else "fold")
            return progress.TextColumn(
                f"{{task.fields[texts][{number}]}}", style=style, markup=False, table_column=column
            )

        bar = progress.BarColumn(bar_width=None, table_column=table.Column(ratio=1, min_width=8))
        self._bar = progress.Progress(
            *(text(0), bar, text(1), text(2, "dim"), text(3, "cyan")),
            console=self._console,
            auto_refresh=False,  # no thread; the loop calls often enough
            expand=True,
        )
        self._task: progress.TaskID | None = None

    def progress(self, step: int, end_step: int | None, texts: _Texts) -> None:
        if self._task is None:
            self._task = self._bar.add_task("", total=end_step, texts=texts)
            self._bar.start()
        self._bar.update(self._task, completed=step, total=end_step, refresh=True, texts=texts)

    def line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        self._bar.stop()


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


def _metrics(values: Mapping[str, float]) -> str:
    shown = {printable(name).replace("\n", "\\n"): format_number(value) for name, value in values.items()}
    return "  ".join(f"{name} {value}" for name, value in shown.items())
