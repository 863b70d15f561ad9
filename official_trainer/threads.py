"""Threads beside training: one that runs calls in their order, and one that repeats a call.

Owns: starting and ending them, waiting for a call, cancelling it, and keeping its error for the caller.
Does not own: what is called.

All are daemon threads, so that a process can end while a call hangs. A signal may raise an exception in the main
thread between any two instructions. Therefore the main thread uses only operations that the interpreter makes whole or
not at all (a lock, a `deque`, `list.pop`, a `SimpleQueue`), and in such an order that every prefix of them is a sound
state: a call that was added runs, a call that was cancelled ends, and a waiting thread wakes. The locks of
`concurrent.futures`, `queue.Queue` and `threading.Event` are written in Python and can be left half taken.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any


class Call:
    """One call of a `WorkerThread`.

    Attributes:
      error: what the call has raised; None if it has not, or has not ended.
      is_cancelled: whether it was cancelled before it began.
      is_done: whether it has ended, or was cancelled.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = [function]  # `pop` decides whether it is made or cancelled, and frees what the function holds
        self._gates: list[threading.Lock] = []
        self.error: BaseException | None = None
        self.is_cancelled = False
        self.is_done = False

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for the end of the call, for at most `seconds`; returns whether it has ended."""
        if self.is_done or (seconds is not None and seconds <= 0):
            return self.is_done
        gate = threading.Lock()
        gate.acquire()
        self._gates.append(gate)
        if not self.is_done:  # it may have ended before it could see the gate
            gate.acquire(timeout=-1 if seconds is None else seconds)
        return self.is_done

    def raise_error(self) -> None:
        """Raises the error of the call, if it has one."""
        if self.error is not None:
            raise self.error

    def cancel(self) -> bool:
        """Ends the call if it has not begun; returns whether it did."""
        try:
            self._function.pop()
        except IndexError:
            return False
        self._end(is_cancelled=True)
        return True

    def run(self) -> None:
        """Makes the call, unless it was cancelled; for the thread."""
        try:
            function = self._function.pop()
        except IndexError:
            self._end(is_cancelled=True)  # also for a thread that was interrupted while it cancelled
            return
        try:
            function()
        except BaseException as error:
            self.error = error
        finally:
            del function
            self._end()

    def _end(self, *, is_cancelled: bool = False) -> None:
        self.is_cancelled = self.is_cancelled or is_cancelled
        self.is_done = True
        for gate in list(self._gates):
            with contextlib.suppress(RuntimeError):  # another thread may have opened it
                gate.release()


class WorkerThread:
    """Runs calls one at a time, in the order of their submission. The thread starts with the first one."""

    def __init__(self, name: str) -> None:
        """Takes the thread's name."""
        self._name = name
        self._calls: deque[Call] = deque()  # only the thread removes calls
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_running = threading.Lock()  # held by the thread
        self._is_closed = False

    def submit(self, function: Callable[[], object]) -> Call:
        """Adds a call. None may be added after `close`."""
        assert not self._is_closed, "the thread was closed"
        call = Call(function)
        self._calls.append(call)
        self._wake()
        return call

    @property
    def pending(self) -> list[Call]:
        """The calls that have not ended, oldest first."""
        return [call for call in list(self._calls) if not call.is_done]

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until every call submitted so far has ended, for at most `seconds`; returns whether that is so."""
        end_seconds = None if seconds is None else time.monotonic() + seconds
        pending = self.pending
        if pending:
            self._wake()  # a signal may have interrupted `submit` before it did
        return all(call.wait(None if end_seconds is None else end_seconds - time.monotonic()) for call in pending)

    def cancel(self) -> int:
        """Cancels the calls that have not begun; returns how many."""
        return sum(call.cancel() for call in self.pending)

    def close(self) -> None:
        """Ends the thread after the calls that were submitted; does not wait for it."""
        self._is_closed = True
        self._wakes.put(None)

    def _wake(self) -> None:
        self._wakes.put(None)
        if not self._is_running.locked():  # a thread too many finds the lock held, and ends
            threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        if not self._is_running.acquire(blocking=False):
            return
        while self._calls or not self._is_closed:
            self._wakes.get()
            while self._calls:
                self._calls[0].run()
                self._calls.popleft()


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
        self._pause = threading.Lock()
        self._pause.acquire()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts with a pause."""
        self._thread.start()

    def stop(self) -> None:
        """Makes no further call; does not wait for the one that runs."""
        self._is_stopped = True
        with contextlib.suppress(RuntimeError):  # stopped before
            self._pause.release()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._is_stopped

    def _run(self) -> None:
        while not self._is_stopped:
            seconds = self._pause_seconds() if callable(self._pause_seconds) else self._pause_seconds
            self._pause.acquire(timeout=max(0.0, seconds))
            if not self._is_stopped:
                self._function()


def run_bounded(function: Callable[[], object], seconds: float, name: str) -> Call:
    """Makes a call in a thread of its own, waits for it for at most `seconds`, and returns it, ended or not."""
    call = Call(function)
    threading.Thread(target=call.run, name=name, daemon=True).start()
    call.wait(seconds)
    return call
