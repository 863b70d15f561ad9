"""Work done in a thread beside training, one piece at a time, whose errors are not lost.

Owns: the thread, and when its errors surface. Does not own: what is done there (`store.py`).
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable


class Background:
    """Does one piece of work at a time, at once or in a thread of its own."""

    def __init__(self, name: str, *, asynchronous: bool) -> None:
        """Takes the thread's name, and whether there is one; without, `do` returns when the work is done."""
        self._executor = concurrent.futures.ThreadPoolExecutor(1, name) if asynchronous else None
        self._pending: concurrent.futures.Future[None] | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Does `work`, after the work before is done; raises the error of that."""
        self.wait()
        if self._executor is None:
            work()
        else:
            self._pending = self._executor.submit(work)

    def check(self) -> None:
        """Raises the error of work that has failed."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Returns when there is nothing left to do; raises the error of what was waited for."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Finishes what is being done; see `wait`."""
        try:
            self.wait()
        finally:
            if self._executor is not None:
                self._executor.shutdown()
