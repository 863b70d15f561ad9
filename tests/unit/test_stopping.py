"""StopRequest by itself: which signals reach it, and what it gives back. Whole runs: tests/system/kills."""

import contextlib
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
from official_trainer.cli import process
from official_trainer.errors import ExitCode
from official_trainer.stopping import PreemptedError, StopRequest
from tests.support.waiting import until


@contextlib.contextmanager
def listening(**options):
    """For a request that listens."""
    with StopRequest(**options) as stop:
        stop.listen(lambda: "step 7 is saved; the same command continues")
        yield stop


@pytest.fixture(autouse=True)
def signals():
    """Signals are not ignored, as they would be if pytest ran under `nohup` or in the background."""
    handlers = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_is_a_reason_to_stop_and_the_handlers_come_back():
    """N5: a signal interrupts no code of the main thread."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with listening() as stop:
        stop.check()
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: stop.reason == "SIGTERM")
        with pytest.raises(PreemptedError, match="SIGTERM; nothing is lost, the same command continues") as caught:
            stop.check()
        assert caught.value.exit_code == ExitCode.PREEMPTED
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_in_a_finalizer_ends_the_run_before_it_begins():
    """N5: Python drops the error there, and the run would train on."""

    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    with process.interruptible(), pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        Finalized()
        stop.listen(lambda: "")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_signals_are_left_alone_until_a_run_listens():
    """N5: before that there is nothing to save; and Python allows handlers in the main thread only."""
    before = signal.getsignal(signal.SIGTERM)

    def listen(stop):
        stop.listen(lambda: "")
        assert signal.getsignal(signal.SIGTERM) == before

    listen(StopRequest())  # that of a program which handles signals itself
    with StopRequest() as stop:
        assert signal.getsignal(signal.SIGTERM) == before
        thread = threading.Thread(target=listen, args=(stop,))
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGTERM) == before


def test_a_closed_terminal_stops_a_run_and_a_second_sighup_does_not_end_it(monkeypatch):
    """N5: the terminal sends one, its shell another, and a person may end the process meanwhile."""
    monkeypatch.setattr(stopping, "_SAME_SIGNAL_SECONDS", 0.05)
    codes = []
    with listening(exit_process=codes.append) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        until(lambda: stop.reason == "SIGHUP")
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        assert codes == []
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: codes)
    assert codes[0] == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


def test_a_terminal_that_is_closed_under_nohup_stops_no_run():
    """N5: SIGHUP is ignored there."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with listening() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.1)
        stop.check()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_the_second_signal_ends_the_process():
    """N5."""
    codes = []
    with listening(exit_process=codes.append):
        for _ in range(3):  # one signal that comes several times, as `timeout` sends it to a process and to its group
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.02)
        assert codes == []
        time.sleep(0.7)
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: codes)
    assert codes[0] == 130


def test_what_hangs_is_given_up_after_the_grace_period(capsys):
    """N5, N6: with 75, and with what is saved; if that cannot be learned either, with that."""
    codes = []
    with listening(exit_process=codes.append, grace_seconds=0.1):
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: codes)
    assert codes == [75]
    said = "stopped: SIGTERM, and runtime.stop_grace_seconds=0.1 later the run had not ended; step 7 is saved; the same"
    assert said in capsys.readouterr().err


def test_the_storage_may_be_what_hangs(monkeypatch, capsys):
    """N5."""
    monkeypatch.setattr(stopping, "_LAST_WORDS_SECONDS", 0.05)
    codes = []
    with StopRequest(exit_process=codes.append, grace_seconds=0.1) as stop:
        stop.listen(lambda: time.sleep(1))
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: codes)
    assert codes == [75] and "what is saved is unknown" in capsys.readouterr().err


def test_the_time_limit_counts_from_the_beginning():
    """N5."""
    codes = []
    with StopRequest(max_wall_seconds=0.04, grace_seconds=0.1, exit_process=codes.append) as stop:
        time.sleep(0.05)
        assert stop.reason is None
        stop.listen(lambda: "")
        until(lambda: stop.reason == "runtime.max_wall_seconds=0.04 is over")
        until(lambda: codes)
    assert codes == [75]


def test_who_listens_for_signals_already_gets_them_back():
    """An event loop has its own pipe for signals."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno())
    try:
        with listening():
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
            stop.listen(lambda: "")
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
