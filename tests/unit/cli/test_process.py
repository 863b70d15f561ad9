"""Ctrl-C in a verb, and streams that cannot be written, in this process; whole processes are in tests/system/cli."""

import errno
import io
import os
import signal
import subprocess
import sys
import threading

import pytest

from official_trainer.cli import process


@pytest.fixture(autouse=True)
def sigint():
    """As Python sets it, also if pytest runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_what_an_interrupted_import_makes_of_it_is_an_interrupt():
    """N6: a module of C code may raise an ImportError."""
    with pytest.raises(KeyboardInterrupt) as caught, process.interruptible():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("could not be initialized") from None
    assert isinstance(caught.value.__cause__, ImportError)
    with pytest.raises(ImportError), process.interruptible():
        raise ImportError("of its own")
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_signals_are_left_alone_where_they_are_another_ones():
    """N6: ignored, as in the background of a script; taken by a program; in another thread."""
    for handler in (signal.SIG_IGN, lambda number, frame: None):
        signal.signal(signal.SIGINT, handler)
        with process.interruptible():
            assert signal.getsignal(signal.SIGINT) == handler
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen = []

    def enter():
        with process.interruptible():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_a_run_whose_reader_is_gone_writes_nowhere(monkeypatch):
    """N6: also what is still in a buffer; the stream is the former one afterwards."""
    reading, writing = os.pipe()
    os.close(reading)
    broken = os.fdopen(writing, "w")
    monkeypatch.setattr(sys, "stdout", broken)
    with pytest.raises(OSError) as caught:
        print("x", flush=True)
    assert caught.value.errno == errno.EPIPE
    with process.outliving_reader():
        for _ in range(3):
            print("a line of the task " * 9999, flush=True)
    assert sys.stdout is broken
    broken.close()


def test_a_stream_that_is_no_file_stays_as_it_is(monkeypatch):
    """N6: of a notebook, say."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    with process.outliving_reader():
        print("a")
    assert stream.getvalue() == "a\n"


def test_a_stream_that_would_have_to_wait_drops_a_part(monkeypatch):
    """N6: some terminals and programs leave stdout non-blocking."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(writing, "w") as stream, os.fdopen(reading, "rb") as reader:
        monkeypatch.setattr(sys, "stdout", stream)
        with process.outliving_reader():
            print("a" * 1_000_000, flush=True)
            assert len(os.read(reader.fileno(), 1 << 20)) < 1_000_000
            print("\nend", flush=True)
            assert os.read(reader.fileno(), 1 << 20).endswith(b"end\n")


@pytest.mark.parametrize(
    ("work", "is_left", "code"),
    [("signal.pause", True, 0), ("signal.pause", True, 4), ("functools.partial(time.sleep, 0.01)", False, 0)],
)
def test_a_thread_that_is_left_does_not_hold_up_the_end(work, is_left, code):
    """N6: Python alone would wait for it for ever; the exit code stays, and an error's line is the last one."""
    program = f"""
import atexit, functools, signal, sys, threading, time
from official_trainer.cli import process
atexit.register(print, 'tidied up')
threading.Thread(target={work}, name='mine').start()
process.end_soon({code}, seconds={0.2 if is_left else 5})
sys.exit({code})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, "tidied up\n"), done
    warning = "warning: what your code started still ran 0.2 s after the end, which ended it: mine."
    assert done.stderr.startswith(warning) if is_left and code == 0 else not done.stderr, done.stderr
