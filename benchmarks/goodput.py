"""Goodput under fire: a job whose trainer gets SIGKILL again and again, and what is lost by that.

Owns: the sides, the segments that a measurement consists of, killing, and what is lost. Does not own: the job
(`goodput_job.py` and those beside it), what its notes say (`goodput_notes.py`).

A measurement takes an hour, so it is done in segments of at most eight minutes. Each call measures as many as fit into
ten minutes, and keeps them in a folder; the call that finds all of them there prints the tables. A segment begins at
the first step that its process makes, so that the start of a call does not count.

`python -m benchmarks.goodput FOLDER` tries all of it in a few minutes, with figures that mean little;
`python -m benchmarks.goodput CHECKPOINT CHECKPOINT` prints how many of their values differ.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import goodput_notes, processes, report
from benchmarks.report import Comparison, Target

FOLDER = "GOODPUT_FOLDER"
"""The variable that names the folder in which segments are kept."""

CALL_SECONDS, START_SECONDS = 570.0, 25.0
"""How long a call may take, and how long a segment takes beyond what it measures."""
STEP_SECONDS = 0.02
_LONGEST_START_SECONDS = 180.0
_STARTED = re.compile(r"started .*\(pid (\d+)\)")

OURS = "launch local --supervise"
GARDEN, GARDEN_SAVES = "Model Garden's driver, in a loop", "the same, a checkpoint every 50 steps"
KERAS = "fit and BackupAndRestore, in a loop"

LOSSES = {60: 5.0, 15: 15.0}
"""The most of its time, in percent, that a job may lose by a kill every so many seconds."""

_TRAIN = ("--import=benchmarks.goodput_ours", "--experiment=goodput", "--mode=train")
SIDES: dict[str, Callable[[Path], list[str]]] = {
    OURS: lambda run: ["official_trainer", "launch", "local", "--supervise", "--", *_TRAIN, f"--model_dir={run}"],
    GARDEN: lambda run: ["benchmarks.goodput_garden", str(run), "1000"],
    GARDEN_SAVES: lambda run: ["benchmarks.goodput_garden", str(run), "50"],
    KERAS: lambda run: ["benchmarks.goodput_job", str(run)],
}
"""The module and the arguments of each side, by its run directory. Model Garden's interval is its default."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of the measurement.

    Attributes:
      side: one of `SIDES`.
      every: seconds between two kills; 0 for none.
      seconds: how long it is.
      number: of several that are alike, from 0.
    """

    side: str
    every: int
    seconds: int
    number: int = 0

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{list(SIDES).index(self.side)}-{self.every}-{self.number}"

    @property
    def run(self) -> str:
        """The name of its run: all segments of ours continue one run, those of another side one for each interval."""
        return "ours" if self.side == OURS and self.every else f"{list(SIDES).index(self.side)}-{self.every}"


def planned(num_rounds: int) -> list[Segment]:
    """Returns all segments; of ours with a kill a minute there are `num_rounds`."""
    segments = [Segment(side=side, every=0, seconds=60) for side in SIDES]
    segments += [Segment(side=OURS, every=60, seconds=420, number=number) for number in range(num_rounds)]
    segments.append(Segment(side=OURS, every=15, seconds=300))
    for side in list(SIDES)[1:]:
        segments += [Segment(side=side, every=60, seconds=300), Segment(side=side, every=15, seconds=120)]
    return segments


TRIAL = [Segment(side=side, every=every, seconds=seconds) for side in SIDES for every, seconds in ((0, 15), (15, 45))]


# Jobs.


class _Supervised:
    """Our job, which its launcher starts again.

    Attributes:
      pid: of the trainer that was started last; None before the first.
    """

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self.pid: int | None = None
        self._log = log
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self._process = subprocess.Popen(argv, cwd=processes.ROOT, env=environ, **options)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._log.open("a") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                if match := _STARTED.search(line):
                    self.pid = int(match[1])

    @property
    def is_over(self) -> bool:
        """Whether it has ended and is not started again."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Ends it for now; it saves."""
        self._process.terminate()
        self._process.wait()
        self._thread.join()


class _Loop:
    """A command that is started again whenever it ends, as a loop of a shell does.

    Attributes:
      pid: of the process that was started last; None before the first.
    """

    is_over = False

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self.pid: int | None = None
        self._argv, self._environ, self._log = argv, environ, log
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._log.open("a") as log:
            while not self._is_stopped:
                options = {"stdout": log, "stderr": subprocess.STDOUT}
                self._process = subprocess.Popen(self._argv, cwd=processes.ROOT, env=self._environ, **options)
                self.pid = self._process.pid
                self._process.wait()

    def stop(self) -> None:
        """Ends it."""
        self._is_stopped = True
        self._process.kill()
        self._thread.join()


@contextlib.contextmanager
def _running(side: str, run: Path, notes: Path) -> Iterator[_Supervised | _Loop]:
    environ = {**processes.environment(), "GOODPUT_NOTES": str(notes), "GOODPUT_WAIT": str(STEP_SECONDS)}
    argv = [sys.executable, "-m", *SIDES[side](run)]
    job = (_Supervised if side == OURS else _Loop)(argv, environ, run.with_suffix(".log"))
    try:
        yield job
    finally:
        job.stop()


# Segments.


def measured(segment: Segment, folder: Path) -> dict[str, Any]:
    """Runs a job for a while, and kills it; returns what it did.

    Each kill is in the middle of its interval, so that all that it costs is in the segment.
    """
    notes = folder / f"{segment.run}.notes"
    before = goodput_notes.count_in(notes)
    with _running(segment.side, folder / segment.run, notes) as job:
        start = _next_note(notes, before, job)["seconds"]
        kills = []
        for number in range(segment.seconds // segment.every if segment.every else 0):
            _wait_until(start + (number + 0.5) * segment.every)
            kills.append(time.monotonic())
            if job.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(job.pid, signal.SIGKILL)
        end = start + segment.seconds
        _wait_until(end)
        made = goodput_notes.read(notes, before)
        while not (made["seconds"] > max(kills, default=0.0)).any():  # to know where it went on
            _next_note(notes, before + len(made), job)
            made = goodput_notes.read(notes, before)
    own = made["seconds"] <= end
    last = made[own][-1] if (made[own]["seconds"] > max(kills, default=0.0)).any() else made[~own][0]
    found = [each for kill in kills if (each := goodput_notes.after(made, kill)) is not None]
    return {
        "steps": int(last["step"]) + 1 - int(made[0]["step"]),
        "seconds": segment.seconds,
        "latencies": [latency for latency, _ in found],
        "repeated": [steps for _, steps in found],
    }


def _next_note(notes: Path, count: int, job: _Supervised | _Loop) -> Any:
    """Waits for note number `count`, and returns it."""
    deadline = time.monotonic() + _LONGEST_START_SECONDS
    while goodput_notes.count_in(notes) <= count:
        if job.is_over or time.monotonic() > deadline:
            raise RuntimeError(f"the job makes no step; {notes.with_suffix('.log')} says why")
        time.sleep(0.05)
    return goodput_notes.read(notes, count)[0]


def _wait_until(seconds: float) -> None:
    time.sleep(max(0.0, seconds - time.monotonic()))


def finished(folder: Path) -> dict[str, Any]:
    """Trains our job to a step, and another one to the same step without a kill; returns how many values differ."""
    notes = {name: folder / f"{name}.notes" for name in ("ours", "unbroken")}
    step = (int(goodput_notes.read(notes["ours"])[-1]["step"]) // 1000 + 1) * 1000
    for name, path in notes.items():
        words = [*_TRAIN, f"--model_dir={folder / name}", f"--until_step={step}"]
        environ = {**processes.environment(), "GOODPUT_NOTES": str(path)}
        argv = [sys.executable, "-m", "official_trainer", "train", *words]
        with (folder / f"{name}.log").open("a") as log:
            subprocess.run(argv, cwd=processes.ROOT, env=environ, stdout=log, stderr=log, check=True)
    argv = [sys.executable, "-m", "benchmarks.goodput", *(f"{folder / name}/ckpt-{step}" for name in notes)]
    done = subprocess.run(argv, cwd=processes.ROOT, env=processes.environment(), stdout=subprocess.PIPE, check=True)
    ours, unbroken = (goodput_notes.final_history(goodput_notes.read(path)) for path in notes.values())
    assert len(ours) == len(unbroken) == step, (len(ours), len(unbroken), step)
    others = (ours["ids"] != unbroken["ids"]).any(axis=1) | (ours["step"] != unbroken["step"])
    return {"step": step, "values": int(done.stdout), "examples": int(others.sum())}


def count_differing(left: str, right: str) -> int:
    """Returns how many of the values of two checkpoints are not the same, bit by bit."""
    import numpy as np
    import tensorflow as tf

    readers = [tf.train.load_checkpoint(path) for path in (left, right)]
    names = {name for reader in readers for name in reader.get_variable_to_shape_map()}
    pairs = (
        [reader.get_tensor(name) for reader in readers] for name in names if name != "_CHECKPOINTABLE_OBJECT_GRAPH"
    )
    return sum(np.asarray(one).tobytes() != np.asarray(other).tobytes() for one, other in pairs)


# All of it.


def compare(num_rounds: int, segments: Sequence[Segment] | None = None) -> list[Comparison]:
    """Measures what is missing, as much as fits into a call; returns the tables once all is there."""
    folder = Path(os.environ.get(FOLDER) or Path(tempfile.gettempdir(), "official-trainer-goodput"))
    folder.mkdir(parents=True, exist_ok=True)
    segments = planned(num_rounds) if segments is None else segments
    parts = [(each.name, each.seconds, lambda each=each: measured(each, folder)) for each in segments]
    parts.append(("finished", 240, lambda: finished(folder)))
    began = time.monotonic()
    missing = [part for part in parts if not (folder / f"{part[0]}.json").exists()]
    for place, (name, seconds, measure) in enumerate(missing):
        if place and time.monotonic() - began + seconds + START_SECONDS > CALL_SECONDS:
            left = sum(seconds + START_SECONDS for _, seconds, _ in missing[place:]) / 60
            print(f"goodput: {len(missing) - place} of {len(parts)} parts are missing, about {left:.0f} minutes; "
                  f"the same command goes on; {folder} has the others")  # fmt: skip
            return []
        found = json.dumps(measure())
        print(f"goodput: {name}: {found}", file=sys.stderr)
        (folder / f"{name}.json").write_text(found)
    print(f"goodput: all parts are in {folder}; remove it to measure anew")
    return tables(segments, {name: json.loads((folder / f"{name}.json").read_text()) for name, *_ in parts}, folder)


def tables(segments: Sequence[Segment], found: Mapping[str, Any], folder: Path) -> list[Comparison]:
    """Returns the tables of all parts."""
    speeds = {each.side: _speed(found[each.name]) for each in segments if not each.every}
    lost: dict[str, list[float]] = {}
    latencies: dict[str, list[float]] = {}
    repeated: dict[str, list[float]] = {}
    misread: dict[str, list[float]] = {}
    for each in (segment for segment in segments if segment.every):
        name, result = title(each.side, each.every), found[each.name]
        lost.setdefault(name, []).append(100 * (1 - _speed(result) / speeds[each.side]))
        latencies.setdefault(name, []).extend(result["latencies"])
        repeated.setdefault(name, []).extend(result["repeated"])
        history = goodput_notes.final_history(goodput_notes.read(folder / f"{each.run}.notes"))
        misread[name] = [goodput_notes.misread(history)]
    limits = {title(OURS, every): limit for every, limit in LOSSES.items()}
    promised = [Target(name=name, at_most=limit) for name, limit in limits.items() if name in lost]
    end, weights, examples = found["finished"], "weights and slots", "steps with other examples"
    same = {weights: [float(end["values"])], examples: [float(end["examples"])]}
    return [
        Comparison(title="time lost, of the same job left alone", unit="%", digits=1, values=lost, targets=promised),
        Comparison(title="from a kill to the next step", unit="s", digits=1, values=latencies, quartiles=True),
        Comparison(title="steps computed again after a kill", unit="steps", values=repeated, quartiles=True),
        Comparison(
            title="examples read twice or never in an epoch",
            unit="of 1,000",
            digits=1,
            values=misread,
            targets=[Target(name=name, at_most=0.0) for name in misread if name in limits],
        ),
        Comparison(
            title=f"what differs at step {end['step']:,} from the run that was not killed",
            unit="",
            values=same,
            targets=[Target(name=name, at_most=0.0) for name in same],
        ),
    ]


def title(side: str, every: int) -> str:
    """Returns how a side with such kills is called."""
    return f"{side}: a kill every {every} s"


def _speed(result: Mapping[str, Any]) -> float:
    return float(result["steps"] / result["seconds"])


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(count_differing(*sys.argv[1:]))
    else:
        os.environ[FOLDER] = sys.argv[1]
        while not (comparisons := compare(1, TRIAL)):
            pass
        report.print_text(comparisons)
