"""The contract of kills: a process is struck anywhere and started again, and ends with what an unbroken one ends with.

A `Case` says what runs, where it lies and how two folders are compared. A strike (`Change`, `Part`, `Step`,
`Instant`) says where a process is struck, and by which signal. `check` strikes and compares. The unbroken run of a case
is made once for all processes of a pytest (`Shared`).
"""

import dataclasses
import errno
import fcntl
import functools
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from official_trainer.errors import ExitCode
from tests.support.chaos import compare, disk, inside
from tests.support.chaos.run_directory import RunDirectory
from tests.support.forked import Child

RUN = "run"
"""Where, in its folder, each case leaves everything."""

CHANGES = "changes"
"""Where, in its folder, a run that counts its changes on disk leaves their names."""

TRIES = 20
"""An instant may come after the end of the run."""


@dataclasses.dataclass(frozen=True)
class Case:
    """Something that is killed.

    Attributes:
      name: for people, and for the folder of the unbroken run.
      start: `start(shared, folder, *sets, first=None)` starts a process that works in `folder/run`, with more settings
        than the unbroken one, after it has called `first`.
      compare: `compare(run, unbroken run)` returns `{kind: what differs}`.
      directory: what is true of `folder/run` after each strike.
      ended: `ended(shared, folder)` asserts what more is true at the end.
    """

    name: str
    start: Callable[..., Child]
    compare: Callable[[Path, Path], dict[str, Any]] = compare.differences
    directory: type = RunDirectory
    ended: Callable[["Shared", Path], None] = lambda shared, folder: None

    def __str__(self):
        return self.name


@dataclasses.dataclass(frozen=True)
class Unbroken:
    """A run from its beginning to its end.

    Attributes:
      folder: where it lies.
      seconds: how long it took.
      changes: how many changes on disk below `run` it took.
    """

    folder: Path
    seconds: float
    changes: int

    @property
    def model_dir(self):
        return self.folder / RUN


class Shared:
    """A folder that all processes of one pytest share, with what each of them may need, made once."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def made(self, name, make):
        """Returns the folder `name`, which `make(folder)` has filled, here or in another process."""
        folder, done = self.folder / name, self.folder / f"{name}.done"
        with open(self.folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    def unbroken(self, case):
        """Returns the unbroken run of a case."""
        folder = self.made(f"unbroken-{case.name}", functools.partial(self._run, case))
        return Unbroken(folder, **json.loads((folder / "unbroken.json").read_text()))

    def _run(self, case, folder):
        log = folder / CHANGES
        log.touch()
        first = functools.partial(disk.arm, str(folder / RUN), log=str(log))
        child = case.start(self, folder, first=first if disk.is_there() else None)
        start = time.monotonic()  # not before, as `start` makes what the case needs
        completed = child.wait()
        assert completed.code == 0, completed.err
        found = {"seconds": time.monotonic() - start, "changes": len(log.read_text().splitlines())}
        (folder / "unbroken.json").write_text(json.dumps(found))

    def struck(self, case, strike, *sets):
        """Returns a folder with a run that was struck, which is to be copied."""

        def make(folder):
            assert Broken(self, case, folder, sets).is_struck(strike)

        return self.made(f"struck-{case.name}", make)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strike:
    """Where a process is struck.

    Attributes:
      by: the signal.
      leaves: the newest checkpoint (or how many shards there are) afterwards; None if it may be any.
      gains: whether that has to be more than before, and less than at the end.
      saves: whether a process that is asked to stop saves; else the signal ends it.
    """

    by: int = signal.SIGKILL
    leaves: int | None = None
    gains: bool = False
    saves: bool = True

    def first(self, run: Path, unbroken: Unbroken) -> Callable[[], None] | None:
        """Returns what the process calls before anything else."""

    def hit(self, process: Any, unbroken: Unbroken) -> None:
        """Strikes from outside, if that is how."""

    def sooner(self) -> "Strike":
        """Returns what strikes a run that had ended before it was struck."""
        return self

    def check_said(self, err: str) -> None:
        """Asserts what a process that was struck has said."""

    @property
    def code(self):
        """What the process ends with."""
        if self.by == signal.SIGKILL:
            return -self.by
        if self.saves:
            return ExitCode.PREEMPTED
        return 128 + self.by if self.by == signal.SIGINT else -self.by


@dataclasses.dataclass(frozen=True)
class Change(Strike):
    """Just before the change below `run` that has this number, from 1, of all threads and of TensorFlow's C++ code."""

    number: int

    def first(self, run, unbroken):
        return self._armed(run, -self.by)

    def _armed(self, run, fault, **options):
        disk.require()
        return functools.partial(disk.arm, str(run), self.number, fault, log=run.with_name(CHANGES), **options)


@dataclasses.dataclass(frozen=True)
class FullDisk(Change):
    """From that change on there is no space left."""

    code = ExitCode.RETRY

    def first(self, run, unbroken):
        return self._armed(run, errno.ENOSPC, lasts=True)

    def check_said(self, err):
        assert "Traceback" not in err, err
        assert re.search(r"^error: .*No space left on device\. Free some space", err, flags=re.MULTILINE), err


@dataclasses.dataclass(frozen=True)
class Part(Strike):
    """Just before a change below `run`, at a part, from 0 to 1, of all that an unbroken run makes there."""

    part: float

    def first(self, run, unbroken):
        number = min(1 + int(self.part * unbroken.changes), unbroken.changes)
        return Change(number, by=self.by).first(run, unbroken)


@dataclasses.dataclass(frozen=True)
class Instant(Strike):
    """At a part of the time that an unbroken run takes."""

    part: float

    def hit(self, process, unbroken):
        process.join(self.part * unbroken.seconds)
        if process.is_alive():
            os.kill(process.pid, self.by)

    def sooner(self):
        return dataclasses.replace(self, part=self.part * 0.8)  # the unbroken run was timed on a busier machine


@dataclasses.dataclass(frozen=True)
class Step(Strike):
    """As the window of steps ends that has this one."""

    step: int

    def first(self, run, unbroken):
        return functools.partial(inside.strike_at_step, self.step, self.by)


@dataclasses.dataclass(frozen=True)
class Phase(Strike):
    """So many seconds after the process enters a phase for the first time."""

    phase: str
    seconds: float = 0.0

    def first(self, run, unbroken):
        return functools.partial(inside.stop_in_phase, self.phase, self.seconds, self.by)


class Broken:
    """A run that is struck, in `folder`.

    Args:
      shared: where the unbroken run is.
      case: what runs.
      folder: where.
      sets: settings of this run that the unbroken one does not have.
      unbroken: the unbroken run, if it is not that of the case.
    """

    def __init__(self, shared, case, folder, sets=(), unbroken=None):
        self._shared, self._case, self._folder, self._sets = shared, case, Path(folder), sets
        self._unbroken = unbroken or shared.unbroken(case)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._run = self._folder / RUN
        self._directory = case.directory(self._run, self._unbroken.model_dir)
        print(f"{case} in {folder} {' '.join(sets)}")

    def is_struck(self, strike):
        """Starts the run and strikes; returns whether it was struck before its end."""
        before = self._directory.newest()
        child, completed = self._start(strike)
        if completed.code == 0:
            return False
        assert completed.code == strike.code, completed
        strike.check_said(completed.err)
        phase, newest = self._directory.phase(child.process.pid), self._directory.newest()
        print(f"  struck by {strike}: {phase}, newest {newest}")
        if completed.code == ExitCode.PREEMPTED:
            self._directory.check_stopped()
        assert strike.leaves in (None, newest)
        if strike.gains:
            end = self._case.directory(self._unbroken.model_dir, self._unbroken.model_dir).newest()
            assert before < newest < end
        return True

    def damage_newest(self, count):
        """Damages the newest checkpoints, so that the next start continues from an older one."""
        newest = self._directory.newest()
        self._directory.damage_newest(count)
        assert 0 < self._directory.newest() < newest

    def finish(self, first=None):
        """Starts the run, which reaches its end."""
        _, completed = self._start(Strike(), first)
        assert completed.code == 0, completed.err

    def differences(self):
        """Returns how this run differs from the unbroken one."""
        return self._case.compare(self._run, self._unbroken.model_dir)

    def check_end(self):
        """The run has ended, and with what the unbroken one has ended with."""
        found = self.differences()
        assert not found, "\n".join(f"{kind}: {text}" for kind, texts in found.items() for text in texts)
        self._case.ended(self._shared, self._folder)
        shutil.rmtree(self._folder)

    def _start(self, strike, first=None):
        before = self._directory.newest()
        first = first or strike.first(self._run, self._unbroken)
        child = self._case.start(self._shared, self._folder, *self._sets, first=first)
        strike.hit(child.process, self._unbroken)
        completed = child.wait()
        self._directory.check(before, child.process.pid)
        if completed.code == 0 and before:
            assert self._directory.says(before) in completed.out + completed.err
        return child, completed


def check(shared, case, strikes: Sequence[Strike], folder, sets=()):
    """Strikes runs of a case, until each strike has struck; whenever one ends, it has to be as the unbroken one."""
    trials = (Broken(shared, case, Path(folder) / f"trial-{number}", sets) for number in range(TRIES))
    broken = next(trials)
    for strike in strikes:
        while not broken.is_struck(strike):
            assert not strike.gains, "it went on to its end"
            broken.check_end()
            broken, strike = next(trials), strike.sooner()
    broken.finish()
    broken.check_end()
