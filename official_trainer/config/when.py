"""The `when` of an action: at which steps it is due, as it is written in YAML and in Python.

Owns: the names and the syntax of triggers; the arithmetic of the global step, so that what is due depends on the step
alone: not on restarts, not on how steps are cut into windows. Does not own: what is done (`actions/schedule.py`,
`engine/loop.py`). In YAML::

    when: {every: 100}
    when: after_eval
    when: {any: [at_end, {all: [{every: 10}, {not: {first_steps: 100}}]}]}

A `When` answers two questions. `next_step` returns where a window must end. `is_due` is called after every window and
after every evaluation; a step inside the window counts too. Time and evaluations cannot be foreseen: they have no next
step, and only `is_due` applies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from official_trainer.config import fields
from official_trainer.config.declaration import Above, Config, Positive, PositiveFloat, spelling

FIRST_UNPLANNED_STEP = 128
"""Where `n_times` begins while the end is unknown: at 128, 256, 512, …"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """What is known about a run in advance.

    Attributes:
      start_step: global step at which this process began.
      end_step: the last step; None while it is not known.
    """

    start_step: int = 0
    end_step: int | None = None


ANY_RUN = Span()
"""Nothing is known in advance."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moment:
    """A point between two steps, at which it is asked what is due.

    Attributes:
      after: the step at which this was asked before.
      step: steps done.
      span: of the run.
      evaluated: whether an evaluation of this step has just ended.
      summarized: whether a summary of training was written at this step.
      ended: whether this is the last step.
      since_end_seconds: time since the last call of the action ended, or else since the first step.
      since_start_seconds: time since it began, or else since the first step.
    """

    after: int
    step: int
    span: Span = ANY_RUN
    evaluated: bool = False
    summarized: bool = False
    ended: bool = False
    since_end_seconds: float = 0.0
    since_start_seconds: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExponentialWhen(Config):
    """Steps at growing distances.

    Attributes:
      start: the first step, and the first distance.
      factor: each distance is this many times the previous one, and at least one step more.
    """

    start: Positive = 100
    factor: Annotated[float, Above(1)] = 1.2

    def following(self, step: int) -> int:
        """Returns the first of these steps after `step`: with 100 and 1.2 they are 100, 220, 364, 537."""
        due = distance = self.start
        while due <= step:
            distance = max(distance + 1, round(distance * self.factor))
            due += distance
        return due


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class When(Config):
    """When an action is due: exactly one trigger, and the options that some triggers have.

    Steps are global steps: they do not depend on restarts or on `steps_per_loop`, and a window ends at each of them.
    Nothing is due at step 0.

    Attributes:
      every: at the multiples of this step.
      at_steps: at these steps.
      first_steps: at this many steps from the beginning of the run.
      first_steps_of_process: at this many steps after each start.
      n_times: this many times, evenly over the run, the last time at its last step.
      n_times_of_process: this many times, evenly over the steps from each start to the last one.
      exponential: at steps with growing distances.
      every_seconds: when this many seconds have passed, at the end of the window; counted from the first step.
      measure_from: whether `every_seconds` counts from the `end` of the action's last call, or from its `start`.
      call_on_end: with `exponential` or `every_seconds`: whether the action is also due at the last step.
      after_eval: after each evaluation.
      after_summary: with each summary of training.
      at_end: at the last step, also when training ends early.
      any: at the steps of any of these.
      all: at the steps at which all of these are due.
      not_: at the steps at which this is not due; written `not`.

    Example:
      >>> from official_trainer.config import When
      >>> when = When(any=(When(at_steps=(10,)), When(every=100)))
      >>> [when.next_step(after, 1000) for after in (0, 10, 100)]
      [10, 100, 200]
    """

    WORDS: ClassVar[tuple[str, ...]] = ("after_eval", "after_summary", "at_end")
    IS_WHOLE: ClassVar[bool] = True

    every: Positive | None = None
    at_steps: tuple[Positive, ...] | None = None
    first_steps: Positive | None = None
    first_steps_of_process: Positive | None = None
    n_times: Positive | None = None
    n_times_of_process: Positive | None = None
    exponential: ExponentialWhen | None = None
    every_seconds: PositiveFloat | None = None
    measure_from: Literal["end", "start"] | None = None
    call_on_end: bool | None = None
    after_eval: bool | None = None
    after_summary: bool | None = None
    at_end: bool | None = None
    any: tuple[When, ...] | None = None
    all: tuple[When, ...] | None = None
    not_: When | None = None

    def __repr__(self) -> str:
        values_set = ((name, value) for name in fields.hints(When) if (value := getattr(self, name)) is not None)
        return f"When({', '.join(f'{name}={value!r}' for name, value in values_set)})"

    def problems(self) -> Iterator[tuple[str, str]]:
        triggers = [name for name in fields.hints(When) if name not in ("measure_from", "call_on_end")]
        chosen = [spelling(name) for name in triggers if getattr(self, name) not in (None, False)]
        if not chosen:
            yield "every", f"or another trigger must be set: {', '.join(map(spelling, triggers))}"
        elif len(chosen) > 1:
            yield chosen[-1], f"cannot be set together with {chosen[0]}; combine them by any: […] or all: […]"
        for name in ("any", "all"):
            if getattr(self, name) == ():
                yield name, "must name at least one trigger"
        if self.at_steps == ():
            yield "at_steps", "must name at least one step"
        for word in self.WORDS:
            if getattr(self, word) is False:
                yield word, f"cannot be false; write not: {word}"
        if self.measure_from is not None and self.every_seconds is None:
            yield "measure_from", "has no effect without every_seconds"
        if self.call_on_end is not None and self.every_seconds is None and self.exponential is None:
            yield "call_on_end", "has no effect without every_seconds or exponential"

    @property
    def is_foreseeable(self) -> bool:
        """Whether the steps at which this is due follow from the span alone."""
        return not (self.every_seconds or self.after_eval or self.after_summary) and all(
            part.is_foreseeable for part in self._parts
        )

    def next_step(self, after: int, until: int, span: Span = ANY_RUN) -> int | None:
        """Returns the first step in `(after, until]` at which this is due; None without one, or if it is unforeseeable.

        For a combination with something that cannot be foreseen: the first step at which it may be due.
        """
        after = max(after, 0)
        if self.all:
            return self._next_of_all(after, until, span)
        if self.any:
            steps = [part.next_step(after, until, span) for part in self.any]
        elif self.not_ is not None:
            part, is_foreseeable = self.not_, self.is_foreseeable
            free = (s for s in range(after + 1, until + 1) if not is_foreseeable or not part.next_step(s - 1, s, span))
            steps = [next(free, None)]
        else:
            steps = [self._following(after, span), span.end_step if self.at_end or self.call_on_end else None]
        return min((step for step in steps if step is not None and after < step <= until), default=None)

    def is_due(self, moment: Moment) -> bool:
        """Whether this is due now, or was due at a step since it was asked before."""
        if moment.ended and (self.at_end or self.call_on_end):
            return True
        if self.every_seconds:
            is_from_start = self.measure_from == "start"
            passed = moment.since_start_seconds if is_from_start else moment.since_end_seconds
            return passed >= self.every_seconds
        if self.after_eval:
            return moment.evaluated
        if self.after_summary:
            return moment.summarized
        if self.at_end:
            return False
        if self.any:
            return any(part.is_due(moment) for part in self.any)
        if self.not_ is not None and not self.is_foreseeable:
            return not self.not_.is_due(moment)
        is_planned = self.next_step(moment.after, moment.step, moment.span) is not None
        if self.all:  # at one step, those that can be foreseen; and now, the others
            events = [part for part in self.all if not part.is_foreseeable]
            return (is_planned or len(events) == len(self.all)) and all(part.is_due(moment) for part in events)
        return is_planned

    def _following(self, after: int, span: Span) -> int | None:
        """Returns the first step after `after` at which a trigger on steps is due."""
        start = span.start_step
        if self.every:
            return (after // self.every + 1) * self.every
        if self.at_steps:
            return min((step for step in self.at_steps if step > after), default=None)
        if self.first_steps:
            return after + 1 if after < self.first_steps else None
        if self.first_steps_of_process:
            after = max(after, start)
            return after + 1 if after < start + self.first_steps_of_process else None
        if self.n_times:
            return _evenly(self.n_times, after, 0, span.end_step)
        if self.n_times_of_process:
            return _evenly(self.n_times_of_process, after, start, span.end_step)
        return self.exponential.following(after) if self.exponential else None

    def _next_of_all(self, after: int, until: int, span: Span) -> int | None:
        foreseeable = [part for part in self._parts if part.is_foreseeable]
        if not foreseeable:
            return None
        step = after
        while True:  # each part moves the step on to where it is due, until none moves it
            start = step
            for part in foreseeable:
                due = part.next_step(max(after, step - 1), until, span)
                if due is None:
                    return None
                step = due
            if step == start and step > after:
                return step

    @property
    def _parts(self) -> tuple[When, ...]:
        return (*(self.any or ()), *(self.all or ()), *((self.not_,) if self.not_ else ()))


def _evenly(count: int, after: int, start: int, end: int | None) -> int | None:
    """Returns the first step after `after` of `count` between `start` and `end`, the last one at `end`.

    All steps, if there are not more; while the end is unknown, `start` + 128, 256, 512, …
    """
    done = max(after - start, 0)
    if end is None:
        step = FIRST_UNPLANNED_STEP
        while step <= done:
            step *= 2
        return start + step
    length = end - start
    if done >= length:
        return None
    number = done * count // length + 1  # the first of ceil(number * length / count) that may be after `done`
    while (step := -(-number * length // count)) <= done:
        number += 1
    return start + step
