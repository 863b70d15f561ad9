"""The process of a command: Ctrl-C outside of a run, standard streams that are closed or lose their reader, its end.

Owns: these, and that no thread or process of the user's code holds up the end for ever.
Does not own: how a run is stopped (`stopping.py`), what is printed (`terminal.py`). It imports little, because it comes
before everything else.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

_END_SECONDS = 10.0


def prepare() -> None:
    """Makes this process ready for one command, before more is imported.

    Ctrl-C ends it silently from here to the verb, as there is nothing to tidy up. Standard streams that are closed are
    opened, because the next file to be opened would get their number and receive what is printed. What cannot be
    written to stderr is dropped. Where compiled code ends the process, the lines of Python that led to it are printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lasts
    sys.stderr = _unbroken(sys.stderr or open(os.devnull, "w"))  # noqa: SIM115
    faulthandler.enable(2)
    if _is_main_thread():
        signal.signal(signal.SIGABRT, signal.SIG_DFL)  # TensorFlow says itself why it aborts
        if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """For a verb: Ctrl-C leaves the block by `KeyboardInterrupt`, also if compiled code makes another error of it."""
    before = signal.getsignal(signal.SIGINT)
    if not _is_main_thread() or before not in (signal.SIG_DFL, signal.default_int_handler):
        yield
        return
    from official_trainer.stopping import Interrupt

    interrupt = Interrupt()
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception as error:
        if interrupt.has_come:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def end_soon(code: int, seconds: float = _END_SECONDS) -> None:
    """Ends this process after some seconds, if threads or processes of the user's code still hold up its end.

    Python waits for all that are no daemons. After the code 0 it is said what was left; after another one the last line
    is that of the error.
    """
    if _left():
        timer = threading.Timer(seconds, _end, (code, seconds))
        timer.daemon = True
        timer.start()


def _end(code: int, seconds: float) -> None:
    left = _left()
    if code == 0:
        from official_trainer.cli import terminal
        from official_trainer.shown import first_few

        what = f"still ran {seconds:g} s after the end, which ended it: {first_few([one.name for one in left])}"
        terminal.report_error(f"what your code started {what}. Join it, or give it daemon=True", "warning", "yellow")
    for child in _children():
        child.kill()
    if any(isinstance(one, threading.Thread) for one in left):  # else Python is behind them, in what `atexit` runs
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


def _left() -> list[Any]:
    """Returns the threads and the processes of `multiprocessing` that Python waits for at its end."""
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    return [one for one in [*threads, *_children()] if not one.daemon]


def _children() -> list[Any]:
    multiprocessing = sys.modules.get("multiprocessing")  # a process that has started one has imported it
    return multiprocessing.active_children() if multiprocessing else []


@contextlib.contextmanager
def outliving_reader() -> Iterator[None]:
    """For a run: when its terminal is closed, or what reads stdout ends (`| head`), it goes on without output."""
    before = sys.stdout
    sys.stdout = _unbroken(before)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout = before


def reader_is_gone() -> bool:
    """Returns whether the process that reads stdout has ended; then what is still in the buffer is dropped."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)  # without requested events, poll reports errors only
    except io.UnsupportedOperation:
        return False
    if is_gone := bool(poll.poll(0)):
        drop(sys.stdout)
    return is_gone


def drop(stream: TextIO | io.FileIO) -> None:
    """Sends what is still in the buffer of a stream, and what is written to it later, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _unbroken(stream: TextIO) -> TextIO:
    """Returns a stream to the same file that drops what cannot be written; `stream` itself if it is no file."""
    try:
        raw = _Unbroken(stream.fileno(), "w", closefd=False)
    except (AttributeError, OSError):  # of a notebook, or of a test
        return stream
    try:
        stream.flush()
    except OSError:
        drop(stream)
    buffered = stream.line_buffering if isinstance(stream, io.TextIOWrapper) else False
    return io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=buffered)


class _Unbroken(io.FileIO):
    """A descriptor that becomes that of /dev/null when it cannot be written."""

    def write(self, data: Any) -> int:
        try:
            written = super().write(data)
        except OSError:
            drop(self)
            written = None
        return len(data) if written is None else written  # None also where the descriptor would have to wait
