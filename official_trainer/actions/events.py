"""What happens in a run, as others are told of it: events, what is said of each, and telling it beside training.

Owns: which hook is which event, what is said of one (`Happening`), the thread that tells them in their order, and when
its errors come up. Does not own: whom they are told (`command.py`, `webhook.py`).
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from official_trainer.actions.action import Action, Run
from official_trainer.errors import UserError, describe_error
from official_trainer.stopping import Interrupted, PreemptedError
from official_trainer.tracking.jsonl import encode
from official_trainer.tracking.record import read_run

Event = Literal["start", "step", "eval", "end", "failure", "preempted"]
"""A process begins; the action is due at a step, or after an evaluation; the run is done, failed, or was stopped and
will be continued."""

MAX_WAITING = 100
"""How many events wait to be told, at most."""

STOP_SECONDS = 5.0
"""How long a run that is asked to stop waits until all is told, at most; its state is saved by then."""

_LAST_SECONDS = 2.0


class TellingError(UserError, RuntimeError):
    """Somebody could not be told of an event."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Happening:
    """One event.

    Attributes:
      event: which.
      step: the global step.
      experiment: registered name; empty if nobody knows.
      model_dir: the run directory.
      metrics: results of the newest evaluation if there was one in this process, and else of training.
      reason: why the run has ended, if it has and not simply at its last step.
    """

    event: Event
    step: int
    experiment: str
    model_dir: str
    metrics: Mapping[str, float]
    reason: str | None = None

    def payload(self) -> dict[str, Any]:
        """Returns all of it as strict JSON takes it: what is no finite number is a word, such as `"NaN"`."""
        return {**vars(self), "metrics": {name: encode(float(value)) for name, value in self.metrics.items()}}


def problems(events: Sequence[Event], when: object) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with the fields that all actions have that tell of events."""
    if not events:
        yield "events", "must name at least one event"
    if len(set(events)) < len(events):
        yield "events", "names an event twice"
    if when is not None and not {"step", "eval"} & set(events):
        yield "when", "has no effect unless events has step or eval"


class Teller(Action):
    """Tells somebody of events, in their order, in a thread of its own. Subclasses define `tell`.

    What goes wrong there comes up at the next hook. After a restart an evaluation may be told again.
    """

    def __init__(self, events: Sequence[Event], *, waits: bool = False, end_seconds: float) -> None:
        """Takes the events.

        Args:
          events: those that are told.
          waits: whether training waits until an event is told.
          end_seconds: how long the end of the run waits, at most, until all are.
        """
        self._events, self._waits, self._end_seconds = frozenset(events), waits, end_seconds
        self._outbox = Outbox(self.tell, type(self).__name__.lower())
        self._experiment = ""
        self._metrics: Mapping[str, float] = {}

    def tell(self, happening: Happening) -> None:
        """Tells of one event; runs in the thread, and raises what goes wrong."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Ends what `tell` does now, because the time at the end is over."""

    def on_start(self, run: Run) -> None:
        self._experiment = (read_run(run.model_dir) or {}).get("experiment", "")
        self._happens("start", run)

    def on_step(self, run: Run) -> None:
        self._happens("step", run, run.train_logs)

    def on_eval(self, run: Run, logs: Mapping[str, float]) -> None:
        self._metrics = dict(logs)
        self._happens("eval", run, logs)

    def on_end(self, run: Run, failure: BaseException | None) -> None:
        metrics = self._metrics or run.train_logs
        is_stop = isinstance(failure, PreemptedError | Interrupted | KeyboardInterrupt)
        if failure is None:
            self._put("end", run, metrics, run.state.stop_reason)
        else:
            self._put("preempted" if is_stop else "failure", run, metrics, describe_error(failure).removesuffix(": "))
        if not self._is_all_told(run, is_stop=is_stop):
            left = self._outbox.abandon()
            self.give_up()
            self._outbox.wait(_LAST_SECONDS)
            if left:
                self._outbox.fail(TellingError(f"{left} more events were not told, because the run has ended"))
        self._outbox.close()
        self._raise_errors()

    def _is_all_told(self, run: Run, *, is_stop: bool) -> bool:
        """Waits at the end of the run; a stop leaves little time, and what is not told by then is given up."""
        if is_stop:
            return self._outbox.wait(min(self._end_seconds, STOP_SECONDS))
        try:
            with run.trainer.stop.interruptible():
                return self._outbox.wait(self._end_seconds)
        except PreemptedError:
            return self._outbox.wait(STOP_SECONDS)

    def _happens(self, event: Event, run: Run, metrics: Mapping[str, float] | None = None) -> None:
        self._put(event, run, metrics or {}, None)
        if self._waits:
            with run.trainer.stop.interruptible():
                self._outbox.wait(None)
        self._raise_errors()

    def _put(self, event: Event, run: Run, metrics: Mapping[str, float], reason: str | None) -> None:
        if event in self._events:
            self._outbox.put(
                Happening(
                    event=event,
                    step=run.step,
                    experiment=self._experiment,
                    model_dir=run.model_dir,
                    metrics=dict(metrics),
                    reason=reason,
                )
            )

    def _raise_errors(self) -> None:
        errors = self._outbox.take_errors()
        if errors and self.on_error == "disable":  # there will be no end to wait at
            self._outbox.abandon()
            self.give_up()
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise TellingError("\n".join(str(error) for error in errors))


class Outbox:
    """Works things off in a thread of its own, one at a time, in their order; keeps errors until they are asked for."""

    def __init__(self, work: Callable[[Any], None], name: str) -> None:
        self._work, self._name = work, name
        self._changed = threading.Condition()
        self._waiting: deque[Any] = deque()
        self._errors: list[Exception] = []
        self._thread: threading.Thread | None = None
        self._is_busy = self._is_closed = False

    def put(self, thing: Any) -> None:
        """Takes one thing more; one too many is an error, and left out."""
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                self._errors.append(TellingError(f"{MAX_WAITING} events wait to be told already; one is left out"))
                return
            self._waiting.append(thing)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, seconds: float | None) -> bool:
        """Waits until nothing is left to do, at most so long; returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._is_busy, seconds)

    def abandon(self) -> int:
        """Forgets what has not begun; returns how much that is."""
        with self._changed:
            count = len(self._waiting)
            self._waiting.clear()
            return count

    def fail(self, error: Exception) -> None:
        """Adds an error."""
        with self._changed:
            self._errors.append(error)

    def take_errors(self) -> list[Exception]:
        """Returns the errors since the last call."""
        with self._changed:
            errors, self._errors = self._errors, []
            return errors

    def close(self) -> None:
        """Ends the thread, once it is done with what it has begun."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                thing, self._is_busy = self._waiting.popleft(), True
            error: Exception | None = None
            try:
                self._work(thing)
            except Exception as caught:
                error = caught
            with self._changed:
                self._is_busy = False
                if error is not None:
                    self._errors.append(error)
                self._changed.notify_all()
