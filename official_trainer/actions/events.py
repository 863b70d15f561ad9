"""Events of a run, and notifying others of them in a thread beside training.

Owns: which hook is which event, what an event holds (`Event`), the queue of notifications in their order, and when
their errors are raised. Does not own: how a notification is sent (`command.py`, `webhook.py`, `email.py`).
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, Literal

from official_trainer import files
from official_trainer.actions.action import Action, Run
from official_trainer.errors import UserError, describe_error
from official_trainer.shown import printable
from official_trainer.stopping import PreemptedError, StopRequest
from official_trainer.threads import WorkerThread
from official_trainer.tracking import monitored
from official_trainer.tracking.jsonl import encode
from official_trainer.tracking.record import read_run

EventName = Literal["start", "step", "eval", "best", "end", "failure", "preempted", "stall"]
"""A process begins; the action is due at a step, or after an evaluation, or after one that is the best so far; the run
is done, failed, or was stopped and will be continued; the process hangs, and is about to end."""

REPEATED = ("step", "eval", "best")
"""The events that `min_interval_seconds` limits."""

MAX_WAITING = 100
"""How many events may wait until they are sent."""

STOP_SECONDS = 5.0
"""How long a run that is asked to stop waits until all events are sent, at most; its state is saved by then."""

_LAST_SECONDS = 2.0
_POLL_SECONDS = 0.2


class NotificationError(UserError, RuntimeError):
    """A notification of an event could not be sent."""


Event = Mapping[str, Any]
"""One event, in values that strict JSON allows: a number that is not finite is a string, such as `"NaN"`.

`event` is its name, `step` the global step, `experiment` the registered name or empty, `model_dir` the run directory,
`metrics` the results of the newest evaluation if there was one in this process, and else of training, `reason` why the
run has ended, unless it simply reached its last step.
"""


def summary(event: Event) -> str:
    """Returns an event as a sentence: `digits failed at step 300: no space left on device (loss 0.21), runs/digits`."""
    metrics = ", ".join(f"{name} {monitored.show(float(value))}" for name, value in event["metrics"].items())
    first, _, _ = (event["reason"] or "").partition("\n")
    reason = f": {first.rstrip('.')}" if first else ""
    said = f"{event['experiment'] or 'a run'} {_VERBS[event['event']]} at step {event['step']}{reason}"
    return printable(f"{said}{f' ({metrics})' if metrics else ''}, {event['model_dir']}")


_VERBS: Mapping[str, str] = {
    "start": "starts",
    "step": "is",
    "eval": "was evaluated",
    "best": "has a new best evaluation",
    "end": "is done",
    "failure": "failed",
    "preempted": "was stopped and will be continued",
    "stall": "hangs",
}


def secret(env: str, path: str) -> tuple[str, str]:
    """Returns a secret from an environment variable or a file, and what is wrong with its place; its value is nowhere.

    Args:
      env: name of the variable; empty for the file.
      path: the file, without the white space around its text.
    """
    if env:
        value = os.environ.get(env, "")
        return value, "" if value else f"the environment variable {env} is not set"
    try:
        value = files.read_text(os.path.expanduser(path)).strip()
    except (OSError, ValueError) as error:
        reason = files.reason_of(error) if isinstance(error, OSError) else "it is no text"
        return "", f"{path} cannot be read: {reason}"
    return value, "" if value else f"{path} is empty"


def field_problems(events: Sequence[EventName], when: object) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with the fields that all notifiers have."""
    if not events:
        yield "events", "must name at least one event"
    if len(set(events)) < len(events):
        yield "events", "names an event twice"
    if when is not None and not {*REPEATED} & set(events):
        yield "when", "has no effect unless events has step, eval or best"


def _rate_limit(interval_seconds: float, clock: Callable[[], float]) -> Callable[[EventName], bool]:
    """Returns what says whether an event does not come too soon after the last of `REPEATED`."""
    last_seconds = -math.inf

    def is_in_turn(event: EventName) -> bool:
        nonlocal last_seconds
        if event not in REPEATED:
            return True
        is_due = (now := clock()) - last_seconds >= interval_seconds
        last_seconds = now if is_due else last_seconds
        return is_due

    return is_in_turn


class Notifier(Action):
    """Sends a notification of each event, in their order, in a thread. Subclasses define `send` and `end_seconds`.

    Errors of the thread are raised at the next hook. After a restart the event of an evaluation may be sent again.

    Size: its queue, and what an event holds, are kept from hook to hook.
    """

    def __init__(self, config: Any, *, waits: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes the section, whose `events` are sent, and whether training waits until an event is sent."""
        self._config, self._waits = config, waits
        self._worker = WorkerThread(type(self).__name__.lower())
        self._calls: list[futures.Future[Any]] = []  # those that had not ended when the last one was added
        self._errors: deque[Exception] = deque()  # of the thread and of the queue, oldest first
        self._experiment = ""
        self._metrics: Mapping[str, float] = {}
        self._is_aborted = False
        self._is_in_turn = _rate_limit(config.min_interval_seconds, clock)

    def send(self, event: Event) -> None:
        """Sends one event; runs in the thread, and raises an error if it fails."""
        raise NotImplementedError

    def end_seconds(self) -> float:
        """Returns how long the end of the run waits, at most, until all events are sent."""
        raise NotImplementedError

    def abort(self) -> None:
        """Ends the `send` that is running, because the run has no more time for it."""
        self._is_aborted = True

    def on_start(self, run: Run) -> None:
        self._experiment = (read_run(run.model_dir) or {}).get("experiment", "")
        if not run.is_dry_run:
            self._notify("start", run)

    def on_step(self, run: Run) -> None:
        self._notify("step", run, run.train_logs)

    def on_eval(self, run: Run, logs: Mapping[str, float]) -> None:
        self._metrics = dict(logs)
        self._notify("eval", run, logs)
        best = (read_run(run.model_dir) or {}).get("best") if "best" in self._config.events else None
        if isinstance(best, Mapping) and best.get("step") == run.step:
            self._notify("best", run, logs)

    def on_stall(self, run: Run, reason: str) -> None:
        if "stall" in self._config.events:
            self.send(self._event("stall", run, self._metrics or run.train_logs, reason))  # the thread may hang too

    def on_end(self, run: Run, failure: BaseException | None) -> None:
        metrics = self._metrics or run.train_logs
        is_stop = isinstance(failure, PreemptedError | KeyboardInterrupt)
        if failure is None:
            self._put("end", run, metrics, run.state.stop_reason)
        else:
            self._put("preempted" if is_stop else "failure", run, metrics, describe_error(failure).removesuffix(": "))
        stop, limit_seconds = run.trainer.process_group.stop, self.end_seconds()
        are_sent = not is_stop and self._wait(limit_seconds, stop)
        if not are_sent and (is_stop or stop.reason is not None):
            are_sent = self.are_sent(min(limit_seconds, STOP_SECONDS))
        if not are_sent:
            num_cancelled = sum(call.cancel() for call in self._calls)
            self.abort()
            self.are_sent(_LAST_SECONDS)
            if num_cancelled:
                events = "event was" if num_cancelled == 1 else "events were"
                message = f"{num_cancelled} more {events} not sent, because the run has ended"
                self._errors.append(NotificationError(message))
        self._worker.close()
        self._raise_errors()

    def _notify(self, event: EventName, run: Run, metrics: Mapping[str, float] | None = None) -> None:
        self._put(event, run, metrics or {}, None)
        if self._waits:
            self._wait(math.inf, run.trainer.process_group.stop)
        self._raise_errors()

    def are_sent(self, seconds: float) -> bool:
        """Waits until all events are sent, for at most `seconds`; returns whether they are."""
        return not futures.wait(self._calls, seconds).not_done

    def _wait(self, seconds: float, stop: StopRequest) -> bool:
        """Waits until all is sent, for at most `seconds`, and no longer once the run is asked to stop."""
        end = time.monotonic() + seconds
        while not self.are_sent(min(_POLL_SECONDS, end - time.monotonic())):
            if stop.reason is not None or time.monotonic() >= end:
                return False
        return True

    def _put(self, event: EventName, run: Run, metrics: Mapping[str, float], reason: str | None) -> None:
        """Has an event sent after those before it; one that finds the queue full is left out, which is an error."""
        if event not in self._config.events or not self._is_in_turn(event):
            return
        self._calls = [call for call in self._calls if not call.done()]
        if len(self._calls) > MAX_WAITING:  # one of them is being sent
            self._errors.append(NotificationError(f"{MAX_WAITING} events wait to be sent already; one is left out"))
            return
        new = self._event(event, run, metrics, reason)

        def send() -> None:
            try:
                self.send(new)
            except Exception as error:
                self._errors.append(error)

        self._calls.append(self._worker.submit(send))

    def _event(self, event: EventName, run: Run, metrics: Mapping[str, float], reason: str | None) -> Event:
        return {
            "event": event,
            "step": run.step,
            "experiment": self._experiment,
            "model_dir": run.model_dir,
            "metrics": {name: encode(float(value)) for name, value in metrics.items()},
            "reason": reason,
        }

    def _raise_errors(self) -> None:
        errors = [self._errors.popleft() for _ in range(len(self._errors))]
        if errors and self.on_error == "disable":  # on_end will not be called, so nothing waits for the rest
            for call in self._calls:
                call.cancel()
            self.abort()
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise NotificationError("\n".join(str(error) for error in errors))
