"""Claims on trials: many processes beside each other, of which some stop, and none trains what another trains."""

import errno
import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from official_trainer import lock
from official_trainer.lock import LEASE_SECONDS, DirectoryLock
from official_trainer.sweeps import trial as trials
from official_trainer.sweeps.claims import ClaimLostError, Claims
from official_trainer.sweeps.trial import Trial


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def record(directory, number, state=None):
    trials.write(directory, Trial(number=number, values={}, state=state, value=1.0 if state == "complete" else None))


def claims(directory, **options):
    return Claims(str(directory), **options)


def following(directory, mine, wanted=3):
    return mine.next(trials.read_all(str(directory)), wanted)


@pytest.fixture
def no_flock(monkeypatch):
    """As on a file system of several machines without the kernel's locks; renewed by hand."""

    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(lock, "RENEW_SECONDS", 3600.0)


def test_a_trial_belongs_to_one(tmp_path):
    """N21: the lowest without an end; a record that is there comes before a new one."""
    record(tmp_path, 0, "complete")
    record(tmp_path, 1)
    with claims(tmp_path) as first, claims(tmp_path) as second:
        assert following(tmp_path, first) == 1
        assert following(tmp_path, second) == 2
        record(tmp_path, 2)
        assert following(tmp_path, second) is None  # three are done or worked on
        first.release(1)
        assert following(tmp_path, second) == 1
    with claims(tmp_path) as third:
        assert following(tmp_path, third) == 1


def test_a_trial_that_others_draw_counts_before_it_has_a_record(tmp_path):
    """N21: else one too many would be trained; one that fails makes room."""
    with claims(tmp_path) as first, claims(tmp_path) as second:
        assert [following(tmp_path, first, 2), following(tmp_path, first, 2)] == [0, 1]
        assert following(tmp_path, second, 2) is None
        record(tmp_path, 0, "failed")
        first.release(0)
        assert following(tmp_path, second, 2) == 2
        assert following(tmp_path, second, 2) is None


def test_a_removed_trial_does_not_make_one_too_many(tmp_path):
    """Its number is drawn anew only if the others are not enough; fewer trials leave one as it is."""
    for number, state in enumerate(("complete", None, "complete", None)):
        if number != 1:
            record(tmp_path, number, state)
    with claims(tmp_path) as mine:
        assert following(tmp_path, mine, 3) == 3
        assert following(tmp_path, mine, 3) is None
        assert following(tmp_path, mine, 4) == 1
    with claims(tmp_path) as mine:
        assert following(tmp_path, mine, 2) is None


def test_a_trial_whose_run_still_has_a_process_waits_for_it(tmp_path):
    """N21: a driver that was stopped for long has lost its claim, and its trial may go on for a moment."""
    record(tmp_path, 0)
    run_dir = tmp_path / "trials" / "0" / "run"
    run_dir.mkdir()
    with claims(tmp_path) as mine:
        with DirectoryLock(run_dir):
            assert following(tmp_path, mine) is None
        assert following(tmp_path, mine) == 0


@pytest.mark.usefixtures("no_flock")
def test_without_flock_a_silent_holder_loses_its_trial_after_the_lease(tmp_path):
    """N21: by the clock of the process that asks; one that renews keeps it, and the loser is told."""
    clock = Clock()
    record(tmp_path, 0)
    holder, mine = claims(tmp_path, clock=clock), claims(tmp_path, clock=clock)
    assert following(tmp_path, holder, 1) == 0
    for _ in range(4):
        assert following(tmp_path, mine, 1) is None
        clock.now += LEASE_SECONDS / 2
        holder.check(0, now=True)  # renews
    assert following(tmp_path, mine, 1) is None
    clock.now += LEASE_SECONDS
    assert following(tmp_path, mine, 1) == 0
    clock.now += 1.0
    with pytest.raises(ClaimLostError, match=r"trial 0 was taken over by another process: .* was taken over by pid"):
        holder.check(0, now=True)
    with pytest.raises(ClaimLostError):
        holder.check(0)
    holder.release(0)
    mine.check(0, now=True)
    mine.release(0)


@pytest.mark.usefixtures("no_flock")
def test_without_flock_a_claim_counts_once_it_was_not_overwritten(tmp_path, monkeypatch):
    """N21: two that saw a free lock both write; the last one has it, and the other one never began."""
    second, taken = claims(tmp_path), []
    look = lock._look

    def settle(seconds):
        if not taken:
            taken.append(following(tmp_path, second))
        monkeypatch.setattr(lock, "_look", look)

    first = claims(tmp_path, settle_seconds=2.0, sleep=settle)
    monkeypatch.setattr(lock, "_look", lambda path: None)
    assert following(tmp_path, first) == 1 and taken == [0]
    for mine in (first, second):
        mine.__exit__()


WANTED = 12


def test_many_workers_train_each_trial_once(tmp_path):
    """N21: threads with locks of their own, of which every third trial is left as by a killed process, or fails."""
    training, trained, guard = set(), [], threading.Lock()
    barrier = threading.Barrier(6)

    def work(seed):
        barrier.wait()
        with claims(tmp_path) as mine:
            for turn in range(1000):
                found = trials.read_all(str(tmp_path))
                if sum(each.state == "complete" for each in found.values()) >= WANTED:
                    return
                number = mine.next(found, WANTED)
                if number is None:
                    continue
                trial = trials.read_all(str(tmp_path)).get(number)
                if trial is None or trial.state is None:
                    with guard:
                        assert number not in training
                        training.add(number)
                    if trial is None:
                        record(tmp_path, number)
                    is_left = (turn + seed) % 3 == 0 and trial is None
                    with guard:
                        training.discard(number)
                    if not is_left:
                        state = "failed" if number % 5 == 4 else "complete"
                        trained.append(number)
                        record(tmp_path, number, state)
                mine.release(number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    found = trials.read_all(str(tmp_path))
    assert sorted(trained) == list(range(len(found))) and not training
    assert {each.state for each in found.values()} == {"complete", "failed"}
    assert sum(each.state == "complete" for each in found.values()) == WANTED
    assert not list(tmp_path.rglob(".lock.json"))


def test_the_locks_that_killed_processes_left_on_trials_that_have_ended_are_removed(tmp_path):
    """N21: of the trial and of its run; that of a process which lives stays."""
    for number in (0, 1):
        record(tmp_path, number, "complete")
        place = tmp_path / "trials" / str(number)
        (place / "run").mkdir()
        for folder in (place, place / "run"):
            with DirectoryLock(folder):
                left = (folder / ".lock.json").read_text()
            (folder / ".lock.json").write_text(left)
    with DirectoryLock(tmp_path / "trials" / "1" / "run"), claims(tmp_path) as mine:
        mine.clean_up([0, 1, 2])
        assert [str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob(".*.json")] == ["trials/1/run"]


def test_nothing_is_left_of_a_record_that_a_killed_process_was_writing(tmp_path):
    """N21: the next one that writes it removes it."""
    place = tmp_path / "trials" / "0"
    place.mkdir(parents=True)
    (place / "trial.json.tmp-1-0123abcd").write_text("{")
    record(tmp_path, 0, "complete")
    assert [path.name for path in place.iterdir()] == ["trial.json"]
