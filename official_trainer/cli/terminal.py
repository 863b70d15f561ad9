"""The look of the command line's own output: aligned columns, colour on terminals, and the package's log.

Owns: tables, the `error:` prefix, when colour is used; that control characters of values are shown and not obeyed; the
handler of the log, for as long as a command runs.
Does not own: the progress of a run (`tracking/`), the records of the log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Literal, TextIO

from official_trainer.errors import printable

_COLOURS = {
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "dim": "2",
    "bold": "1",
}

Colour = Literal["red", "green", "yellow", "blue", "magenta", "cyan", "dim", "bold"]


def paint(text: str, colour: Colour, stream: TextIO | None = None) -> str:
    """Returns `text` in `colour` if `stream` (default: stdout) is a terminal and `NO_COLOR` is not set."""
    stream = stream or sys.stdout
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def report_error(message: str, label: str = "error", colour: Colour = "red") -> None:
    """Writes `error: message` to stderr, or with another label; a message may have several lines."""
    print(f"{paint(f'{label}:', colour, sys.stderr)} {printable(message)}", file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Writes text that holds values from elsewhere, such as names and the content of files, to stdout."""
    print(printable(text))


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns one line per row, the cells of each column starting at the same place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


class _Handler(logging.Handler):
    """Writes to the current `sys.stderr`, which a progress bar replaces to keep its line below the others."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            if record.levelno >= logging.WARNING:
                report_error(text, record.levelname.lower(), "yellow")
            else:
                print(printable(text), file=sys.stderr, flush=True)
        except OSError:
            pass  # stderr is closed; the run continues without its log


@contextlib.contextmanager
def log_shown(*, quiet: bool) -> Iterator[None]:
    """Shows the package's log inside the block; if `quiet`, only warnings and errors."""
    logger, handler = logging.getLogger("official_trainer"), _Handler()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False  # TensorFlow may add a handler to the root logger, which would print each line twice
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
