"""Threads beside training: order, errors, waiting with a limit, cancelling, closing."""

import sys
import threading
import time

import pytest

from official_trainer.threads import RepeatingThread, WorkerThread, has_ended, run_bounded

TIMEOUT_SECONDS = 30


class Held:
    """A call that has begun, and ends when it is let go."""

    def __init__(self):
        self.begun, self._gate = threading.Event(), threading.Event()

    def __call__(self):
        self.begun.set()
        assert self._gate.wait(TIMEOUT_SECONDS)

    def let_go(self):
        self._gate.set()


@pytest.fixture
def worker():
    worker = WorkerThread("worker under test")
    yield worker
    worker.close()


def held_by(worker):
    """Submits a call that holds the thread; returns it once it has begun."""
    held = Held()
    worker.submit(held)
    assert held.begun.wait(TIMEOUT_SECONDS)
    return held


def no_thread_is_named(name):
    """Waits for the end of all threads of a name; returns whether they have ended."""
    end_seconds = time.monotonic() + TIMEOUT_SECONDS
    for thread in [thread for thread in threading.enumerate() if thread.name == name]:
        thread.join(max(0, end_seconds - time.monotonic()))
    return all(thread.name != name for thread in threading.enumerate())


def test_calls_run_one_at_a_time_in_their_order(worker):
    made, idents = [], set()
    calls = [
        worker.submit(lambda n=number: (made.append(n), idents.add(threading.get_ident()))) for number in range(200)
    ]
    assert has_ended(calls[-1], TIMEOUT_SECONDS)
    assert made == list(range(200))
    assert len(idents) == 1 and threading.get_ident() not in idents
    assert all(call.done() for call in calls)


@pytest.mark.parametrize(("function", "error"), [(lambda: 1 / 0, ZeroDivisionError), (sys.exit, SystemExit)])
def test_an_error_is_kept_and_the_next_call_is_made(worker, function, error):
    failed, done = worker.submit(function), worker.submit(lambda: 3)
    for _ in range(2):
        with pytest.raises(error):
            failed.result(TIMEOUT_SECONDS)
    assert has_ended(failed)
    assert done.result(TIMEOUT_SECONDS) == 3


def test_waiting_has_a_limit_and_can_be_repeated(worker):
    held = held_by(worker)
    call = worker.submit(lambda: None)
    assert [has_ended(call, seconds) for seconds in (-1, 0, 0.001)] == [False] * 3
    held.let_go()
    assert has_ended(call) and has_ended(call, 0)


def test_cancelling_leaves_the_call_that_runs(worker):
    held, made = held_by(worker), []
    calls = [worker.submit(lambda: made.append(1)) for _ in range(3)]
    assert all(call.cancel() and has_ended(call, 0) for call in calls)
    held.let_go()
    assert has_ended(worker.submit(lambda: made.append(2)), TIMEOUT_SECONDS)
    assert made == [2]


def test_closing_finishes_what_was_submitted_and_ends_the_thread():
    worker, made = WorkerThread("closed"), []
    held = held_by(worker)
    call = worker.submit(lambda: made.append(1))
    worker.close()
    with pytest.raises(AssertionError, match="closed"):
        worker.submit(lambda: None)
    held.let_go()
    assert has_ended(call, TIMEOUT_SECONDS)
    assert no_thread_is_named("closed")
    assert made == [1]


def test_a_call_that_has_ended_holds_nothing(worker):
    thing = Held()
    thing.let_go()
    before = sys.getrefcount(thing)
    call = worker.submit(thing)
    assert has_ended(call, TIMEOUT_SECONDS) and has_ended(worker.submit(lambda: None), TIMEOUT_SECONDS)
    assert sys.getrefcount(thing) == before


def test_repeating_pauses_first_and_asks_for_each_pause():
    made, pauses, done = [], iter([0.0, 0.001, 0.002]), threading.Event()

    def pause():
        seconds = next(pauses, None)
        if seconds is None:
            done.set()
        return 3600.0 if seconds is None else seconds

    thread = RepeatingThread("repeating", lambda: made.append(1), pause)
    assert not thread.is_stopped
    thread.start()
    assert done.wait(TIMEOUT_SECONDS)
    assert made == [1, 1, 1]
    thread.stop()
    thread.stop()
    assert thread.is_stopped
    assert no_thread_is_named("repeating")
    assert made == [1, 1, 1]


def test_a_repeating_thread_can_be_stopped_before_and_while_it_calls():
    held = Held()
    thread = RepeatingThread("stopped", held, 0.0)
    thread.start()
    assert held.begun.wait(TIMEOUT_SECONDS)
    thread.stop()
    held.let_go()
    never = RepeatingThread("stopped", lambda: pytest.fail("called"), 0.0)
    never.stop()
    never.start()
    assert no_thread_is_named("stopped")


def test_a_bounded_call_is_returned_ended_or_not():
    with pytest.raises(ZeroDivisionError):
        run_bounded(lambda: 1 / 0, TIMEOUT_SECONDS, "bounded").result(0)
    held = Held()
    call = run_bounded(held, 0.001, "bounded")
    assert not call.done()
    held.let_go()
    assert has_ended(call, TIMEOUT_SECONDS)
