"""Sweeps that are struck anywhere: the same command again ends with what an unbroken sweep ends with, bit by bit.

Where and when is drawn from `--chaos-seed`. A driver, its starter or a trial is killed at an instant or just before one
of its changes on disk, is told to stop, or finds its disk full. A failure shows what was done, and its folder stays.
"""

import errno
import random
import shutil
import signal
import time

import pytest

from tests.support.chaos import disk
from tests.support.sweeps import campaign
from tests.support.sweeps.campaign import DriverChange, Instant, Struck, TrialChanges
from tests.support.sweeps.studies import STUDIES

MOMENTS = (
    "rename to sweep.json",
    "write check.log",
    "mkdir trials/0",
    "open trials/0/trial.json",
    "rename to trials/0/trial.json",
    "open trials/0/output.log",
    "write half of trials/0/trial.json",
    "remove trials/1/.lock.json",
    "open trials/2/.lock.json",
    "rename to trials/4/trial.json",
)
"""Of a driver: before the description, in the check, between a claim and its record, between an end and its record."""

STRIKES = {"SIGKILL": "kills", "SIGTERM": "SIGTERMs", "SIGINT": "Ctrl-Cs", "ENOSPC": "full_disks"}
"""As `Struck.counts` names them, and the table."""


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Returns an unbroken sweep of a study, made once, and how many seconds it took."""
    disk.require()
    found = {}

    def unbroken(name):
        if name not in found:
            start = time.monotonic()
            sweep = campaign.unbroken(STUDIES[name], tmp_path_factory.mktemp("unbroken") / name)
            found[name] = sweep, time.monotonic() - start
        return found[name]

    return unbroken


@pytest.fixture
def struck(record_property):
    """Makes sweeps to strike; what struck them is in the table that `tests/support/chaos/summary.py` prints."""
    made = []

    def struck(name, folder):
        made.append(Struck(STUDIES[name], folder))
        return made[-1]

    yield struck
    hits = {
        label: sum(count for sweep in made for what, count in sweep.counts.items() if word in what)
        for word, label in STRIKES.items()
    }
    record_property("chaos", {"sweeps": len(made), **hits, "mismatches": sum(not each.is_same for each in made)})


def check(sweep, unbroken):
    """The struck sweep ends as the unbroken one."""
    sweep.finish()
    sweep.check_end(unbroken)
    shutil.rmtree(sweep.folder)


def test_a_driver_is_killed_at_each_moment_of_a_trial(unbroken, struck, tmp_path):
    """N21: no trial is lost, done twice or different in a bit, and nothing is left of a driver that was killed."""
    whole, _ = unbroken("tpe")
    sweep = struck("tpe", tmp_path / "tpe")
    for name in MOMENTS:
        sweep.strike(DriverChange(1, only=name))
    check(sweep, whole)


def test_trials_their_starter_and_a_driver_that_saves_are_killed(unbroken, struck, tmp_path):
    """N21: of a function; each trial before a change on disk, then SIGKILL during SIGTERM's saving."""
    whole, seconds = unbroken("function")
    sweep = struck("function", tmp_path / "function")
    sweep.strike(Instant(seconds / 4, "starter"))
    sweep.strike(Instant(seconds / 4, "driver", signal.SIGTERM, later=0.1))
    sweep.strike(TrialChanges(tuple((number, 40 + 60 * number) for number in range(4))))
    check(sweep, whole)


@pytest.mark.full  # test_population.py kills a driver, and two finish the sweep; test_storage.py kills one of two
def test_drivers_that_share_a_sweep_are_killed(unbroken, struck, tmp_path):
    """N21: one of two, then both; they try the first trial once, and none works on a trial of the other."""
    whole, seconds = unbroken("two_join")
    sweep = struck("two_join", tmp_path / "two")
    sweep.strike(DriverChange(6, only="trials/"))  # a claim or a record: which trials are its own depends on time
    sweep.run(Instant(seconds / 2, "drivers"))
    check(sweep, whole)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["driver", "trial"])
def test_a_full_disk(kind, unbroken, struck, tmp_path):
    """N21: a driver ends with exit code 75 and one line; a trial of it continues by itself."""
    whole, _ = unbroken("tpe")
    # without locks: how often one is renewed depends on time, and each of these numbers has to be reached
    count = sum(".lock.json" not in change for change in campaign.changes_of(whole))
    for number in range(1, count, count // 12):
        sweep = struck("tpe", tmp_path / str(number))
        if kind == "driver":
            sweep.strike(DriverChange(number, errno.ENOSPC))
        else:
            sweep.strike(TrialChanges(((0, number), (1, number + 7)), errno.ENOSPC))
        check(sweep, whole)


@pytest.mark.full
@pytest.mark.parametrize("name", ["tpe", "experiment", "two_join"])
def test_a_driver_is_killed_before_each_kind_of_change(name, unbroken, struck, tmp_path):
    """N21: numbers and random parts of names left out."""
    whole, _ = unbroken(name)
    kinds = dict.fromkeys(map(campaign.kind_of, campaign.changes_of(whole)))
    sweep = struck(name, tmp_path / name)
    for number, kind in enumerate(kinds):
        if sweep.run(DriverChange(1, only=kind.replace("N", str(number % 4)).removesuffix(".tmp"))):
            check(sweep, whole)
            sweep = struck(name, tmp_path / f"{name}-{number}")
    check(sweep, whole)


@pytest.mark.full
@pytest.mark.parametrize("turn", range(6))
@pytest.mark.parametrize("name", STUDIES)
def test_struck_at_random(name, turn, unbroken, struck, tmp_path, request):
    """N21: by SIGKILL, SIGTERM, Ctrl-C and a full disk, at an instant or before a change, up to five times."""
    whole, seconds = unbroken(name)
    seed = f"{request.config.getoption('--chaos-seed')}/{name}/{turn}"
    print(f"once more: pytest '{request.node.nodeid}' -m '' -n 0 --chaos-seed={seed.partition('/')[0]}")
    sweep, chance = struck(name, tmp_path / name), random.Random(seed)
    for _ in range(chance.randrange(1, 6)):
        strike = campaign.drawn(chance, STUDIES[name], whole, seconds)
        print(strike)
        if sweep.run(strike):
            break
    check(sweep, whole)
