"""The output of a job's processes as one text of whole lines, each with the name of its process.

Owns: labels, lines, the log file of each process.
Does not own: colours (`cli/`), reading from processes (`attempt.py`).
"""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Iterable
from typing import BinaryIO, TextIO

from official_trainer import files
from official_trainer.shown import wrapped

_LONGEST_BYTES = 1 << 16
_KEPT = 15

Paint = Callable[[str, int], str]
"""Paints a label in the colour of that number; the launcher has `LAUNCHER`."""

LAUNCHER = -1
LAUNCHER_NAME = "launch"


class Printer:
    """Prints lines of all processes of a job."""

    def __init__(
        self,
        stream: TextIO,
        *,
        paint: Paint = lambda label, _: label,
        columns: Callable[[], int | None] = lambda: None,
        log_dir: str = "",
        quiet: bool = False,
    ) -> None:
        """Takes where the output goes.

        Args:
          stream: for the output of all processes.
          paint: returns a label with colour.
          columns: returns how wide the terminal is, whose lines end between words; None if there is none.
          log_dir: a folder for a log file of each process, without labels; output is appended; empty for none.
          quiet: whether the launcher's own lines are left out.
        """
        self._stream, self._paint, self._columns = stream, paint, columns
        self._log_dir, self._quiet = log_dir, quiet
        self._names: list[str] = []
        self._width = 0

    def expect(self, names: Iterable[str]) -> None:
        """Takes the names of the processes, so that all labels have the same width."""
        self._names = list(names)
        self._width = max(map(len, [*self._names, LAUNCHER_NAME]))

    def lines_of(self, name: str) -> Lines:
        """Returns an object that takes the output of a process."""
        log = None
        if self._log_dir:
            files.make_dirs(self._log_dir)
            log = open(os.path.join(self._log_dir, f"{name.replace(' ', '-')}.log"), "ab", buffering=0)  # noqa: SIM115
        return Lines(lambda lines: self._print(name, lines), log)

    def say(self, text: str) -> None:
        """Prints a line of the launcher."""
        if not self._quiet:
            self._print(LAUNCHER_NAME, [text])

    def _print(self, name: str, lines: Iterable[str]) -> None:
        number = self._names.index(name) if name in self._names else LAUNCHER
        label = self._paint(f"[{name}]", number) + " " * (self._width - len(name))
        columns = self._columns()
        room = None if columns is None else columns - self._width - len("[] ")
        shown = (part for line in lines for part in wrapped(line, room).split("\n"))
        self._stream.write("".join(f"{label} {line}".rstrip() + "\n" for line in shown))
        self._stream.flush()


class Lines:
    """The output of one process, cut into lines.

    Attributes:
      last: the last lines.
    """

    def __init__(self, show: Callable[[list[str]], None], log: BinaryIO | None) -> None:
        self.last: collections.deque[str] = collections.deque(maxlen=_KEPT)
        self._show, self._log = show, log
        self._unfinished = b""

    def feed(self, data: bytes) -> None:
        """Takes output as it comes, and prints complete lines, and lines that are too long to wait for."""
        if self._log is not None:
            self._log.write(data)
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if len(self._unfinished) > _LONGEST_BYTES:
            lines, self._unfinished = [*lines, self._unfinished], b""
        self._take(lines)

    def end(self) -> None:
        """Prints an incomplete last line, and closes the log file."""
        if self._unfinished:
            self._take([self._unfinished])
        self._unfinished = b""
        if self._log is not None:
            self._log.close()

    def _take(self, lines: list[bytes]) -> None:
        if lines:
            # A progress bar overwrites its line; only the text after the last carriage return stays visible.
            texts = [line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in lines]
            self.last.extend(text for text in texts if text.strip())
            self._show(texts)
