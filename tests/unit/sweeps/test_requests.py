"""What other commands ask of a sweep: to stop, and to run trials again."""

import pytest

from official_trainer.lock import DirectoryLock
from official_trainer.sweeps import requests
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.claims import Claims
from official_trainer.sweeps.requests import StopRequest
from official_trainer.sweeps.trial import SweepError, Trial
from tests.support.sweeps.written import RATE, ended, write_run, write_sweep


def test_a_trial_that_failed_begins_again_with_what_was_drawn(tmp_path):
    """N21: its run and its output are gone, the others stay; it counts as one to run, however many are done."""
    write_sweep(tmp_path, [ended(0, 0.5), ended(1, state="failed", reason="x"), ended(2, 0.5)])
    for number in range(3):
        write_run(tmp_path, number)
        (tmp_path / "trials" / str(number) / "output.log").write_text("…")
    before = trials.read_all(str(tmp_path))
    assert requests.retry(str(tmp_path)) == [1]
    after = trials.read_all(str(tmp_path))
    assert after == before | {1: Trial(number=1, values=before[1].values, retried=True)}
    assert not (tmp_path / "trials" / "1" / "run").exists() and not (tmp_path / "trials" / "1" / "output.log").exists()
    assert (tmp_path / "trials" / "0" / "run").exists()
    with Claims(str(tmp_path)) as claims:
        assert claims.next(after, wanted=2) == 1
    assert requests.retry(str(tmp_path), [2, 0]) == [0, 2]


def test_what_is_worked_on_or_has_not_ended_stays_as_it_is(tmp_path):
    """N21: by a driver, or by the process of the trial alone; then none of the trials has changed."""
    write_sweep(tmp_path, [ended(0, state="failed"), ended(1, state="failed"), Trial(number=2, values={RATE: 0.1})])
    run = write_run(tmp_path, 1)
    before = trials.read_all(str(tmp_path))
    for place in (tmp_path / "trials" / "1", run):
        with DirectoryLock(place), pytest.raises(SweepError, match=r"trial 1 is worked on, so it stays as it is: "):
            requests.retry(str(tmp_path))
    with pytest.raises(SweepError, match=r"has no trial 7; it has trials 0 to 2"):
        requests.retry(str(tmp_path), [0, 7])
    with pytest.raises(SweepError, match=r"trial 2 is not done: the command of the sweep continues it"):
        requests.retry(str(tmp_path), [2])
    assert trials.read_all(str(tmp_path)) == before and run.exists()
    write_sweep(tmp_path / "new", [ended(0, 0.5)])
    assert requests.retry(str(tmp_path / "new")) == []
    (tmp_path / "trials" / "0" / "trial.json").write_text("{")
    with pytest.raises(SweepError, match=r"trials/0/trial.json cannot be read"):
        requests.retry(str(tmp_path), [0])


def test_in_a_population_only_the_newest_generation_runs_again(tmp_path):
    """N21: the others are what it was made from."""
    records = [ended(number, state="failed") for number in range(4)]
    write_sweep(tmp_path, records, population={"size": 2, "interval": 10})
    with pytest.raises(SweepError, match=r"trial 1 is of generation 1, from which generation 2 was made; it cannot"):
        requests.retry(str(tmp_path), [1, 2])
    assert requests.retry(str(tmp_path), [2, 3]) == [2, 3]


def test_a_driver_finds_a_request_that_came_after_its_start(tmp_path):
    """N21: an older one, and half of one, are none."""
    seconds = [0.0]
    write_sweep(tmp_path, [])
    held = DirectoryLock(tmp_path)
    held.acquire()
    before = StopRequest(str(tmp_path), clock=lambda: seconds[0])
    said = []
    assert requests.stop(str(tmp_path), said.append, sleep=lambda _: held.release())
    assert "asked to save and end: pid " in said[0] and not before.came()
    after = StopRequest(str(tmp_path), clock=lambda: seconds[0])
    seconds[0] += 5
    assert before.came() and not after.came()
    (tmp_path / ".stop.json").write_text("{")
    seconds[0] += 5
    assert not after.came()


def test_a_driver_that_has_joined_is_found_by_its_trial(tmp_path):
    """N21: one that was killed, and a sweep without a driver, are told from it."""
    write_sweep(tmp_path, [ended(0, 0.5), Trial(number=1, values={RATE: 0.1})])
    assert not requests.stop(str(tmp_path), print)
    damaged = tmp_path / "trials" / "1" / ".lock.json"
    damaged.write_text("{}")
    assert not requests.stop(str(tmp_path), print)
    damaged.unlink()  # a process that wants the lock would wait for its lease to end
    held = DirectoryLock(tmp_path / "trials" / "1")
    held.acquire()
    said = []
    assert requests.stop(str(tmp_path), said.append, sleep=lambda _: held.release()) and len(said) == 1
    with pytest.raises(SweepError, match="holds no sweep"):
        requests.stop(str(tmp_path / "trials"), print)
