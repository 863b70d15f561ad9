"""Threads beside training: one that runs calls in their order, and one that repeats a call.

Owns: starting and ending them, and keeping a call's error for the caller. Does not own: what is called.

All are daemon threads, so that a process can end while a call hangs; those of `concurrent.futures` hold up its end.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any


class WorkerThread:
    """Runs calls one at a time, in the order of their submission. The thread starts with the first one."""

    def __init__(self, name: str) -> None:
        """Takes the thread's name."""
        self._calls: queue.SimpleQueue[tuple[futures.Future[Any], Callable[[], object]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_closed = False

    def submit(self, function: Callable[[], object]) -> futures.Future[Any]:
        """Adds a call, and returns its end. None may be added after `close`."""
        assert not self._is_closed, "the thread was closed"
        call: futures.Future[Any] = futures.Future()
        self._calls.put((call, function))
        if self._thread.ident is None:
            self._thread.start()
        return call

    def finish(self) -> None:
        """Waits until the calls that were submitted have ended."""
        has_ended(self.submit(lambda: None))

    def close(self) -> None:
        """Ends the thread after the calls that were submitted; does not wait for it."""
        self._is_closed = True
        self._calls.put(None)

    def _run(self) -> None:
        while (entry := self._calls.get()) is not None:
            call, function = entry
            if call.set_running_or_notify_cancel():
                try:
                    result = function()
                except BaseException as error:
                    call.set_exception(error)
                else:
                    call.set_result(result)
            del entry, call, function  # while the thread waits, it holds nothing of them


class RepeatingThread:
    """Makes a call again and again, with a pause before each, until it is stopped."""

    def __init__(self, name: str, function: Callable[[], Any], pause_seconds: float | Callable[[], float]) -> None:
        """Takes what is called.

        Args:
          name: of the thread.
          function: must not raise.
          pause_seconds: before each call; a function is asked before each pause.
        """
        self._function, self._pause_seconds = function, pause_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts with a pause."""
        self._thread.start()

    def stop(self) -> None:
        """Makes no further call; does not wait for the one that runs."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def _run(self) -> None:
        def pause_seconds() -> float:
            return self._pause_seconds() if callable(self._pause_seconds) else self._pause_seconds

        while not self._stopped.wait(pause_seconds()):
            self._function()


def run_bounded(function: Callable[[], object], seconds: float, name: str) -> futures.Future[Any]:
    """Makes a call in a thread of its own, waits for it for at most `seconds`, and returns it, ended or not."""
    thread = WorkerThread(name)
    call = thread.submit(function)
    thread.close()
    has_ended(call, seconds)
    return call


def has_ended(call: futures.Future[Any], seconds: float | None = None) -> bool:
    """Waits for the end of a call, for at most `seconds`; returns whether it has ended, also with an error."""
    with contextlib.suppress(futures.TimeoutError, futures.CancelledError):
        call.exception(seconds)
    return call.done()
