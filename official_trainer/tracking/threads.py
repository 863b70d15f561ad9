"""A tracker in a thread of its own: training does not wait for where numbers go.

Owns: the queue (in order, bounded), waiting for it, and what an error in the thread means for the run.
Does not own: any destination; work that must be done, and is waited for piece by piece, such as checkpoints
(`checkpoints/store.py`).

What waits uses locks and a queue of the interpreter's own, because a signal may raise an exception in the caller at any
point, and must not leave half a queue behind.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from official_trainer import files
from official_trainer.errors import ExitCode, UserError, describe_error
from official_trainer.tracking import Media, Outcome, Tracker

_logger = logging.getLogger(__name__)

QUEUE_CALLS = 1000
"""Calls that may wait for the thread; then the caller waits."""

QUEUE_BYTES = 256 << 20
"""Bytes of media that may wait for the thread; one call may be larger."""

PATIENCE_SECONDS = 60.0
"""How long the caller waits for the thread before it says so, and under `warn` goes on without it."""


class TrackerError(UserError, RuntimeError):
    """A tracker failed, and its `on_error` is `fail`."""

    def __init__(self, name: str, what: str, error: BaseException, fix: str = "") -> None:
        super().__init__(f"tracker {name} failed in {what}: {describe_error(error)}{fix and f'; {fix}'}")
        self.exit_code = error.exit_code if isinstance(error, UserError) else ExitCode.FAILED


class _Call:
    """A call for the thread; `done` is a lock that is held until it has been made."""

    def __init__(self, method: str, arguments: tuple[Any, ...], size_bytes: int) -> None:
        self.method, self.arguments, self.size_bytes = method, arguments, size_bytes
        self.done = threading.Lock()
        self.done.acquire()

    def wait(self, seconds: float) -> bool:
        """Returns whether it has been made, after `seconds` at most."""
        if not self.done.acquire(timeout=seconds):
            return False
        self.done.release()  # whoever else waits
        return True

    def __str__(self) -> str:
        if self.method not in ("log", "publish"):
            return self.method
        return f"{self.method} of {self.arguments[0]} at step {self.arguments[1]}"


class Threaded(Tracker):
    """Gives every call to another tracker, in its order, in one thread."""

    def __init__(
        self,
        tracker: Tracker,
        *,
        name: str,
        on_error: Literal["warn", "fail"] = "warn",
        fix: str = "",
        patience_seconds: float = PATIENCE_SECONDS,
        queue_calls: int = QUEUE_CALLS,
    ) -> None:
        """Takes the tracker; the thread starts with the first call.

        Args:
          tracker: any object with the methods of one.
          name: what messages call it.
          on_error: `fail` raises an error of the thread at the next call, or at `close`, and waits as long as it takes;
            `warn` logs the first error, counts what is lost, says so at `close`, and never raises nor waits for ever.
          fix: what an error that is raised says about mending it.
          patience_seconds: see `PATIENCE_SECONDS`.
          queue_calls: see `QUEUE_CALLS`.
        """
        self._tracker, self._name, self._must_work, self._fix = tracker, name, on_error == "fail", fix
        self._patience_seconds, self._queue_calls = patience_seconds, queue_calls
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._waiting: deque[_Call] = deque()
        self._guard = threading.RLock()  # of `_waiting`: flush may be called in another thread
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._failed_in = ""
        self._num_given = self._num_lost = 0
        self._has_raised = self._is_late = self._has_said_late = self._is_closed = False

    def describe(self, experiment: str, config: Mapping[str, Any]) -> None:
        self._give("describe", experiment, config)

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        if self._has_room(0):
            self._give("log", split, step, values)

    def publish(self, split: str, step: int, media: Mapping[str, Media]) -> None:
        size_bytes = sum(thing.size_bytes for thing in media.values())
        if self._has_room(size_bytes):
            self._give("publish", split, step, media, size_bytes=size_bytes)

    def rewind(self, step: int) -> None:
        """Returns when it is done: what was logged before it, and what comes after, stay apart."""
        self._wait(self._give("rewind", step))

    def resume(self, split: str, step: int) -> None:
        self._give("resume", split, step)

    def flush(self) -> None:
        """Returns when everything logged before has been written."""
        self._wait(self._give("flush"))

    def end(self, outcome: Outcome) -> None:
        if not self._has_raised:
            self._give("end", outcome)

    def close(self) -> None:
        """Ends the thread once everything is written; raises its error, or says what is lost."""
        if self._is_closed:
            return
        self._is_closed = True
        call = self._put("close")
        self._queue.put(None)
        if self._is_done(call):
            assert self._thread is not None
            self._thread.join()
        self._tell_loss()
        if self._failure is not None and self._must_work and not self._has_raised:
            self._raise()

    # In the caller.

    def _give(self, method: str, *arguments: Any, size_bytes: int = 0) -> _Call:
        self._raise_if_failed()
        return self._put(method, *arguments, size_bytes=size_bytes)

    def _put(self, method: str, *arguments: Any, size_bytes: int = 0) -> _Call:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"tracker {self._name}", daemon=True)
            self._thread.start()
        call = _Call(method, arguments, size_bytes)
        with self._guard:
            self._waiting.append(call)
        self._num_given += 1
        self._queue.put(call)
        return call

    def _has_room(self, size_bytes: int) -> bool:
        """Waits until the queue has room for a call; whether it has, which only `warn` gives up on."""
        while True:
            with self._guard:
                while self._waiting and not self._waiting[0].done.locked():
                    self._waiting.popleft()
                held_bytes = sum(call.size_bytes for call in self._waiting) if size_bytes else 0
                is_full = len(self._waiting) >= self._queue_calls or 0 < held_bytes > QUEUE_BYTES - size_bytes
                first = self._waiting[0] if is_full else None
            if first is None:
                return True
            if not self._is_done(first):
                self._num_given += 1
                self._num_lost += 1
                return False

    def _wait(self, call: _Call) -> None:
        self._is_done(call)
        self._raise_if_failed()

    def _is_done(self, call: _Call) -> bool:
        """Waits for a call; whether it was made. Patience that has run out comes back with the next call that works."""
        if call.wait(0 if self._is_late and not self._must_work else self._patience_seconds):
            return True
        self._is_late = True
        if not self._has_said_late:
            self._has_said_late = True
            then = "waiting for it" if self._must_work else "going on without it; what it does not take is lost"
            _logger.warning("tracker %s has been busy for %g s: %s", self._name, self._patience_seconds, then)
        while self._must_work:
            if call.wait(self._patience_seconds):
                return True
        return False

    def _raise_if_failed(self) -> None:
        if self._failure is not None and self._must_work:
            self._raise()

    def _raise(self) -> None:
        error = self._failure
        assert error is not None
        self._has_raised = True
        if not isinstance(error, Exception) or files.as_storage_error(error) is not None:
            raise error  # it is known what these mean, whoever meets them
        raise TrackerError(self._name, self._failed_in, error, self._fix) from error

    def _tell_loss(self) -> None:
        if self._must_work:
            return
        with self._guard:
            left = [call for call in self._waiting if call.done.locked() and call.method not in ("flush", "close")]
        num_lost = self._num_lost + len(left)
        if num_lost:
            first = "" if self._failure is None else f"; the first error: {_brief(self._failure)}"
            _logger.warning("tracker %s: %d of %d calls were lost%s", self._name, num_lost, self._num_given, first)

    # In the thread.

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            with self._noted(call):
                if self._failure is None or not self._must_work or call.method == "close":
                    getattr(self._tracker, call.method)(*call.arguments)
                    self._is_late = False
            call.arguments = ()  # lets go of what it held
            call.done.release()

    @contextlib.contextmanager
    def _noted(self, call: _Call) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._num_lost += 1
            if self._failure is not None:
                return
            self._failure, self._failed_in = error, str(call)
            if not self._must_work:
                said = "tracker %s failed in %s; the run goes on, and what else it loses is counted: %s"
                _logger.warning(said, self._name, call, _brief(error), exc_info=error)


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
