"""Runs and jobs as they stand now, looked at again and again for the cost of what has changed.

Owns: which files are read again; speed, loss and goodput from the newest rows of `metrics.jsonl`; how a run or a job is
asked to stop. Does not own: finding and reading a run (`runs/recorded.py`), jobs (`launches.py`, `schedulers.py`), what
is drawn (`top.py`). Imports no TensorFlow, and writes nothing.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import glob
import json
import math
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from official_trainer import files
from official_trainer.launch import launches, schedulers
from official_trainer.launch.launches import Record
from official_trainer.runs import recorded
from official_trainer.runs.recorded import RecordedRun
from official_trainer.tracking import jsonl, monitored

ROWS = "metrics.jsonl"
SILENT_SECONDS = 60.0
"""A run that wrote nothing for longer is shown with how long: while it trains it writes each second or two."""

_FIRST_BYTES, _NEXT_BYTES = 1 << 16, 1 << 20  # of a file that is seen first, and at most each time after that
_MOST_LOSSES, _MOST_POINTS, _MOST_LINES = 512, 64, 200
_ASK_SECONDS = 10.0  # how often schedulers are asked, and how long each may take
_SPLITS = (b'"split": "train"', b'"split": "time"')
_FILES = (files.RUN_FILE, files.STATUS_FILE, files.PARAMS_FILE)
_CHANGING = ("running", "died")  # by the clock alone, also while no file changes


class Rows:
    """The newest numbers of a run, from its `metrics.jsonl`, of which each byte is read once.

    Attributes:
      losses: of training, the newest last; of a long history every other one.
      goodput: how much of the time of these rows was spent in steps; None without a row that says it.
    """

    def __init__(self, directory: str) -> None:
        self._path = files.join(directory, ROWS)
        self._begin(0, 0)

    def _begin(self, inode: int, offset: int) -> None:
        self._inode, self._offset = inode, offset
        self._points: collections.deque[tuple[float, int]] = collections.deque(maxlen=_MOST_POINTS)
        self._in_steps = self._wall = 0.0
        self.losses: list[float] = []

    @property
    def goodput(self) -> float | None:
        return self._in_steps / self._wall if self._wall > 0 else None

    def left_seconds(self, run: RecordedRun) -> float | None:
        """Returns how long the steps that are left take at the speed of the newest; None where that is not known."""
        if run.status != "running" or run.end_step is None or len(self._points) < 2:
            return None
        (first, start), (last, step) = self._points[0], self._points[-1]
        left = (run.end_step - step) * (last - first) / (step - start)
        return max(0.0, left) if left < recorded.LONGEST_SECONDS else None

    def update(self, run: RecordedRun) -> None:
        """Reads what is new. A file that was replaced, as a restart does, is read again; half a line waits."""
        for row in self._new_rows():
            if row.get("split") == "time":
                steps, wall = (_number(row.get(f"{name}_seconds")) for name in ("steps", "wall"))
                if 0 <= steps <= wall < recorded.LONGEST_SECONDS:  # of a damaged file it may be anything
                    self._in_steps, self._wall = self._in_steps + steps, self._wall + wall
                continue
            name = next((name for name in ("training_loss", "loss", *row) if name in row and name.endswith("loss")), "")
            if name:
                self.losses.append(_number(row[name], math.nan))
            if len(self.losses) > _MOST_LOSSES:
                del self.losses[::2]
            self._point(_number(row.get("time")), row.get("step"))
        self._point(_seconds(run.process.get("updated")), run.process.get("step"))
        since = _seconds(run.record.get("restarted") or run.record.get("started"))
        while self._points and self._points[0][0] < since:  # no time between two processes is a step's
            self._points.popleft()

    def _point(self, seconds: float, step: Any) -> None:
        last = self._points[-1] if self._points else (-1.0, -1)
        if recorded.is_step(step) and step > last[1] and last[0] < seconds < recorded.LONGEST_SECONDS:
            self._points.append((seconds, step))

    def _new_rows(self) -> Iterator[dict[str, Any]]:
        try:
            stat = os.stat(self._path)
            if stat.st_ino != self._inode or stat.st_size < self._offset:
                self._begin(stat.st_ino, max(0, stat.st_size - _FIRST_BYTES))
            if stat.st_size == self._offset:
                return
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read(_NEXT_BYTES)
        except OSError:  # it is not there yet, or not any more
            return
        end = data.rfind(b"\n") + 1
        self._offset += end or (len(data) if len(data) == _NEXT_BYTES else 0)
        for line in data[:end].split(b"\n"):
            if any(split in line for split in _SPLITS):
                with contextlib.suppress(ValueError, RecursionError):
                    if isinstance(row := json.loads(line), dict):
                        yield row


@dataclasses.dataclass(frozen=True)
class Watched:
    """A run, or a job with its run, at one moment.

    Attributes:
      name: beside the others.
      run: what its files say; one without a step where the run directory cannot be seen from here.
      rows: its newest numbers.
      left_seconds: until its last step; None where that is not known.
      state: of the job, in the scheduler's word; empty for a run by itself.
      job: its record; None for a run by itself.
    """

    name: str
    run: RecordedRun
    rows: Rows
    left_seconds: float | None = None
    state: str = ""
    job: Record | None = None

    @property
    def host(self) -> str:
        """The machine of its newest process; empty if that is not known."""
        return str(self.run.process.get("host") or "")

    def silent_seconds(self, now_seconds: float) -> float:
        """Returns how long a run that goes on has recorded nothing; 0 for another one."""
        updated = _seconds(self.run.process.get("updated"))
        return max(0.0, now_seconds - updated) if self.run.status == "running" and updated else 0.0


class Watcher:
    """Looks at the runs below a folder, or at the jobs of a workspace.

    Args:
      directory: the folder; of jobs, the workspace.
      of_jobs: whether it looks at jobs.
    """

    def __init__(self, directory: str, *, of_jobs: bool = False) -> None:
        self.directory, self.of_jobs = directory, of_jobs
        self._known: dict[str, tuple[list[Any], RecordedRun]] = {}
        self._rows: dict[str, Rows] = {}
        self._states: dict[str, str] = {}
        self._asked_at = -math.inf

    def look(self, now_seconds: float) -> list[Watched]:
        """Returns all there is now.

        Raises:
          OSError: the folder cannot be listed.
        """
        if self.of_jobs:
            return list(self._jobs(now_seconds))
        found = recorded.find(self.directory, now_seconds=now_seconds, open_run=self._open)
        found = [run for run in found if run.status not in ("empty", "no run")]
        paths = {run.directory for run in found}
        self._known = {path: known for path, known in self._known.items() if path in paths}
        self._rows = {path: rows for path, rows in self._rows.items() if path in paths}
        whole = os.path.basename(os.path.abspath(self.directory))
        names = (os.path.relpath(run.directory, self.directory) for run in found)
        return [self._watched(whole if name == "." else name, run) for name, run in zip(names, found, strict=True)]

    def _jobs(self, now_seconds: float) -> Iterator[Watched]:
        records, _ = launches.read_all(self.directory)
        if now_seconds - self._asked_at >= _ASK_SECONDS or {each.name for each in records} - self._states.keys():
            states = schedulers.states_of(records, self.directory, _ASK_SECONDS) if records else []
            words = (each.text if each.phase is not schedulers.Phase.UNKNOWN else "unknown" for each in states)
            self._states = {record.name: word for record, word in zip(records, words, strict=True)}
            self._asked_at = now_seconds
        for record in records:
            run = RecordedRun(directory=record.model_dir, status="no run")
            if not files.is_url(record.model_dir) and os.path.isdir(record.model_dir):
                run = self._open(record.model_dir, now_seconds=now_seconds)
            yield self._watched(record.name, run, state=self._states.get(record.name, ""), job=record)

    def _open(self, directory: str, *, now_seconds: float) -> RecordedRun:
        """Reads a run whose files have changed, and gives a known one otherwise."""
        seen: list[Any] = []
        for name in _FILES:
            try:
                stat = os.stat(files.join(directory, name))
                seen.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
            except OSError:
                seen.append(None)
        before, run = self._known.get(directory, ([], None))
        if run is None or before != seen or run.status in _CHANGING:
            run = recorded.read(directory, now_seconds=now_seconds)
            self._known[directory] = (seen, run)
        return run

    def _watched(self, name: str, run: RecordedRun, **job: Any) -> Watched:
        rows = self._rows.setdefault(run.directory, Rows(run.directory))
        rows.update(run)
        return Watched(name, run, rows, rows.left_seconds(run), **job)

    def stop(self, each: Watched) -> str:
        """Asks a run to save and end, as Ctrl-C does, or a scheduler to end a job; returns what came of it."""
        if each.job is not None:
            folder = os.path.join(self.directory, launches.FOLDER, each.name)
            target = launches.target_of(each.job)
            for argv in target.cancel(each.job.id):
                done = schedulers.run_detached(target, argv, folder, _ASK_SECONDS)
                if done.returncode:
                    return f"{schedulers.shown(argv)} failed: {done.stderr.strip()}"
            return f"{each.job.target} was asked to end {each.name}"
        run = recorded.read(each.run.directory, now_seconds=time.time())  # its process may have ended meanwhile
        pid, host = run.process.get("pid"), run.process.get("host")
        if run.status != "running" or not isinstance(pid, int):
            return f"{each.name} does not run: {run.status}"
        if host != socket.gethostname():
            return f"{each.name} runs on {host}; there: kill -TERM {pid}"
        try:
            os.kill(pid, signal.SIGTERM)
        except OSError as error:
            return f"process {pid} cannot be asked: {files.reason_of(error)}"
        return f"{each.name} was asked to stop: SIGTERM to process {pid}"


def log_of(each: Watched, folder: str) -> str:
    """Returns what a job or a run has printed last, or where there is no file of that, what it has recorded.

    Args:
      each: the run or job.
      folder: the workspace of a job.
    """
    if each.job is not None:
        target, place = launches.target_of(each.job), os.path.join(folder, launches.FOLDER, each.name)
        done = schedulers.run_detached(target, target.logs(each.job.id, follow=False), place, _ASK_SECONDS)
        return (done.stdout + done.stderr)[-_FIRST_BYTES:]
    directory = each.run.directory
    patterns = ("../output.log", "*.log", "commands/*.log", "stall-*.txt")
    found = [path for pattern in patterns for path in glob.glob(files.join(glob.escape(directory), pattern))]
    parts = [text for text in (str(each.run.record.get("error") or ""), *each.run.notes) if text]
    for path in sorted(found, key=os.path.getmtime):
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - _FIRST_BYTES))
            parts.append(f"--- {os.path.relpath(path, directory)}\n{file.read().decode('utf-8', 'replace').rstrip()}")
    with contextlib.suppress(FileNotFoundError):
        rows = [row for row in jsonl.read_rows(files.join(directory, ROWS)) if row["split"] != "time"][-_MOST_LINES:]
        parts += [f"--- {ROWS}"] * bool(rows)
        parts += [f"{row['split']} @ {row['step']}: {monitored.show(jsonl.numbers_of(row))}" for row in rows]
    return "\n".join(parts) or "it has printed nothing to a file, and recorded nothing yet"


def counts(found: Sequence[Watched], what: str) -> str:
    """Returns how many there are of each status: `12 runs: 3 running, 9 done`; `what` is `run` or `job`."""
    total = f"{len(found)} {what}{'s' if len(found) != 1 else ''}"
    known = collections.Counter(each.run.status for each in found).most_common()
    return total + (": " + ", ".join(f"{count} {status}" for status, count in known) if known else "")


def _number(value: Any, default: float = 0.0) -> float:
    with contextlib.suppress(TypeError, ValueError):
        return float(value)
    return default


def _seconds(text: Any) -> float:
    with contextlib.suppress(TypeError, ValueError):
        return datetime.datetime.fromisoformat(text).timestamp()
    return 0.0
