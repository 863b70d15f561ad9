"""StopRequest by itself: which signals reach it, whom it leaves alone, and what it gives back. Whole runs: chaos/."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from official_trainer import stopping
from official_trainer.errors import ExitCode
from official_trainer.stopping import PreemptedError, StopRequest


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_signal_is_a_reason_to_stop_and_the_handlers_come_back():
    """N5."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopRequest() as stop:
        stop.check()
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: stop.reason == "SIGTERM")
        with pytest.raises(PreemptedError, match="SIGTERM; nothing is lost, the same command continues") as caught:
            stop.check()
        assert caught.value.exit_code == ExitCode.PREEMPTED
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.fixture
def hang_up():
    """SIGHUP is not ignored, as it would be under `nohup pytest`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_stops_a_run_and_a_second_sighup_does_not_end_it(hang_up, monkeypatch):
    """N5: the terminal sends one, its shell another, and a person may end the process meanwhile."""
    monkeypatch.setattr(stopping, "_SAME_SIGNAL_SECONDS", 0.05)
    codes = []
    with StopRequest(exit_process=codes.append) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        wait_for(lambda: stop.reason == "SIGHUP")
        with pytest.raises(PreemptedError, match="SIGHUP; nothing is lost") as caught:
            stop.check()
        assert caught.value.exit_code == ExitCode.PREEMPTED
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        assert codes == []
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: codes)
    assert codes[0] == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def test_sighup_stays_ignored_under_nohup(hang_up):
    """N5."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopRequest() as stop:
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: stop.reason)
        assert stop.reason == "SIGTERM"
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_an_interruptible_block_is_left_at_once_and_others_are_not():
    """N5: no `except Exception` on the way takes it for its own."""
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            pass  # Python would have run the handler by now
        with pytest.raises(PreemptedError), stop.interruptible():
            raise AssertionError("entered after the signal")
    with StopRequest() as stop, pytest.raises(PreemptedError), stop.interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        except Exception as error:
            raise AssertionError from error


def test_what_the_interruption_breaks_is_not_an_error_of_its_own():
    """N5: C code that calls Python may turn the exception into another one."""
    with StopRequest() as stop, pytest.raises(PreemptedError), stop.interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        except BaseException:
            raise SystemError("bad argument to internal function") from None
    with StopRequest() as stop, pytest.raises(SystemError), stop.interruptible():
        raise SystemError("of somebody else's")


def test_the_second_signal_ends_the_process():
    """N5."""
    codes = []
    with StopRequest(exit_process=codes.append):
        for _ in range(3):  # one signal that comes several times, as `timeout` sends it to a process and to its group
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.02)
        assert codes == []
        time.sleep(0.7)
        os.kill(os.getpid(), signal.SIGINT)
        wait_for(lambda: codes)
    assert codes[0] == 130


def test_what_hangs_is_rescued_or_given_up(capsys):
    """N5, N6: what the rescue says decides; the grace period is the end of it."""
    codes, asked = [], []
    with StopRequest(exit_process=codes.append) as stop, pytest.raises(PreemptedError):
        stop.register(lambda: ("at step 7, which is saved", ExitCode.PREEMPTED))
        with stop.interruptible(lambda: asked.append(1) or len(asked) == 3):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
            hang()
    assert codes[0] == 143
    assert len(asked) >= 3
    assert "stopped: SIGTERM at step 7, which is saved" in capsys.readouterr().err
    codes.clear()
    with StopRequest(exit_process=codes.append) as stop, pytest.raises(PreemptedError):
        stop.set_limits(grace_seconds=0.2, max_wall_seconds=None)
        stop.register(lambda: ("step 7 is not saved", ExitCode.RETRY))
        with stop.interruptible(lambda: False):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
            hang()
    assert codes[0] == 75
    assert "runtime.stop_grace_seconds=0.2 later the run had not ended; step 7 is not saved" in capsys.readouterr().err


def hang():
    """One call that Python does not come back from for a second, and that no signal interrupts."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # another thread gets it
    try:
        ctypes.CDLL(None).usleep(1_000_000)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_a_rescue_that_fails_is_told_and_not_tried_again(caplog):
    """N5: the grace period decides then."""
    codes = []

    def rescue():
        raise OSError("no space")

    with StopRequest(exit_process=codes.append) as stop, pytest.raises(PreemptedError):
        stop.set_limits(grace_seconds=0.5, max_wall_seconds=None)
        with stop.interruptible(rescue):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
            hang()
    assert caplog.text.count("could not be saved while the main thread hangs") == 1


def test_the_time_limit_counts_from_the_beginning():
    """N5."""
    with StopRequest() as stop:
        time.sleep(0.05)
        stop.set_limits(grace_seconds=25, max_wall_seconds=0.04)
        wait_for(lambda: stop.reason == "runtime.max_wall_seconds=0.04 is over")
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_who_listens_for_signals_already_gets_them_back():
    """An event loop has its own pipe for signals."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno())
    try:
        with StopRequest():
            pass
        assert signal.set_wakeup_fd(before) == writing.fileno()
    finally:
        signal.set_wakeup_fd(before)
        reading.close()
        writing.close()


def test_a_worker_of_a_pipeline_may_be_ended_without_stopping_the_run():
    """N5: a forked process has its own signals; SIGTERM ends it, and nothing of it gets to the run."""
    program = textwrap.dedent("""
        import os, signal, time
        from official_trainer.stopping import StopRequest
        with StopRequest() as stop:
            child = os.fork()
            if not child:
                time.sleep(60)
                os._exit(0)
            time.sleep(0.3)
            os.kill(child, signal.SIGTERM)
            _, status = os.waitpid(child, 0)
            time.sleep(0.3)
            print(os.WTERMSIG(status), stop.reason)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "15 None\n", done.stderr


def test_in_another_thread_signals_are_left_alone():
    """Python allows handlers in the main thread only; a run in another one is never asked."""
    before = signal.getsignal(signal.SIGTERM)

    def enter():
        with StopRequest() as stop:
            assert stop.reason is None
            assert signal.getsignal(signal.SIGTERM) == before

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
