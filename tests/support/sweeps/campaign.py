"""The contract of sweeps: whatever is struck, the same command again ends with what an unbroken sweep ends with.

A `Study` says which sweep, and a strike (`DriverChange`, `TrialChange`, `Instant`) what is struck, where and by which
signal. `Struck` is a sweep that is struck, and compares. Goes by processes and files on disk alone.
"""

import dataclasses
import errno
import functools
import json
import os
import random
import re
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.errors import ExitCode
from tests import ROOT
from tests.support import runs
from tests.support.chaos import disk
from tests.support.sweeps.processes import Driver, command, left_in, script, wait_until_gone

OUT = "out"
"""The directory of the sweep, in its folder."""

WORKSPACE = ROOT / "tests" / "support" / "sweeps" / "workspace"
_ENDS = (ExitCode.PREEMPTED, ExitCode.RETRY)
_POLL_SECONDS = 0.01


@dataclasses.dataclass(frozen=True)
class Study:
    """A sweep that is struck.

    Attributes:
      name: for people, and for the folder of the unbroken one.
      files: name → text, beside the workspace.
      words: of the command; or of a script, if the first ends with `.py`.
      trials: how many are asked for.
      drivers: how many work on it.
      is_exact: whether its records depend on nothing but its seed; else on which trials ended first, too.
    """

    name: str
    words: Sequence[str]
    trials: int
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    drivers: int = 1
    is_exact: bool = True

    def __str__(self):
        return self.name

    def prepare(self, folder):
        shutil.copytree(WORKSPACE, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        for name, text in self.files.items():
            (folder / name).write_text(text)

    @property
    def target(self):
        return script(*self.words) if self.words[0].endswith(".py") else command(*self.words)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strike:
    """Where something is struck."""

    def first(self, directory: Path, log: Path):
        """Returns what the first driver calls before anything else."""

    @property
    def trials(self):
        """(trial, change, fault) for `Driver`."""
        return ()

    def hit(self, drivers: Sequence[Driver]) -> str:
        """Strikes from outside, if that is how; returns what it struck, empty for nothing."""
        return ""


@dataclasses.dataclass(frozen=True)
class DriverChange(Strike):
    """The first driver, just before a change below the sweep's directory: the `number`-th whose name has `only`."""

    number: int
    fault: int = -signal.SIGKILL
    only: str = ""

    def first(self, directory, log):
        options = {"lasts": self.fault > 0, "log": str(log), "only": self.only}
        return functools.partial(disk.arm, str(directory), self.number, self.fault, **options)


@dataclasses.dataclass(frozen=True)
class TrialChanges(Strike):
    """The first processes of trials, each just before a change below its run directory: (trial, number of change)."""

    changes: tuple[tuple[int, int], ...]
    fault: int = -signal.SIGKILL

    @property
    def trials(self):
        return tuple((trial, change, self.fault) for trial, change in self.changes)


@dataclasses.dataclass(frozen=True)
class Instant(Strike):
    """After `seconds`: `driver`, `starter`, `trial`, `all`; `later` seconds later SIGKILL strikes the driver."""

    seconds: float
    what: str = "driver"
    by: int = signal.SIGKILL
    later: float | None = None

    def hit(self, drivers):
        _wait(drivers, self.seconds)
        driver = drivers[0]
        pids = {
            "driver": [driver.process.pid],
            "starter": [driver.starter],
            "trial": driver.trials[-1:],
            "all": [driver.process.pid, *driver.trials, driver.starter],
            "drivers": [each.process.pid for each in drivers],
        }[self.what]
        struck = [_kill(pid, self.by) for pid in pids if pid]
        name = signal.Signals(self.by).name
        if self.later is not None and any(struck):
            _wait(drivers[:1], self.later)
            name += " then SIGKILL" if _kill(driver.process.pid, signal.SIGKILL) else ""
        return f"{self.what} by {name}" if any(struck) else ""


def _wait(drivers, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(each.process.is_alive() for each in drivers):
        time.sleep(_POLL_SECONDS)


def _kill(pid, by):
    try:
        os.kill(pid, by)
    except ProcessLookupError:
        return False
    return True


@dataclasses.dataclass
class Snapshot:
    """What there is of each trial while nothing runs."""

    ended: dict[str, bytes]
    outputs: dict[str, bytes]
    newest: dict[str, int]


class Struck:
    """A sweep in `folder`, which is struck.

    Attributes:
      counts: what was struck → how often.
      is_same: whether it has ended, as an unbroken one.
    """

    def __init__(self, study: Study, folder: Path) -> None:
        self.study, self.folder = study, Path(folder)
        self.folder.mkdir(parents=True)
        self.folder = self.folder.resolve()
        study.prepare(self.folder)
        self.directory = self.folder / OUT
        self.counts: dict[str, int] = {}
        self.is_same = False
        self._attempt = 0

    def run(self, strike: Strike | None = None) -> bool:
        """Gives the command, strikes, and waits for the end of all; returns whether the sweep is done."""
        before, attempt = self.snapshot(), self._attempt
        strike, self._attempt = strike or Strike(), attempt + 1
        log = self.folder / f"changes-{attempt}"
        drivers = [
            Driver(
                self.study.target,
                self.folder,
                f"driver-{attempt}-{number}",
                first=strike.first(self.directory, log) if number == 0 else None,
                trials=strike.trials if number == 0 else (),
            )
            for number in range(self.study.drivers)
        ]
        what = strike.hit(drivers)
        ends = [each.wait() for each in drivers]
        wait_until_gone(self.folder)
        self._count(strike, what, log, attempt)
        for end in ends:
            assert end.code in (0, -signal.SIGKILL, *_ENDS), end
            assert "Traceback" not in end.err, end.err
        self.check_kept(before)
        return all(end.code == 0 for end in ends)

    def strike(self, strike: Strike) -> None:
        """Strikes, which has to strike before the sweep is done, or as it is."""
        before = sum(self.counts.values())
        self.run(strike)
        assert sum(self.counts.values()) > before, f"not struck by {strike}"

    def finish(self) -> None:
        """Gives the command again, which reaches the end."""
        assert self.run(), f"not done: {[each.read_text() for each in sorted(self.folder.glob('driver-*/*.txt'))]}"

    def _count(self, strike, what, log, attempt):
        found = [what] if what else []
        if isinstance(strike, DriverChange):
            lines = log.read_text().splitlines() if log.exists() else []
            if 0 < strike.number <= len(lines):
                found.append(f"driver {_fault(strike.fault)} before {kind_of(lines[strike.number - 1])}")
        for number, change, fault in strike.trials:
            log = self.folder / f"driver-{attempt}-0" / f"trial-{number}"
            lines = log.read_text().splitlines() if log.exists() else []
            if len(lines) >= change:
                found.append(f"trial {_fault(fault)} before {kind_of(lines[change - 1])}")
        for each in found:
            self.counts[each] = self.counts.get(each, 0) + 1

    def snapshot(self) -> Snapshot:
        """Returns what is there."""
        found = Snapshot({}, {}, {})
        for place in self.directory.glob("trials/*"):
            record = place / "trial.json"
            content = record.read_bytes() if record.exists() else b""
            if content and json.loads(content)["state"]:
                found.ended[place.name] = content
            output = place / "output.log"
            found.outputs[place.name] = output.read_bytes() if output.exists() else b""
            found.newest[place.name] = max(committed_steps(str(place / "run")), default=0)
        return found

    def check_kept(self, before: Snapshot) -> None:
        """What has ended stays as it was, and is not started again; what was saved is continued."""
        now = self.snapshot()
        for name, content in before.ended.items():
            assert now.ended.get(name) == content, f"the record of trial {name} changed"
            assert now.outputs[name] == before.outputs[name], f"trial {name} had ended, and was started again"
        for name, step in before.newest.items():
            if name in now.ended:  # whose weights a population may remove
                continue
            assert now.newest.get(name, 0) >= step, f"trial {name} lost its checkpoint {step}"
            said = now.outputs[name][len(before.outputs[name]) :].decode()
            first = next((line for line in said.splitlines() if re.search(r"in out/trials/\d+/run$", line)), "")
            assert step == 0 or "starting" not in first, f"trial {name} began at step 0, not {step}: {said}"

    def check_end(self, unbroken: "Struck") -> None:
        """It has ended as the unbroken one."""
        records = [json.loads(path.read_text()) for path in self.directory.glob("trials/*/trial.json")]
        assert all(each["state"] for each in records), records
        assert sum(each["state"] in ("complete", "pruned") for each in records) == self.study.trials, records
        assert sorted(each["number"] for each in records) == list(range(len(records)))
        assert not [*self.folder.rglob(".*.json")], "a lock is left"
        assert not left_in(self.folder)
        assert (self.directory / "sweep.json").read_bytes() == (unbroken.directory / "sweep.json").read_bytes()
        assert _names(self.directory) == _names(unbroken.directory) or not self.study.is_exact
        if self.study.is_exact:
            self._check_same(unbroken, records)
        self.is_same = True

    def _check_same(self, unbroken, records):
        for each in records:
            place = Path("trials", str(each["number"]))
            ours, theirs = (sweep.directory / place for sweep in (self, unbroken))
            # without: trials that had not ended when it was drawn, which is not the same twice if several run
            recorded = [json.loads((place / "trial.json").read_text()) | {"without": []} for place in (ours, theirs)]
            assert recorded[0] == recorded[1]
            if each["state"] == "complete":
                assert _differences(str(ours / "run"), str(theirs / "run")) == []


def _differences(ours, theirs):
    if not committed_steps(ours) and not committed_steps(theirs):  # a population removes weights that it needs no more
        return [row for row in runs.rows(ours) if row not in runs.rows(theirs)]
    return runs.differences(ours, theirs)


def _fault(fault):
    return signal.Signals(-fault).name if fault < 0 else errno.errorcode[fault]


def kind_of(line: str) -> str:
    """Returns a change on disk without numbers and random parts."""
    return re.sub(r"\d+", "N", re.sub(r"\.tmp-\S+", ".tmp", line)).strip()


def _names(directory: Path) -> Any:
    """Returns the names in the directory of a sweep, but for those in the runs."""
    places = [directory, directory / "trials", *directory.glob("trials/*")]
    return sorted(str(path.relative_to(directory)) for place in places for path in place.iterdir())


def unbroken(study: Study, folder: Path) -> Struck:
    """Returns a sweep from its beginning to its end, with the changes of its driver in `changes`."""
    found = Struck(study, folder)
    assert found.run(DriverChange(0)), [path.read_text() for path in found.folder.glob("driver-*/*.txt")]
    return found


def changes_of(found: Struck) -> list[str]:
    """Returns the changes of the driver of an unbroken sweep, in their order."""
    return (found.folder / "changes-0").read_text().splitlines()


_MOST_CHANGES_OF_A_RUN = 260


def drawn(chance: random.Random, study: Study, whole: Struck, seconds: float) -> Strike:
    """Returns a strike, at random.

    Args:
      chance: decides.
      study: what is struck.
      whole: the unbroken sweep.
      seconds: how long it took.
    """
    kinds = defaultdict(list)
    changes = changes_of(whole)
    for number, line in enumerate(changes, 1):
        kinds[kind_of(line)].append(number)
    number = chance.choice(kinds[chance.choice(sorted(kinds))])
    at = chance.uniform(0, seconds)
    in_trials = tuple((trial, chance.randrange(1, _MOST_CHANGES_OF_A_RUN)) for trial in range(study.trials))
    which = [
        (42, DriverChange(number)),
        (6, DriverChange(number, errno.ENOSPC)),
        (18, Instant(at, chance.choice(["driver", "starter", "trial", "all", "drivers"]))),
        (5, Instant(at, chance.choice(["driver", "drivers", "trial"]), chance.choice([signal.SIGTERM, signal.SIGINT]))),
        (6, Instant(at, "driver", signal.SIGTERM, chance.uniform(0, 1))),
        (17, TrialChanges(in_trials)),
        (6, TrialChanges(in_trials, errno.ENOSPC)),
    ]
    return chance.choices([strike for _, strike in which], [weight for weight, _ in which])[0]
