"""Calls of a program: at most one trains or evaluates at a time; an event loop runs them in a thread.

Owns: refusing a call while another thread runs one, asking the running call to stop, and waiting for a cancelled call.
Does not own: what a call does (`engine.py`), or when the loop looks at a request to stop (`stopping.py`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from official_trainer.errors import ExitCode, UserError
from official_trainer.stopping import StopRequest

Result = TypeVar("Result")

_CANCELLED = "the task that awaited it was cancelled"


class BusyError(UserError, RuntimeError):
    """A program is trained or evaluated by another thread."""

    exit_code = ExitCode.CONFIG

    def __init__(self) -> None:
        super().__init__("the program is training or evaluating in another thread; await that call first")


class RunningCall:
    """The call of a program that runs."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # held by the thread of the call
        self._stop: StopRequest | None = None
        self._stop_reason = ""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Marks a block as a call that trains or evaluates.

        Raises:
          BusyError: another thread is in such a block.
        """
        if not self._lock.acquire(blocking=False):
            raise BusyError
        try:
            yield
        finally:
            self._stop, self._stop_reason = None, ""
            self._lock.release()

    def new_stop(self) -> StopRequest:
        """Returns the request to stop of the call that runs; it is set if `ask_to_stop` was called before."""
        self._stop = StopRequest()
        if self._stop_reason:
            self._stop.reason = self._stop_reason
        return self._stop

    def ask_to_stop(self, reason: str) -> None:
        """Ends the `fit` that runs, or is about to run, after its current window; for any thread."""
        self._stop_reason = reason
        if self._stop is not None:
            self._stop.reason = self._stop.reason or reason


class AsyncRunner:
    """Runs the calls of one program in a thread, in the order in which they were awaited."""

    def __init__(self, ask_to_stop: Callable[[str], None]) -> None:
        """Takes the function that asks the running call to stop; it gets the reason, from any thread."""
        self._ask_to_stop = ask_to_stop
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None

    async def run(self, call: Callable[[], Result]) -> Result:
        """Returns the result of `call`, without blocking the event loop.

        If this is cancelled, a call that has not begun never runs; one that runs is asked to stop, and awaited.
        """
        if self._executor is None:
            self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="program")
        running = self._executor.submit(functools.partial(contextvars.copy_context().run, call))
        awaited = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(awaited)
        except asyncio.CancelledError:
            if not running.cancel():
                self._ask_to_stop(_CANCELLED)
                await _wait_for_end(awaited)
            raise


async def _wait_for_end(awaited: asyncio.Future[Result]) -> None:
    """Returns once a call has ended, also if this is cancelled again meanwhile."""
    while not awaited.done():
        try:
            await asyncio.wait([awaited])
        except asyncio.CancelledError:
            continue
    awaited.exception()  # retrieved, or asyncio logs the error of the stopped call
