"""The look of the command line's own output: aligned columns, and colour on terminals.

Owns: tables, the `error:` prefix, when colour is used.
Does not own: the progress of a run (`tracking/`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Literal, TextIO

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
    print(f"{paint(f'{label}:', colour, sys.stderr)} {message}", file=sys.stderr, flush=True)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns one line per row, the cells of each column starting at the same place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
