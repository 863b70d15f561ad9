"""A tracker in a thread: order, bounds, and whose error is whose."""

import errno
import logging
import threading

import pytest

from official_trainer.errors import ExitCode
from official_trainer.files import PathKindError
from official_trainer.tracking import Outcome, Text, Tracker, closing, threads
from official_trainer.tracking.threads import ThreadedTracker, TrackerError


class Recorder(Tracker):
    """Remembers calls and the threads they were made in; waits in `log` for `gate`, and fails as it is told."""

    def __init__(self, fails=None):
        self.calls, self.threads, self.fails = [], set(), fails or {}
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def _note(self, *call):
        self.threads.add(threading.current_thread())
        self.entered.set()
        if call[0] == "log":
            self.gate.wait()
        self.calls.append(call)
        if error := self.fails.get(call[0]):
            raise error

    def describe(self, experiment, config):
        self._note("describe", experiment)

    def log(self, split, step, values):
        self._note("log", step)

    def publish(self, split, step, media):
        self._note("publish", step)

    def rewind(self, step):
        self._note("rewind", step)

    def resume(self, split, step):
        self._note("resume", step)

    def flush(self):
        self._note("flush")

    def end(self, outcome):
        self._note("end", outcome.status)

    def close(self):
        self._note("close")


def test_one_thread_makes_every_call_in_order():
    """B6: order kept, in one thread that `close` ends; a rewind has happened when it returns."""
    inner = Recorder()
    tracker = ThreadedTracker(inner, name="x")
    tracker.rewind(7)
    assert inner.calls == [("rewind", 7)]
    tracker.describe("digits", {})
    for step in range(100):
        tracker.log("train", step, {})
        tracker.publish("train", step, {"text": Text("")})
    tracker.resume("validation", 3)
    tracker.rewind(50)
    assert inner.calls[-1] == ("rewind", 50)
    tracker.end(Outcome(status="stopped"))
    tracker.close()
    tracker.close()
    pairs = [call for step in range(100) for call in (("log", step), ("publish", step))]
    last = [("resume", 3), ("rewind", 50), ("end", "stopped"), ("close",)]
    assert inner.calls == [("rewind", 7), ("describe", "digits"), *pairs, *last]
    (thread,) = inner.threads
    assert thread is not threading.current_thread()
    thread.join(60)
    assert not thread.is_alive()


def test_the_caller_goes_on_while_the_tracker_works_and_flush_waits(monkeypatch):
    """B6: `log` returns at once, as long as there is room; `flush` returns when everything before it is written."""
    monkeypatch.setattr(threads, "QUEUE_CALLS", 3)
    inner = Recorder()
    inner.gate.clear()
    tracker = ThreadedTracker(inner, name="x", on_error="fail")
    tracker.log("train", 0, {})
    inner.entered.wait()
    for step in range(1, 4):
        tracker.log("train", step, {})
    one_more = threading.Thread(target=tracker.log, args=("train", 4, {}))
    one_more.start()
    one_more.join(0.05)
    assert inner.calls == [] and one_more.is_alive()
    inner.gate.set()
    one_more.join()
    tracker.flush()
    assert inner.calls == [*(("log", step) for step in range(5)), ("flush",)]
    tracker.close()


def test_an_error_surfaces_at_the_next_call_and_ends_the_run():
    """B6: on_error fail; what comes after it is not tried."""
    inner = Recorder({"log": ValueError("no such column")})
    tracker = ThreadedTracker(inner, name="x (trainer.trackers[0])", on_error="fail", fix="with warn it would go on")
    tracker.log("train", 10, {})
    said = r"tracker x \(trainer.trackers\[0\]\) failed in log of train at step 10: ValueError: no such column; with "
    with pytest.raises(TrackerError, match=said) as caught:
        tracker.flush()
    assert caught.value.exit_code == ExitCode.FAILED
    with pytest.raises(TrackerError):
        tracker.log("train", 20, {})
    tracker.close()
    assert inner.calls == [("log", 10), ("close",)]


def test_an_error_surfaces_at_close_at_the_latest():
    """B6: nothing is lost in silence."""
    tracker = ThreadedTracker(Recorder({"log": ValueError("x")}), name="x", on_error="fail")
    tracker.log("train", 10, {})
    with pytest.raises(TrackerError, match=r"tracker x failed in log of train at step 10: ValueError: x$"):
        tracker.close()
    tracker = ThreadedTracker(Recorder({"close": ValueError("y")}), name="x", on_error="fail")
    with pytest.raises(TrackerError, match="tracker x failed in close: ValueError: y"):
        tracker.close()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_what_is_not_the_trackers_fault_keeps_its_kind(error):
    """B6: a full disk is the storage's fault, so the run may be started again; an interruption is one."""
    tracker = ThreadedTracker(Recorder({"log": error}), name="tensorboard", on_error="fail")
    tracker.log("train", 10, {})
    with pytest.raises(type(error)) as caught:
        tracker.flush()
    assert caught.value is error
    tracker.close()


def test_a_tracker_that_always_fails_warns_once_counts_and_stops_nothing(caplog):
    """B6: on_error warn: the first error with its traceback, one line at the end."""
    inner = Recorder(
        {name: ValueError(f"{name} is broken") for name in ("describe", "log", "rewind", "flush", "close")}
    )
    tracker = ThreadedTracker(inner, name="x (trainer.trackers[0])")
    tracker.rewind(0)
    tracker.describe("digits", {})
    for step in range(5):
        tracker.log("train", step, {})
        tracker.flush()
    tracker.end(Outcome())
    tracker.close()
    assert len(inner.calls) == 14
    first, last = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert first.getMessage() == (
        "tracker x (trainer.trackers[0]) failed in rewind; the run continues and counts further lost calls: "
        "ValueError: rewind is broken"
    )
    assert first.exc_info[1] is inner.fails["rewind"]
    assert last.getMessage() == (
        "tracker x (trainer.trackers[0]): 13 of 14 calls were lost; the first error: ValueError: rewind is broken"
    )
    caplog.clear()
    tracker = ThreadedTracker(Recorder({"log": PathKindError("x is a directory")}), name="x")
    tracker.log("train", 1, {})
    tracker.close()
    assert not caplog.records[0].exc_info, "an error that explains itself has no stack"


def test_a_tracker_that_hangs_is_waited_for_once_and_left_behind(caplog, monkeypatch):
    """B6: under warn nobody waits for ever: said once, what does not fit is lost and counted, the order stays."""
    monkeypatch.setattr(threads, "QUEUE_CALLS", 3)
    monkeypatch.setattr(threads, "PATIENCE_SECONDS", 0)
    inner = Recorder()
    inner.gate.clear()
    tracker = ThreadedTracker(inner, name="x")
    tracker.log("train", 0, {})
    inner.entered.wait()
    for step in range(1, 5):
        tracker.log("train", step, {})
    tracker.flush()
    tracker.flush()
    tracker.close()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "tracker x has been busy for 0 s: continuing without it; calls that it does not make are lost",
        "tracker x: 8 of 8 calls were lost",
    ]
    inner.gate.set()
    tracker._thread.join(60)
    assert inner.calls == [*(("log", step) for step in range(4)), ("close",)]


def test_what_must_work_is_waited_for_and_it_is_said_once(monkeypatch):
    """B6: on_error fail: no number is lost because a disk is slow."""
    monkeypatch.setattr(threads, "PATIENCE_SECONDS", 0)
    inner = Recorder()
    inner.gate.clear()
    monkeypatch.setattr(
        threads._logger, "warning", lambda *said: (said_so.append(said[0] % said[1:]), inner.gate.set())
    )
    said_so = []
    tracker = ThreadedTracker(inner, name="x", on_error="fail")
    tracker.log("train", 1, {})
    tracker.flush()
    tracker.close()
    assert said_so == ["tracker x has been busy for 0 s: waiting for it"]
    assert inner.calls == [("log", 1), ("flush",), ("close",)]


def test_the_error_of_the_run_goes_before_the_trackers(caplog):
    """B6: what ended the run is what is raised; the tracker's own error is logged."""
    inner = Recorder({"end": ValueError("x")})
    with pytest.raises(KeyError, match="run"), closing(ThreadedTracker(inner, name="x", on_error="fail")):
        raise KeyError("run")
    assert inner.calls == [("end", "failed"), ("close",)]
    assert "tracker x failed in end: ValueError: x" in caplog.text
    with pytest.raises(TrackerError), closing(ThreadedTracker(inner, name="x", on_error="fail")) as outcome:
        outcome.step = 3
    assert inner.calls[2:] == [("end", "done"), ("close",)]
