"""The output of a command as lines of JSON, for services that collect logs: `--log_format=json`.

Owns: what an object holds; that text which anything prints becomes objects, a line each, and that objects of several
processes become one stream. Does not own: what is printed (`console.py`, `cli/terminal.py`). What a library writes in
C, past Python's streams, stays text; where `launch local` reads the output of a process, that is an object too.
"""

from __future__ import annotations

import datetime
import io
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

from official_trainer.tracking.jsonl import strict

_JOB = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "JOBSET_NAME", "JOB_COMPLETION_INDEX")
"""What names a job and the place of a process in it; `distributed/environment.py` reads the same."""


class JsonLines(io.TextIOBase):
    """A text stream whose lines are written as objects with `time`, `level`, `message` and the facts of the process.

    It is no terminal and has no descriptor, so no bar is drawn on it, and nothing is written past it. What cannot be
    written is dropped.

    Args:
      stream: gets the lines.
      facts: are in each object; shared by the streams of a process.
    """

    def __init__(self, stream: TextIO, facts: dict[str, Any]) -> None:
        self.stream, self.facts = stream, facts
        self._lock = threading.RLock()  # a signal handler may interrupt a write
        self._unfinished = threading.local()  # threads do not mix their texts

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._unfinished.text = f"{getattr(self._unfinished, 'text', '')}{text}".split("\n")
        for line in lines:
            if line.strip():
                self.record("info", line.rpartition("\r")[2])
        return len(text)

    def line(self, level: str, message: str, **fields: Any) -> str:
        """Returns an object as a line, without its end."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        return json.dumps(strict({"time": now, "level": level, **self.facts, "message": message, **fields}))

    def record(self, level: str, message: str, **fields: Any) -> None:
        """Writes an object.

        Args:
          level: `info`, `warning` or `error`.
          message: any number of lines.
          **fields: what else it holds.
        """
        self._put(self.line(level, message, **fields))

    def relay(self, line: str, worker: str) -> None:
        """Writes a line that another process has printed, as its object with its name, or as a message."""
        try:
            found = json.loads(line)
            if not isinstance(found, dict) or not {"time", "message"} <= found.keys():
                raise ValueError("no object of this class")
        except (ValueError, RecursionError):
            if line.strip():
                self.record("info", line, worker=worker)
        else:
            self._put(json.dumps(strict({**found, "worker": worker})))

    def _put(self, line: str) -> None:
        with self._lock:
            try:
                self.stream.write(f"{line}\n")
                self.stream.flush()
            except (OSError, ValueError):  # its reader has gone
                pass

    def end(self) -> None:
        """Writes a line that has no end yet."""
        if getattr(self._unfinished, "text", ""):
            self.write("\n")


def start(*, only_errors: bool = False) -> None:
    """Has stderr, and unless `only_errors` stdout, written as JSON from here on."""
    facts: dict[str, Any] = {}
    if job := {name.lower(): os.environ[name] for name in _JOB if os.environ.get(name)}:
        facts["job"] = job
    sys.stderr = JsonLines(sys.stderr, facts)
    if not only_errors:
        sys.stdout = JsonLines(sys.stdout, facts)


def end(*, gives_back: bool) -> None:
    """Writes what has no end of a line yet; `gives_back` has the streams write text again."""
    for name in ("stdout", "stderr"):
        if (stream := of(getattr(sys, name))) is not None:
            stream.end()
            if gives_back:
                setattr(sys, name, stream.stream)


def of(stream: Any) -> JsonLines | None:
    """Returns a stream that writes JSON as what it is; None for another one."""
    return stream if isinstance(stream, JsonLines) else None


def relay_of(stream: Any) -> Callable[[str, str], None] | None:
    """Returns what writes the lines of other processes to a stream as JSON; None for a stream of text."""
    return stream.relay if isinstance(stream, JsonLines) else None


def note(**facts: Any) -> None:
    """Has each object from here on hold facts, such as `run`, `phase` and `step`; None changes nothing."""
    if (stream := of(sys.stderr)) is not None:
        stream.facts.update({name: value for name, value in facts.items() if value is not None})
