"""The lease between an evaluator and the trainer whose checkpoints it reads; time is an argument."""

import json
import logging
import os
import socket
import threading

import pytest

from official_trainer import files
from official_trainer.runs import lease
from official_trainer.runs.lease import LEASE_SECONDS, EvaluatorLease, LeasedSteps
from official_trainer.threads import RepeatingThread

NOW = 1_700_000_000.0
START = 50.0


class Clock:
    def __init__(self):
        self.now = START

    def __call__(self):
        return self.now


@pytest.fixture
def run_dir(tmp_path):
    """A run directory as the trainer has made it."""
    (tmp_path / "run.json").write_text("{}")
    return tmp_path


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def no_thread(monkeypatch):
    monkeypatch.setattr(RepeatingThread, "start", lambda self: None)


def path_of(run_dir):
    return run_dir / "continuous_eval" / "lease.json"


def leave(run_dir, **changes):
    """Writes the lease of an evaluator on another host, and returns its path."""
    values = {"host": "far", "pid": 7, "renewed": NOW, "done": [10, 20], **changes}
    path_of(run_dir).parent.mkdir(exist_ok=True)
    path_of(run_dir).write_text(json.dumps(values))
    return path_of(run_dir)


def test_what_is_not_evaluated_is_kept(run_dir, clock, no_thread):
    """N14, C6: all but what the evaluator says it is done with, also what it has not heard of yet."""
    wanted = LeasedSteps(str(run_dir), clock=clock)
    assert list(wanted((10, 20))) == []
    with EvaluatorLease(str(run_dir), done=[10], clock=clock) as held:
        assert list(wanted((10, 20, 30))) == [20, 30]
        said = json.loads(path_of(run_dir).read_text())
        values = {"host": socket.gethostname(), "pid": os.getpid(), "done": [10]}
        assert said == {**values, "renewed": START}
        held.done(20)
        assert list(wanted((10, 20, 30))) == [30]
    assert list(wanted((10, 20, 30))) == []
    assert not path_of(run_dir).exists()


@pytest.mark.parametrize("offset_seconds", [0, 120, -120, 10**9, float("nan")])
def test_a_lease_lives_while_its_content_changes_whatever_the_clocks_say(
    run_dir, clock, no_thread, caplog, offset_seconds
):
    """N14: the clock of the evaluator may be set, or be that of another host."""
    wanted = LeasedSteps(str(run_dir), clock=clock)
    times = iter(range(10**9, 0, -1000))
    with EvaluatorLease(str(run_dir), done=[10], clock=lambda: next(times)) as held:
        assert list(wanted((10, 20))) == [20]
        for _ in range(3):
            clock.now += 10 * LEASE_SECONDS  # between two saves
            held.renew()
            assert list(wanted((10, 20))) == [20]
    assert list(wanted((10, 20))) == []
    leave(run_dir, renewed=NOW + offset_seconds)
    assert list(LeasedSteps(str(run_dir), clock=clock)((20, 30))) == [30]
    assert not caplog.text


@pytest.mark.parametrize(("seconds", "is_kept"), [(0, True), (LEASE_SECONDS, True), (LEASE_SECONDS + 1, False)])
def test_a_dead_lease_holds_nothing_and_is_collected(run_dir, clock, caplog, seconds, is_kept):
    """N14: nothing is held for ever: two minutes after its content has changed last, by the clock of the trainer."""
    path, wanted = leave(run_dir, renewed=float("nan")), LeasedSteps(str(run_dir), clock=clock)
    assert list(wanted((20, 30))) == [30]
    clock.now += seconds
    assert list(wanted((20, 30))) == ([30] if is_kept else [])
    assert path.exists() is is_kept
    message = f"the evaluator on far, process 7 has not renewed its lease for {seconds:.0f} s"
    assert (message in caplog.text) is not is_kept


def test_a_trainer_that_was_stopped_while_it_looked_takes_no_lease_for_dead(run_dir):
    """N14: SIGSTOP, or a machine that was paused, between reading the clock and reading the lease."""
    leave(run_dir)
    times = iter([0, 1000, 1001])
    wanted = LeasedSteps(str(run_dir), clock=lambda: next(times))
    assert list(wanted((20, 30))) == [30]
    assert list(wanted((20, 30))) == [30]


def test_an_evaluator_that_was_stopped_leaves_its_lease(run_dir, clock, no_thread):
    """N14: started again within two minutes, it finds every checkpoint."""
    with pytest.raises(KeyboardInterrupt), EvaluatorLease(str(run_dir), done=[10], clock=clock):
        raise KeyboardInterrupt
    wanted = LeasedSteps(str(run_dir), clock=clock)
    assert list(wanted((10, 20))) == [20]
    clock.now += LEASE_SECONDS
    assert list(wanted((10, 20))) == [20]
    clock.now += 1
    assert list(wanted((10, 20))) == []


def test_the_thread_renews_until_the_end(run_dir, monkeypatch):
    """N14: a long evaluation keeps its lease; nothing is written after the end."""
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.001)
    renewed, ticks = threading.Event(), iter(range(10**9))

    def clock():
        tick = next(ticks)
        if tick > 5:
            renewed.set()
        return tick

    with EvaluatorLease(str(run_dir), clock=clock) as held:
        assert renewed.wait(60)
    held.renew()
    assert os.listdir(path_of(run_dir).parent) == []


def test_the_run_directory_is_the_trainers_to_make(tmp_path, clock, no_thread):
    """N14: an evaluator that came first writes its lease once the trainer is there."""
    run_dir = tmp_path / "run"
    with EvaluatorLease(str(run_dir), clock=clock) as held:
        assert not run_dir.exists()
        run_dir.mkdir()
        (run_dir / "run.json").write_text("{}")
        held.renew()
        assert path_of(run_dir).exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"x"', "{}", '{"host": 1}', '{"a": 1}'])
def test_what_is_no_lease_holds_nothing(run_dir, clock, caplog, content):
    """N14: and does not end the training run."""
    leave(run_dir).write_text(content)
    assert list(LeasedSteps(str(run_dir), clock=clock)((20, 30))) == []
    assert not path_of(run_dir).exists()
    assert "lease.json is removed: " in caplog.text


def test_a_lease_that_cannot_be_read_holds_everything(run_dir, clock, caplog, monkeypatch):
    """N14: an error of the file system is no reason to delete; said once."""
    leave(run_dir)

    def fail(path):
        raise PermissionError(13, "Permission denied", path)

    wanted = LeasedSteps(str(run_dir), clock=clock)
    with monkeypatch.context() as patch:
        patch.setattr(files, "read_text", fail)
        for _ in range(3):
            assert list(wanted((10, 20))) == [10, 20]
    assert caplog.text.count("Permission denied") == 1
    assert list(wanted((10, 20))) == []


def test_an_evaluator_that_falls_behind_is_named_once(run_dir, clock, caplog):
    """N14: by host, process, step and the age of its lease, when more than ten checkpoints wait for it."""
    leave(run_dir)
    wanted = LeasedSteps(str(run_dir), clock=clock)
    wanted(range(100, 110))
    assert caplog.text == ""
    clock.now += 3
    wanted(range(100, 111))
    wanted(range(100, 120))
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "11 checkpoints beyond trainer.max_to_keep are kept for the evaluator on far, process 7, which renewed "
        "its lease 3 s ago: it is slower than training. Set trainer.checkpoint_interval higher, or stop it: "
        "120 s later they may go."
    )


def test_a_lease_that_cannot_be_written_ends_no_evaluation(run_dir, clock, caplog, no_thread):
    """N14: said once, and tried again."""
    (run_dir / "continuous_eval").write_text("a file in the way")
    with caplog.at_level(logging.WARNING), EvaluatorLease(str(run_dir), clock=clock) as held:
        held.renew()
        assert caplog.text.count("lease.json cannot be written: ") == 1
        (run_dir / "continuous_eval").unlink()
        held.done(10)
        assert json.loads(path_of(run_dir).read_text())["done"] == [10]
