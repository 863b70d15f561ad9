"""A tracker in a thread of its own: training does not wait for the place where numbers go.

Owns: the bounded queue of calls, waiting for it, and what an error in the thread means for the run.
Does not own: any destination.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Mapping
from typing import Any, Literal

from official_trainer import files
from official_trainer.errors import ExitCode, UserError, describe_error
from official_trainer.tracking import Media, Outcome, Tracker

_logger = logging.getLogger(__name__)

QUEUE_CALLS = 100
"""Calls that may wait for the thread; after that the caller waits."""

PATIENCE_SECONDS = 60.0
"""How long the caller waits for the thread before it logs a warning and, under `warn`, continues without it."""


class TrackerError(UserError, RuntimeError):
    """A tracker failed, and its `on_error` is `fail`."""

    def __init__(self, name: str, what: str, error: BaseException, fix: str = "") -> None:
        error = files.as_denied(error) or error
        super().__init__(f"{name} failed in {what}: {describe_error(error)}{fix and f'; {fix}'}")
        self.exit_code = error.exit_code if isinstance(error, UserError) else ExitCode.FAILED


class ThreadedTracker(Tracker):
    """Passes every call on to another tracker, in their order, in one thread."""

    def __init__(
        self, tracker: Tracker, *, name: str, on_error: Literal["warn", "fail"] = "warn", fix: str = ""
    ) -> None:
        """Takes the tracker; the thread starts with the first call.

        Args:
          tracker: any object with the methods of one.
          name: its name in messages.
          on_error: `fail` raises an error of the thread at the next call, or at `close`, and waits without a limit;
            `warn` logs the first error, counts lost calls, logs their number at `close`, and never raises nor waits
            without a limit.
          fix: the fix that the message of a raised error names.
        """
        self._tracker, self._must_work, self._fix = tracker, on_error == "fail", fix
        self._calls: queue.Queue[tuple[str, tuple[Any, ...], threading.Event | None]] = queue.Queue(QUEUE_CALLS)
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._failure: tuple[str, BaseException] | None = None  # the first failed call and its error
        self._num_calls = self._num_done = 0
        self._patience_seconds = PATIENCE_SECONDS
        self._has_warned = self._has_raised = self._is_closed = False

    def describe(self, experiment: str, config: Mapping[str, Any]) -> None:
        self._submit("describe", experiment, config)

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        self._submit("log", split, step, values)

    def publish(self, split: str, step: int, media: Mapping[str, Media]) -> None:
        self._submit("publish", split, step, media)

    def rewind(self, step: int) -> None:
        """Returns when it is done, so that calls before it and calls after it stay separate."""
        self._submit("rewind", step, waits=True)

    def resume(self, split: str, step: int) -> None:
        self._submit("resume", split, step)

    def flush(self) -> None:
        """Returns when everything logged before has been written."""
        self._submit("flush", waits=True)

    def end(self, outcome: Outcome) -> None:
        if not self._has_raised:
            self._submit("end", outcome)

    def close(self) -> None:
        """Ends the thread once everything is written; raises its error, or logs how many calls are lost."""
        if self._is_closed:
            return
        self._is_closed = True
        self._num_calls += 1
        if self._thread.ident is None:
            self._thread.start()
        with contextlib.suppress(queue.Full):
            self._calls.put_nowait(("close", (), None))  # else the thread comes to it by itself
        self._thread.join(self._patience_seconds)
        if self._thread.is_alive():
            self._say_late()
            if self._must_work:
                self._thread.join()
        if self._failure is not None and self._must_work and not self._has_raised:
            self._raise_failure()
        if (lost := self._num_calls - self._num_done) and not self._must_work:
            first = "" if self._failure is None else f"; the first error: {describe_error(self._failure[1])}"
            _logger.warning("%s: %d of %d calls were lost%s", self._thread.name, lost, self._num_calls, first)

    # In the caller.

    def _submit(self, method: str, *arguments: Any, waits: bool = False) -> None:
        """Adds a call, which is lost if there is no room for it; waits for its end if that is wanted."""
        if self._failure is not None and self._must_work:
            self._raise_failure()
        self._num_calls += 1
        if self._thread.ident is None:
            self._thread.start()
        ended = threading.Event() if waits else None
        try:
            self._calls.put((method, arguments, ended), timeout=self._patience_seconds)
        except queue.Full:
            self._say_late()
            if not self._must_work:
                return
            self._calls.put((method, arguments, ended))
        if ended is None:
            return
        if not ended.wait(self._patience_seconds):
            self._say_late()
            if self._must_work:
                ended.wait()
        if self._failure is not None and self._must_work:
            self._raise_failure()

    def _say_late(self) -> None:
        if not self._must_work:
            self._patience_seconds = 0.0  # until the next success
        if not self._has_warned:
            self._has_warned = True
            without = "continuing without it; calls that it does not make are lost"
            then = "waiting for it" if self._must_work else without
            _logger.warning("%s has been busy for %g s: %s", self._thread.name, PATIENCE_SECONDS, then)

    def _raise_failure(self) -> None:
        assert self._failure is not None
        self._has_raised = True
        what, error = self._failure
        if not isinstance(error, Exception) or files.as_storage_error(error) is not None:
            raise error  # callers know these kinds of errors
        raise TrackerError(self._thread.name, what, error, self._fix) from error

    # In the thread.

    def _run(self) -> None:
        method = ""
        while method != "close":
            is_idle = self._is_closed and self._calls.empty()
            method, arguments, ended = ("close", (), None) if is_idle else self._calls.get()
            try:
                if self._failure is None or not self._must_work or method == "close":  # else it has ended the run
                    getattr(self._tracker, method)(*arguments)
                    self._num_done += 1
                    self._patience_seconds = PATIENCE_SECONDS
            except BaseException as error:
                if self._failure is None:
                    self._fail(method, arguments, error)
            finally:
                if ended is not None:
                    ended.set()

    def _fail(self, method: str, arguments: tuple[Any, ...], error: BaseException) -> None:
        """Takes the first error; under `warn` it is logged here."""
        what = f"{method} of {arguments[0]} at step {arguments[1]}" if method in ("log", "publish") else method
        self._failure = what, error
        if not self._must_work:
            message = "%s failed in %s; the run continues and counts further lost calls: %s"
            is_explained = isinstance(error, UserError) or files.as_storage_error(error) is not None
            trace = None if is_explained else error
            _logger.warning(message, self._thread.name, what, describe_error(error), exc_info=trace)
