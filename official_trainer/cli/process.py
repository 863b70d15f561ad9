"""The process of a command: Ctrl-C outside of a run, standard streams that are closed or lose their reader, its end.

Owns: these, and that no thread or child of the user's code holds up the end for ever.
Does not own: how a run is stopped (`stopping.py`), what is printed (`terminal.py`). It imports little, because it comes
before everything else.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any, TextIO

_LEFT_SECONDS = 10.0


def prepare() -> None:
    """Makes this process ready for one command, before more is imported.

    Ctrl-C ends it silently from here to the verb, as there is nothing to tidy up. Standard streams that are closed are
    opened, because the next file to be opened would take their place and receive what is printed. What cannot be
    written to stderr is dropped. Where compiled code ends the process, the lines of Python that led to it are printed.
    """
    if _is_main_thread() and signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lasts
    sys.stderr = _unbroken(sys.stderr or open(os.devnull, "w"))  # noqa: SIM115
    faulthandler.enable(2)
    if _is_main_thread():  # TensorFlow says itself why it aborts: mostly because another process of the run has ended
        signal.signal(signal.SIGABRT, signal.SIG_DFL)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """For a verb: Ctrl-C leaves the block by `KeyboardInterrupt`, also if compiled code makes another error of it."""
    if not _is_main_thread() or signal.getsignal(signal.SIGINT) not in (signal.SIG_DFL, signal.default_int_handler):
        yield
        return
    from official_trainer.stopping import Interrupt

    interrupt = Interrupt()
    before = signal.signal(signal.SIGINT, interrupt)
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


def end_soon(code: int, before: Collection[threading.Thread], seconds: float = _LEFT_SECONDS) -> None:
    """Bounds the end of this process, which Python lets wait for each thread and each child that is no daemon.

    Returns at once. Threads that end in time, as those of an executor do that has no work left, change nothing.

    Args:
      code: the exit code. Only after 0 is it said what was left: else the last line is that of the error.
      before: the threads that the command has not started.
      seconds: how long threads, and children of multiprocessing, may take.
    """
    if _left(before):
        threading.Thread(target=_end, args=(code, before, seconds), name="end", daemon=True).start()


def _end(code: int, before: Collection[threading.Thread], seconds: float) -> None:
    """Ends this process, unless what is left ends first; the main thread waits for it."""
    end = time.monotonic() + seconds
    while (left := _left(before)) and (wait_seconds := end - time.monotonic()) > 0:
        left[0].join(wait_seconds)
    if not left:
        return
    if code == 0:
        from official_trainer.cli import terminal
        from official_trainer.shown import first_few

        words = ["thread" if isinstance(worker, threading.Thread) else "process" for worker in left]
        names = first_few([f"the {word} {worker.name!r}" for word, worker in zip(words, left, strict=True)])
        what = f"{names} still ran {seconds:g} s after the end, and {'was' if len(left) == 1 else 'were'} ended too"
        terminal.report_error(f"{what}. Join what your code starts, or start it with daemon=True", "warning", "yellow")
    for worker in left:
        if not isinstance(worker, threading.Thread):
            worker.kill()
    if any(isinstance(worker, threading.Thread) for worker in left):
        atexit._run_exitfuncs()  # as after the threads
        sys.stdout.flush()
        os._exit(code)


def _left(before: Collection[threading.Thread]) -> list[Any]:
    """Returns the threads and children of multiprocessing that are left, but not those threads."""
    threads = [thread for thread in threading.enumerate() if not thread.daemon and thread not in before]
    processes = sys.modules.get("multiprocessing")  # which only code that starts some has imported
    children = processes.active_children() if processes else []
    return [*threads, *(child for child in children if not child.daemon)]


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


def drop(stream: TextIO | io.FileIO) -> None:
    """Sends what is still in the buffer of a stream, and what is written to it later, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _unbroken(stream: TextIO) -> TextIO:
    """Returns a stream to the same place that drops what cannot be written; `stream` itself if it is no file."""
    try:
        number = stream.fileno()
    except (AttributeError, OSError):  # of a notebook, or of a test
        return stream
    raw = _Unbroken(number, "w", closefd=False)
    try:
        stream.flush()
    except OSError:
        drop(stream)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=bool(stream.line_buffering),
    )


class _Unbroken(io.FileIO):
    """A descriptor that becomes that of /dev/null when it cannot be written."""

    def write(self, data: Any) -> int:
        try:
            written = super().write(data)
        except OSError:
            drop(self)
            written = None
        return len(data) if written is None else written  # None also where the descriptor would have to wait
