"""The look of the command line's own output: aligned columns, colour on terminals, and the package's log.

Owns: tables, the `error:` prefix, when colour is used; that lines end between words on a terminal, and that control
characters of values are shown and not obeyed; the handler of the log, for as long as a command runs.
Does not own: the progress of a run (`tracking/`), the records of the log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TextIO, get_args

from official_trainer.shown import printable, wrapped

if TYPE_CHECKING:
    from rich.text import Text

Colour = Literal["red", "green", "yellow", "blue", "magenta", "cyan", "dim", "bold"]
_COLOURS = dict(zip(get_args(Colour), (31, 32, 33, 34, 35, 36, 2, 1), strict=True))
_USUAL = 80  # columns of a terminal that does not say
_ENDLESS = 10**5  # of a pipe, whose lines may be long


def paint(text: str, colour: Colour, stream: TextIO | None = None) -> str:
    """Returns `text` in `colour` if `stream` (default: stdout) is a terminal and `NO_COLOR` is not set."""
    stream = stream or sys.stdout
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def report_error(message: str, label: str = "error", colour: Colour = "red") -> None:
    """Writes `error: message` to stderr, or with another label; a message may have several lines."""
    text = wrapped(f"{label}: {printable(message)}", width(sys.stderr)).removeprefix(f"{label}:")
    print(f"{paint(f'{label}:', colour, sys.stderr)}{text}", file=sys.stderr, flush=True)


def width(stream: TextIO | None = None) -> int | None:
    """Returns the columns of the terminal that `stream` (default: stdout) is, or COLUMNS; None if it is none."""
    stream = stream or sys.stdout
    if not stream.isatty():
        return None
    with contextlib.suppress(OSError, ValueError):  # `shutil` knows the size of stdout alone
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns) or _USUAL
    return _USUAL


def table_width() -> int | None:
    """Returns the columns for a table on stdout; None in a pipe, where each row has one line, unless COLUMNS is set."""
    return width() or shutil.get_terminal_size((0, 0)).columns or None


def show(text: str) -> None:
    """Writes text that holds values from elsewhere, such as names and the content of files, to stdout."""
    print(printable(text), flush=True)  # a sweep prints for hours, and its output may be a file


def show_line(text: str, label: str = "", colour: Colour = "red") -> None:
    """Writes a line to stdout; on a terminal, the label's first word has a colour, and text goes on below itself."""
    word = label.partition(" ")[0]
    line = wrapped(printable(f"{label}{text}"), width(), " " * len(label) or "  ")
    print(f"{paint(word, colour)}{line.removeprefix(word)}", flush=True)


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    *,
    numbers: Collection[int] = (),
    fit: int | None = None,
) -> list[str]:
    """Returns the lines of a table that rich draws, in colour where stdout takes it.

    Args:
      headings: of the columns; without any, the table has no head.
      rows: cells; where the terminal has no room for them, they go on in the next line, the first one as the last.
      numbers: the columns that are aligned to the right, by their index.
      fit: the most columns of a line; None gives one line to each row.
    """
    if fit is None and not sys.stdout.isatty():  # a pipe needs no rich, whose import is a fifth of `list`
        texts = [[str(cell) for cell in row] for row in ([headings] if headings else []) + [*rows]]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        aligned = [f"{'>' if index in numbers else '<'}{width}" for index, width in enumerate(widths)]
        return ["  ".join(map(format, row, aligned)).rstrip() for row in texts]
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold", show_header=bool(headings))
    for index, heading in enumerate(headings or [""] * len(rows[0])):
        justify: Literal["left", "right"] = "right" if index in numbers else "left"
        drawn.add_column(Text(heading), justify=justify, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    names = max((Text(str(row[0])).cell_len for row in rows), default=0)
    drawn.columns[0].no_wrap = fit is None or 2 * names <= fit  # to be copied
    is_plain = not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"  # rich heeds NO_COLOR by itself
    console = Console(width=fit or _ENDLESS, force_terminal=not is_plain, highlight=False)
    with console.capture() as captured:
        console.print(drawn)
    return [line.rstrip() for line in captured.get().splitlines()]


class _Handler(logging.Handler):
    """Writes to the current `sys.stderr`, which a progress bar replaces to keep its line below the others."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            if record.levelno >= logging.WARNING:
                report_error(text, record.levelname.lower(), "yellow")
            else:
                print(wrapped(printable(text), width(sys.stderr)), file=sys.stderr, flush=True)
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


def show_only_warnings() -> None:
    """Shows only warnings and errors of the package's log from here to the end of the command."""
    logging.getLogger("official_trainer").setLevel(logging.WARNING)
