"""Threads beside training: one that runs calls in their order, and one that repeats a call.

Owns: starting and ending them, waiting for a call, and keeping its error for the caller. Does not own: what is called.

Both are daemon threads, so that a process can end while a call hangs. A signal may raise an exception in the main
thread between any two instructions. Therefore the main thread only uses locks and a queue that the interpreter
implements in C: they are never left half taken, as those of `concurrent.futures` can be.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class Call:
    """One call of a `WorkerThread`.

    Attributes:
      error: what the call has raised; None if it has not, or has not ended.
      is_cancelled: whether it was cancelled before it began.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        self._function: Callable[[], object] | None = function
        self._running = threading.Lock()
        self._running.acquire()
        self.error: BaseException | None = None
        self.is_cancelled = False

    @property
    def is_done(self) -> bool:
        """Whether the call has ended, or was cancelled."""
        return not self._running.locked()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for the end of the call, for at most `seconds`; returns whether it has ended."""
        if not self._running.acquire(timeout=-1 if seconds is None else max(0.0, seconds)):
            return False
        self._running.release()
        return True

    def check(self) -> None:
        """Raises the error of the call, if it has one."""
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        """Makes the call; for the thread."""
        function, self._function = self._function, None  # frees what the function holds once it has ended
        try:
            if function is not None and not self.is_cancelled:
                function()
        except BaseException as error:
            self.error = error
        finally:
            del function
            self._running.release()


class WorkerThread:
    """Runs calls one at a time, in the order of their submission. The thread starts with the first one."""

    def __init__(self, name: str) -> None:
        """Takes the thread's name."""
        self._name = name
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._pending: deque[Call] = deque()
        self._thread: threading.Thread | None = None

    def submit(self, function: Callable[[], object]) -> Call:
        """Adds a call."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        call = Call(function)
        self._pending.append(call)
        self._calls.put(call)
        return call

    @property
    def pending(self) -> list[Call]:
        """The calls that have not ended, oldest first."""
        while self._pending and self._pending[0].is_done:
            with contextlib.suppress(IndexError):  # another thread may remove it first
                self._pending.popleft()
        return list(self._pending)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until every call submitted so far has ended, for at most `seconds`; returns whether that is so."""
        pending = self.pending
        return not pending or pending[-1].wait(seconds)

    def cancel(self) -> int:
        """Cancels the calls that have not begun; returns how many."""
        count = 0
        with contextlib.suppress(queue.Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None:
                    call.is_cancelled = True
                    call.run()
                    count += 1
        return count

    def close(self) -> None:
        """Ends the thread after the calls that were submitted; does not wait for it."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            del call


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
        while not self._stopped.wait(self._pause_seconds() if callable(self._pause_seconds) else self._pause_seconds):
            self._function()


def run_bounded(function: Callable[[], object], seconds: float, name: str) -> Call:
    """Makes a call in a thread of its own, waits for it for at most `seconds`, and returns it, ended or not."""
    call = Call(function)
    threading.Thread(target=call.run, name=name, daemon=True).start()
    call.wait(seconds)
    return call
