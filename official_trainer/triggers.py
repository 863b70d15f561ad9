"""Triggers: immutable values that determine at which steps something is due.

Owns: the arithmetic of the global step, so that what is due depends on the step alone: not on restarts, not on how
steps are cut into windows. Does not own: what is done (`actions/schedule.py`, `engine/loop.py`), or how a trigger is
written in YAML (`config/when.py`).

A trigger answers two questions. `next_step` returns where a window must end. `is_due` is called after every window and
after every evaluation; a step inside the window counts too. Time and evaluations cannot be foreseen: triggers on them
have no next step, and only `is_due` applies.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from typing import Literal

FIRST_UNPLANNED_STEP = 128
"""Where `NTimes` begins while the end is unknown: at 128, 256, 512, …"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """What is known about a run in advance.

    Attributes:
      start_step: global step at which this process began.
      end_step: the last step; None while it is not known.
    """

    start_step: int = 0
    end_step: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moment:
    """A point between two steps, at which triggers are checked.

    Attributes:
      after: the step of the check before.
      step: steps done.
      span: of the run.
      evaluated: whether an evaluation of this step has just ended.
      summarized: whether a summary of training was written at this step.
      ended: whether this is the last step.
      since_end_seconds: time since the action of the trigger last ended, or else since the first step.
      since_start_seconds: time since it last began, or else since the first step.
    """

    after: int
    step: int
    span: Span = Span()
    evaluated: bool = False
    summarized: bool = False
    ended: bool = False
    since_end_seconds: float = 0.0
    since_start_seconds: float = 0.0


class Trigger:
    """When something is due. Immutable; equal triggers are due at the same steps. Never due at step 0.

    Example:
      >>> from official_trainer.triggers import AnyOf, AtSteps, Every, Span
      >>> trigger = AnyOf((AtSteps((10,)), Every(100)))
      >>> [step for step in range(301) if trigger.is_due_at(step)]
      [10, 100, 200, 300]
      >>> trigger.next_step(after=10, until=1000, span=Span(end_step=1000))
      100
    """

    @property
    def is_foreseeable(self) -> bool:
        """Whether the steps at which this is due follow from the span alone."""
        return True

    def next_step(self, after: int, until: int, span: Span) -> int | None:
        """Returns the first step in `(after, until]` at which this is due; None without one, or if it is unforeseeable.

        For a combination with something that cannot be foreseen: the first step at which it may be due.
        """
        step = self._first_after(max(after, 0), span)
        return step if step is not None and step <= until else None

    def is_due(self, moment: Moment) -> bool:
        """Whether this is due now, or was due at a step since the check before."""
        return self.next_step(moment.after, moment.step, moment.span) is not None

    def is_due_at(self, step: int) -> bool:
        """Whether this is due at `step` of any run."""
        return self.next_step(step - 1, step, Span()) is not None

    def _first_after(self, after: int, span: Span) -> int | None:
        raise NotImplementedError


class _Unforeseeable(Trigger):
    @property
    def is_foreseeable(self) -> bool:
        return False

    def next_step(self, after: int, until: int, span: Span) -> int | None:
        return None


@dataclasses.dataclass(frozen=True)
class Every(Trigger):
    """Due at the multiples of `steps`."""

    steps: int

    def __post_init__(self) -> None:
        _refuse_unless(self.steps >= 1, "every", self.steps, "at least 1")

    def following(self, step: int) -> int:
        """Returns the first multiple after `step`."""
        return (step // self.steps + 1) * self.steps

    def _first_after(self, after: int, span: Span) -> int | None:
        return self.following(after)


@dataclasses.dataclass(frozen=True)
class AtSteps(Trigger):
    """Due at these steps."""

    steps: tuple[int, ...]

    def __post_init__(self) -> None:
        _refuse_unless(all(step >= 1 for step in self.steps), "at_steps", self.steps, "steps from 1 on")

    def _first_after(self, after: int, span: Span) -> int | None:
        return min((step for step in self.steps if step > after), default=None)


@dataclasses.dataclass(frozen=True)
class FirstSteps(Trigger):
    """Due at the first `count` steps of the run: 1, 2, …, `count`; or of each process, after its start."""

    count: int
    of_process: bool = False

    def __post_init__(self) -> None:
        name = "first_steps_of_process" if self.of_process else "first_steps"
        _refuse_unless(self.count >= 1, name, self.count, "at least 1")

    def _first_after(self, after: int, span: Span) -> int | None:
        start = span.start_step if self.of_process else 0
        after = max(after, start)
        return after + 1 if after < start + self.count else None


@dataclasses.dataclass(frozen=True)
class NTimes(Trigger):
    """Due `count` times, evenly over the run, the last time at its last step; at every step of a shorter run.

    While the end is unknown, in the first epoch of data of unknown size, at 128, 256, 512, …

    Attributes:
      count: how many times.
      of_process: whether the steps of this process are divided, in place of those of the run.
    """

    count: int
    of_process: bool = False

    def __post_init__(self) -> None:
        _refuse_unless(self.count >= 1, "n_times", self.count, "at least 1")

    def _first_after(self, after: int, span: Span) -> int | None:
        start = span.start_step if self.of_process else 0
        done = max(after - start, 0)
        if span.end_step is None:
            step = FIRST_UNPLANNED_STEP
            while step <= done:
                step *= 2
            return start + step
        length = span.end_step - start
        if done >= length:
            return None
        number = done * self.count // length + 1  # the first of ceil(number * length / count) that may be after `done`
        while (step := -(-number * length // self.count)) <= done:
            number += 1
        return start + step


@dataclasses.dataclass(frozen=True)
class Exponential(Trigger):
    """Due at steps that lie further and further apart: `start`, then each distance `factor` times the one before.

    With 100 and 1.2: 100, 220, 364, 537, 745, … A distance is a whole number of steps, and at least one more than the
    one before.
    """

    start: int = 100
    factor: float = 1.2

    def __post_init__(self) -> None:
        _refuse_unless(self.start >= 1, "exponential.start", self.start, "at least 1")
        _refuse_unless(self.factor > 1, "exponential.factor", self.factor, "greater than 1")

    def _first_after(self, after: int, span: Span) -> int | None:
        steps = _exponential_steps(self.start, self.factor)
        distance = steps[-1] - steps[-2]
        while steps[-1] <= after:
            distance = max(distance + 1, round(distance * self.factor))
            steps.append(steps[-1] + distance)
        return steps[bisect.bisect_right(steps, max(after, 0))]


@functools.cache
def _exponential_steps(start: int, factor: float) -> list[int]:
    """Returns the steps known so far, after a 0; the list grows."""
    return [0, start]


@dataclasses.dataclass(frozen=True)
class EverySeconds(_Unforeseeable):
    """Due at the first window that ends when `seconds` have passed. Depends on the clock, so restarts move it.

    The clock starts at the first step of the process.

    Attributes:
      seconds: the pause.
      measure_from: whether it is counted from the `end` of the action, so that its own time does not count, or from its
        `start`.
    """

    seconds: float
    measure_from: Literal["end", "start"] = "end"

    def __post_init__(self) -> None:
        _refuse_unless(self.seconds > 0, "every_seconds", self.seconds, "greater than 0")

    def is_due(self, moment: Moment) -> bool:
        passed = moment.since_end_seconds if self.measure_from == "end" else moment.since_start_seconds
        return passed >= self.seconds


@dataclasses.dataclass(frozen=True)
class AfterEval(_Unforeseeable):
    """Due after each evaluation."""

    def is_due(self, moment: Moment) -> bool:
        return moment.evaluated


@dataclasses.dataclass(frozen=True)
class AfterSummary(_Unforeseeable):
    """Due with each summary of training (`trainer.summary_interval`, and the last step)."""

    def is_due(self, moment: Moment) -> bool:
        return moment.summarized


@dataclasses.dataclass(frozen=True)
class AtEnd(Trigger):
    """Due at the last step, wherever training ends."""

    def _first_after(self, after: int, span: Span) -> int | None:
        return span.end_step if span.end_step is not None and span.end_step > after else None

    def is_due(self, moment: Moment) -> bool:
        return moment.ended


@dataclasses.dataclass(frozen=True)
class _Combination(Trigger):
    triggers: tuple[Trigger, ...]

    def __post_init__(self) -> None:
        name = "any" if isinstance(self, AnyOf) else "all"
        _refuse_unless(bool(self.triggers), name, "nothing", "at least one trigger")

    @property
    def is_foreseeable(self) -> bool:
        return all(trigger.is_foreseeable for trigger in self.triggers)


@dataclasses.dataclass(frozen=True)
class AnyOf(_Combination):
    """Due when one of the triggers is due."""

    def next_step(self, after: int, until: int, span: Span) -> int | None:
        steps = (trigger.next_step(after, until, span) for trigger in self.triggers)
        return min((step for step in steps if step is not None), default=None)

    def is_due(self, moment: Moment) -> bool:
        return any(trigger.is_due(moment) for trigger in self.triggers)


@dataclasses.dataclass(frozen=True)
class AllOf(_Combination):
    """Due at the steps at which every trigger is due."""

    def next_step(self, after: int, until: int, span: Span) -> int | None:
        foreseeable = [trigger for trigger in self.triggers if trigger.is_foreseeable]
        if not foreseeable:
            return None
        step = after
        while True:  # each trigger moves the step on to where it is due, until none moves it
            start = step
            for trigger in foreseeable:
                due = trigger.next_step(max(after, step - 1), until, span)
                if due is None:
                    return None
                step = due
            if step == start and step > after:
                return step

    def is_due(self, moment: Moment) -> bool:
        if any(trigger.is_foreseeable for trigger in self.triggers) and not super().is_due(moment):
            return False
        return all(trigger.is_due(moment) for trigger in self.triggers if not trigger.is_foreseeable)


@dataclasses.dataclass(frozen=True)
class Not(Trigger):
    """Due at the steps at which `part` is not due."""

    part: Trigger

    @property
    def is_foreseeable(self) -> bool:
        return self.part.is_foreseeable

    def next_step(self, after: int, until: int, span: Span) -> int | None:
        for step in range(max(after, 0) + 1, until + 1):
            if not self.is_foreseeable or self.part.next_step(step - 1, step, span) is None:
                return step
        return None

    def is_due(self, moment: Moment) -> bool:
        return super().is_due(moment) if self.is_foreseeable else not self.part.is_due(moment)


def _refuse_unless(is_allowed: bool, name: str, value: object, allowed: str) -> None:
    if not is_allowed:
        raise ValueError(f"{name} is {value}; it must be {allowed}")
