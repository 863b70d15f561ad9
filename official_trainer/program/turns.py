"""Calls of a program from an event loop: each in a thread, one after the other, and what cancelling one means.

Owns: the thread, and that whoever awaits a call never leaves it running. Does not own: what a call does (`program.py`),
or how a loop is asked to stop (`stopping.py`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

_CANCELLED = "the task that awaited it was cancelled"


class Turns:
    """The calls of one program, in the order in which they were awaited."""

    def __init__(self, ask_to_stop: Callable[[str], None]) -> None:
        """Takes what asks the call that runs to stop, and is given why; any thread may ask."""
        self._ask_to_stop = ask_to_stop
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None

    async def take(self, call: Callable[[], Result]) -> Result:
        """Returns what `call` returns, without blocking the event loop.

        A call that is cancelled before its turn never runs. One that runs is asked to stop, and waited for.
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
                await _ended(awaited)
            raise


async def _ended(awaited: asyncio.Future[Result]) -> None:
    """Returns once a call has ended, however it did, and however often this is cancelled too."""
    while not awaited.done():
        try:
            await asyncio.wait([awaited])
        except asyncio.CancelledError:
            continue
    awaited.exception()  # looked at: it says that the call was stopped
