"""Threads beside training: order, errors, waiting with a limit, cancelling, closing, and signals at any instruction."""

import signal
import sys
import threading
import time

import pytest

from official_trainer import threads
from official_trainer.threads import RepeatingThread, WorkerThread, run_bounded

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


def has_ended(name):
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
    assert worker.wait(TIMEOUT_SECONDS)
    assert made == list(range(200))
    assert len(idents) == 1 and threading.get_ident() not in idents
    assert all(call.is_done and not call.is_cancelled for call in calls)
    assert worker.pending == []


def test_an_error_is_kept_and_the_next_call_is_made(worker):
    failed, done = worker.submit(lambda: 1 / 0), worker.submit(lambda: None)
    assert worker.wait(TIMEOUT_SECONDS)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            failed.raise_error()
    done.raise_error()
    assert done.error is None


def test_what_would_end_a_thread_is_an_error_of_the_call(worker):
    call = worker.submit(sys.exit)
    assert call.wait(TIMEOUT_SECONDS)
    assert isinstance(call.error, SystemExit)
    assert worker.submit(lambda: None).wait(TIMEOUT_SECONDS)


def test_waiting_has_a_limit_and_can_be_repeated(worker):
    held = held_by(worker)
    call = worker.submit(lambda: None)
    assert [call.wait(seconds) for seconds in (-1, 0, 0.001)] == [False] * 3
    assert not worker.wait(0)
    assert not worker.wait(0.001)
    assert len(worker.pending) == 2
    held.let_go()
    assert call.wait()
    assert call.wait(0)
    assert worker.wait()


def test_cancelling_leaves_the_call_that_runs(worker):
    held, made = held_by(worker), []
    calls = [worker.submit(lambda: made.append(1)) for _ in range(3)]
    assert worker.cancel() == 3
    assert all(call.is_done and call.is_cancelled and call.wait(0) for call in calls)
    assert len(worker.pending) == 1  # which runs
    assert worker.cancel() == 0
    held.let_go()
    assert worker.submit(lambda: made.append(2)).wait(TIMEOUT_SECONDS)
    assert made == [2]


def test_a_call_is_either_made_or_cancelled(worker):
    """The thread and the one that cancels may reach a call at the same time."""
    made = []
    for _ in range(300):
        call = worker.submit(lambda: made.append(1))
        count = worker.cancel()
        assert call.wait(TIMEOUT_SECONDS)
        assert call.is_cancelled == (count == 1)
        assert len(made) == (count == 0)
        made.clear()


def test_closing_finishes_what_was_submitted_and_ends_the_thread():
    worker, made = WorkerThread("closed"), []
    held = held_by(worker)
    call = worker.submit(lambda: made.append(1))
    worker.close()
    with pytest.raises(AssertionError, match="closed"):
        worker.submit(lambda: None)
    held.let_go()
    assert call.wait(TIMEOUT_SECONDS)
    assert has_ended("closed")
    assert made == [1]


def test_a_call_that_has_ended_holds_nothing(worker):
    thing = Held()
    thing.let_go()
    call = worker.submit(thing)
    assert worker.wait(TIMEOUT_SECONDS)
    before = sys.getrefcount(thing)
    del call
    assert sys.getrefcount(thing) == before


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("what", ["submit", "cancel", "wait"])
def test_a_signal_at_any_line_loses_no_call(what):
    """An exception in the main thread, at each line of this module in turn: all later calls are made all the same."""
    line, is_hit = 0, True
    while is_hit:
        worker, made = WorkerThread("interrupted"), []
        held = held_by(worker) if what != "submit" else None
        call = worker.submit(lambda made=made: made.append(1)) if what != "submit" else None
        action = {
            "submit": lambda worker=worker, made=made: worker.submit(lambda: made.append(1)),
            "cancel": worker.cancel,
            "wait": lambda worker=worker: worker.wait(0.0001),
        }[what]
        is_hit = interrupted_at(line, action)
        if held is not None:
            held.let_go()
        later = worker.submit(lambda made=made: made.append(2))
        assert later.wait(TIMEOUT_SECONDS), line
        assert worker.wait(TIMEOUT_SECONDS), line
        assert made[-1:] == [2] and made.count(1) <= 1
        assert call is None or (call.is_done and call.is_cancelled == (1 not in made)), line
        worker.close()
        line += 1
    assert line > 5


def interrupted_at(number, action):
    """Raises an exception at line number `number` that `action` runs in `threads.py`; returns whether it got there."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if frame.f_code.co_filename != threads.__file__:
            return None
        if event == "line":
            count += 1
            if count == number + 1:
                raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        action()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


def test_a_signal_interrupts_a_wait(worker):
    held = held_by(worker)
    call = worker.submit(lambda: None)

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        main = threading.main_thread().ident
        threading.Timer(0.01, lambda: signal.pthread_kill(main, signal.SIGUSR1)).start()
        with pytest.raises(Interrupted):
            call.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
    held.let_go()
    assert call.wait(TIMEOUT_SECONDS)


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
    assert has_ended("repeating")
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
    assert has_ended("stopped")


def test_a_bounded_call_is_returned_ended_or_not():
    assert run_bounded(lambda: None, TIMEOUT_SECONDS, "bounded").is_done
    with pytest.raises(ZeroDivisionError):
        run_bounded(lambda: 1 / 0, TIMEOUT_SECONDS, "bounded").raise_error()
    held = Held()
    call = run_bounded(held, 0.001, "bounded")
    assert not call.is_done
    held.let_go()
    assert call.wait(TIMEOUT_SECONDS)
