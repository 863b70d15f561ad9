"""A tracker in a thread of its own: training does not wait for the place where numbers go.

Owns: the bounded queue of calls, waiting for it, and what an error in the thread means for the run.
Does not own: the thread itself (`threads.py` of the package), any destination.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any, Literal

from official_trainer import files
from official_trainer.errors import ExitCode, UserError, describe_error
from official_trainer.threads import Call, WorkerThread
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
        super().__init__(f"tracker {name} failed in {what}: {describe_error(error)}{fix and f'; {fix}'}")
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
        self._tracker, self._name, self._must_work, self._fix = tracker, name, on_error == "fail", fix
        self._worker = WorkerThread(f"tracker {name}")
        self._failure: tuple[str, BaseException] | None = None  # the first failed call and its error
        self._num_calls = self._num_made = 0
        self._is_late = self._has_warned = self._has_raised = self._is_closed = False

    def describe(self, experiment: str, config: Mapping[str, Any]) -> None:
        self._submit("describe", experiment, config)

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        self._submit("log", split, step, values)

    def publish(self, split: str, step: int, media: Mapping[str, Media]) -> None:
        self._submit("publish", split, step, media)

    def rewind(self, step: int) -> None:
        """Returns when it is done, so that calls before it and calls after it stay separate."""
        self._wait(self._submit("rewind", step))

    def resume(self, split: str, step: int) -> None:
        self._submit("resume", split, step)

    def flush(self) -> None:
        """Returns when everything logged before has been written."""
        self._wait(self._submit("flush"))

    def end(self, outcome: Outcome) -> None:
        if not self._has_raised:
            self._submit("end", outcome)

    def close(self) -> None:
        """Ends the thread once everything is written; raises its error, or logs how many calls are lost."""
        if self._is_closed:
            return
        self._is_closed = True
        self._num_calls += 1
        call = self._worker.submit(functools.partial(self._call, "close", ()))
        self._worker.close()
        self._has_ended(call)
        if self._must_work:
            if not self._has_raised:
                self._raise_failure()
        elif lost := self._num_calls - self._num_made:
            first = "" if self._failure is None else f"; the first error: {_first_line(self._failure[1])}"
            _logger.warning("tracker %s: %d of %d calls were lost%s", self._name, lost, self._num_calls, first)

    # In the caller.

    def _submit(self, method: str, *arguments: Any) -> Call | None:
        """Adds a call; returns None if there was no room for it, so that it is lost."""
        self._raise_failure()
        self._num_calls += 1
        waiting = self._worker.pending
        if len(waiting) >= QUEUE_CALLS and not self._has_ended(waiting[-QUEUE_CALLS]):
            return None
        return self._worker.submit(functools.partial(self._call, method, arguments))

    def _wait(self, call: Call | None) -> None:
        if call is not None:
            self._has_ended(call)
        self._raise_failure()

    def _has_ended(self, call: Call) -> bool:
        """Waits for a call; returns whether it has ended. Patience that has run out returns with the next success."""
        if call.wait(0 if self._is_late and not self._must_work else PATIENCE_SECONDS):
            return True
        self._is_late = True
        if not self._has_warned:
            self._has_warned = True
            without = "continuing without it; calls that it does not make are lost"
            then = "waiting for it" if self._must_work else without
            _logger.warning("tracker %s has been busy for %g s: %s", self._name, PATIENCE_SECONDS, then)
        return self._must_work and call.wait()

    def _raise_failure(self) -> None:
        if self._failure is None or not self._must_work:
            return
        self._has_raised = True
        what, error = self._failure
        if not isinstance(error, Exception) or files.as_storage_error(error) is not None:
            raise error  # callers know these kinds of errors
        raise TrackerError(self._name, what, error, self._fix) from error

    # In the thread.

    def _call(self, method: str, arguments: tuple[Any, ...]) -> None:
        """Makes a call, unless an earlier failure ends the run."""
        if self._failure is not None and self._must_work and method != "close":
            return
        try:
            getattr(self._tracker, method)(*arguments)
        except BaseException as error:
            if self._failure is None:
                what = f"{method} of {arguments[0]} at step {arguments[1]}" if method in ("log", "publish") else method
                self._failure = what, error
                if not self._must_work:
                    message = "tracker %s failed in %s; the run continues and counts further lost calls: %s"
                    is_explained = isinstance(error, UserError) or files.as_storage_error(error) is not None
                    trace = None if is_explained else error
                    _logger.warning(message, self._name, what, _first_line(error), exc_info=trace)
        else:
            self._num_made += 1
            self._is_late = False


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
