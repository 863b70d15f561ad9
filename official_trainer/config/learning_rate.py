"""The learning rate at each step, computed without TensorFlow, and what of it is a mistake.

Owns: Model Garden's schedules and warm-ups in plain Python; the steps at which a rate is 0 or has ended.
Does not own: the sections (`optimization.py`), the schedule that trains (`official_trainer/tasks/optimization.py`).

The sections are ours or those of an experiment of Model Garden, which have the same fields. The update that leads to
step `n + 1` has the rate of step `n`, so the last one that counts is that of `train_steps - 1`.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from official_trainer.config import fields
from official_trainer.config.errors import Problem
from official_trainer.config.optimization import LENGTHS
from official_trainer.config.provenance import Resolved

_HARDLY_BEGUN, _TRIED = 10, 100
"""A schedule of more than so many times the steps of training is taken for a mistake, one of twice as many is common.

Where only the steps of training were set, and the schedule is that of the experiment, a short try of it is common.
"""
_ROOT = "trainer.optimizer_config"


class Finding(NamedTuple):
    """What is wrong with a learning rate; whether nothing can be learned with it."""

    problem: Problem
    is_fatal: bool


def findings(resolved: Resolved) -> Iterator[Finding]:
    """Yields what is wrong with the learning rate of an experiment, before it trains.

    A rate that is 0 throughout, or that is no number, is fatal. A warm-up longer than training, a schedule that ends
    before training or has hardly begun when it ends, and a rate of 0 beyond the start of a warm-up are not.

    Args:
      resolved: the configuration of an experiment.
    """
    trainer = resolved.config.trainer
    rate = _rate_of(trainer)
    if rate is None or not trainer.train_steps:
        return
    trail = resolved.trail
    for what, path, fix, is_fatal in _found(rate, trainer.train_steps, lambda path: trail.origin(path).by_user):
        origin = trail.origin(path)
        yield Finding(Problem(what, path, fix=fix, origin=None if origin.kind == "default" else origin), is_fatal)


@dataclasses.dataclass(frozen=True)
class Rate:
    """A learning rate by its sections.

    Attributes:
      kind: the schedule.
      schedule: its section.
      warmup_kind: the warm-up; None if there is none.
      warmup: its section.
    """

    kind: str
    schedule: Any
    warmup_kind: str | None = None
    warmup: Any = None

    @property
    def warmup_steps(self) -> int:
        """The steps before the schedule counts."""
        return self.warmup.warmup_steps if self.warmup_kind else 0

    @property
    def end(self) -> int | None:
        """The step from which the schedule does not change any more; None if it has no end."""
        offset = getattr(self.schedule, "offset", 0)
        does_not_fall = getattr(self.schedule, "linear_decay_fraction", 1) == 0
        if self.kind not in LENGTHS or getattr(self.schedule, "cycle", False) or does_not_fall:
            return None
        return int(getattr(self.schedule, LENGTHS[self.kind]) + offset)

    @property
    def is_level(self) -> bool:
        """Whether a schedule that has an end never changes."""
        assert self.end is not None, "only of a schedule that has an end"
        length = getattr(self.schedule, LENGTHS[self.kind])
        return len({self._scheduled(self.end - before) for before in (0, length // 2, length)}) == 1

    @property
    def length(self) -> tuple[str, int] | None:
        """The field that says how long the schedule takes, and its steps; None if it changes at each step, or never."""
        if self.end is not None:
            return None if self.is_level else (LENGTHS[self.kind], self.end)
        if self.kind == "exponential" and self.schedule.decay_rate != 1:
            return "decay_steps", self.schedule.decay_steps
        boundaries = getattr(self.schedule, "boundaries", None) or ()
        first = next((each for each in boundaries if each > 0), None)
        return None if first is None else ("boundaries", first + getattr(self.schedule, "offset", 0))

    def at(self, step: int) -> float:
        """Returns the rate of the update after `step` updates; NaN if there is none."""
        if step >= self.warmup_steps:
            return self._scheduled(step)
        peak, steps = self._scheduled(self.warmup_steps), self.warmup_steps
        if self.warmup_kind == "polynomial":
            return float(peak * (max(step, 1) / steps) ** self.warmup.power)
        start = self.warmup.warmup_learning_rate
        return float(start + step / steps * (peak - start))

    def pieces(self, train_steps: int) -> list[range]:
        """Returns the steps of training, split where the formula of the rate changes."""
        offset = getattr(self.schedule, "offset", 0)
        starts = {0, self.warmup_steps, offset, offset + 1}
        starts |= {self.end} if self.end is not None else set()
        boundaries = getattr(self.schedule, "boundaries", None) or ()
        starts |= {offset + each + add for each in boundaries for add in (0, 1)}
        inside = sorted(start for start in starts if 0 <= start < train_steps)
        return [range(start, stop) for start, stop in zip(inside, [*inside[1:], train_steps], strict=True)]

    def _scheduled(self, step: int) -> float:
        try:
            return float(_SCHEDULES[self.kind](self.schedule, step - getattr(self.schedule, "offset", 0)))
        except (OverflowError, ZeroDivisionError, IndexError):  # 0 to a negative power; too few values
            return math.inf


def _rate_of(trainer: Any) -> Rate | None:
    """Returns the learning rate of a trainer section; None where that has no schedule that is known here."""
    rate: Any = getattr(trainer.optimizer_config, "learning_rate", None)
    warmup: Any = getattr(trainer.optimizer_config, "warmup", None)
    if getattr(rate, "type", None) not in _SCHEDULES:
        return None
    kind = getattr(warmup, "type", None)
    for section in (rate.get(), warmup.get() if kind else None):
        nulls = {key for key, value in fields.children(section) if value is None}
        if nulls - {"name", "staircase"}:
            return None  # in Model Garden's sections, whose own code refuses it
    return Rate(rate.type, rate.get(), kind, warmup.get() if kind else None)


_Found = tuple[str, str, str, bool]


def _found(rate: Rate, steps: int, is_set: Callable[[str], bool]) -> Iterator[_Found]:
    branch = f"{_ROOT}.learning_rate.{rate.kind}"
    idle = _idle(rate, steps)
    endless = [piece.start for piece in rate.pieces(steps) if not math.isfinite(rate.at(piece.start))]
    if endless:
        path = f"{branch}.{_field(rate)}"
        what = f"the learning rate is not a number from step {endless[0]} on, and training ends at step {steps}"
        last = steps - getattr(rate.schedule, "offset", 0)
        fix = f"add '--set={path}[-1]={last}'" if path.endswith("boundaries") else "set another schedule"
        yield what, path, fix, True
    elif idle == [range(steps)]:
        what = f"the learning rate is 0 at all {steps} steps, so nothing is learned"
        yield what, *_cause_of_zero(rate, steps, branch), True
    elif rate.warmup_steps > steps:
        path = f"{_ROOT}.warmup.{rate.warmup_kind}.warmup_steps"
        reached = f"so the rate reaches {rate.at(steps - 1):.4g} of {rate.at(rate.warmup_steps):.4g}"
        what = f"the warm-up takes {rate.warmup_steps} steps, and training ends at step {steps}, {reached}"
        yield what, path, f"add --set={path}={_short(steps)}", False
    else:
        yield from _ended(rate, steps, branch, idle)
        yield from _hardly_begun(rate, steps, branch, is_set)


def _hardly_begun(rate: Rate, steps: int, branch: str, is_set: Callable[[str], bool]) -> Iterator[_Found]:
    if rate.length is None:
        return
    field, length = rate.length
    path = f"{branch}.{field}"
    is_try = is_set("trainer.train_steps") and not is_set(path)
    if length <= steps * (_TRIED if is_try else _HARDLY_BEGUN):
        return
    when = f"first changes at step {length}" if field == "boundaries" else f"ends at step {length}"
    when = f"decays once in {length} steps" if rate.kind == "exponential" else when
    what = f"the learning rate's schedule {when}, and training ends at step {steps}: the rate only goes from "
    what += f"{rate.at(rate.warmup_steps):.4g} to {rate.at(steps - 1):.4g}"
    yield what, path, f"set boundaries below {steps}" if field == "boundaries" else f"add --set={path}={steps}", False


def _ended(rate: Rate, steps: int, branch: str, idle: list[range]) -> Iterator[_Found]:
    start = steps if rate.end is None else max(rate.end, rate.warmup_steps, 0)
    if start < steps and not rate.is_level:
        path, offset = f"{branch}.{LENGTHS[rate.kind]}", getattr(rate.schedule, "offset", 0)
        what = f"the learning rate stays at {rate.at(start):.4g} from step {start} on"
        what += f", and training ends at step {steps}"
        yield what, path, f"add --set={path}={steps - offset}", False
        idle = [each for each in idle if each.start < start]
    for each in idle:
        until = "on" if each.stop == steps else f"to step {each.stop - 1}"
        what = f"the learning rate is 0 from step {each.start} {until}, and training ends at step {steps}"
        fix = f"add --set=trainer.train_steps={each.start}" if each.start and each.stop == steps else "set another rate"
        yield what, f"{branch}.{_field(rate)}", fix, False


def _cause_of_zero(rate: Rate, steps: int, branch: str) -> tuple[str, str]:
    """Returns the field that makes a rate 0 throughout, and the fix."""
    if rate.end is None:
        return f"{branch}.{_field(rate)}", "set another rate"
    if min(rate.end, steps) <= rate.warmup_steps and steps <= max(rate.end, rate.warmup_steps):
        path = f"{_ROOT}.warmup.{rate.warmup_kind}.warmup_steps"  # it rises to the end of the schedule
        return path, f"add --set={path}={_short(steps)}"
    path = f"{branch}.{LENGTHS[rate.kind]}"
    return path, f"add --set={path}={steps - getattr(rate.schedule, 'offset', 0)}"


def _short(steps: int) -> int:
    """Returns the length of a warm-up that suits so many steps of training."""
    return max(1, steps // 10)


def _field(rate: Rate) -> str:
    """Returns the field of a schedule that has its rates."""
    names = ("boundaries",) if rate.kind == "step_cosine_with_offset" else ("values", "learning_rate")
    return next((name for name in names if hasattr(rate.schedule, name)), "initial_learning_rate")


def _idle(rate: Rate, steps: int) -> list[range]:
    """Returns the longest ranges of steps at which the rate is 0, without a first step from which a warm-up rises."""
    found: list[range] = []
    if getattr(rate.schedule, "cycle", False):
        return found  # it is 0 at the last step of each cycle
    for piece in rate.pieces(steps):
        if any(rate.at(step) != 0 for step in (piece.start, piece[len(piece) // 2], piece[-1])):
            continue
        if piece == range(1) and rate.warmup_steps and rate.at(1) != 0:
            continue  # a warm-up rises from here
        if found and found[-1].stop == piece.start:
            piece = range(found.pop().start, piece.stop)
        found.append(piece)
    return found


# The schedules, each from its own first step.


def _polynomial(s: Any, step: int) -> float:
    steps = s.decay_steps
    if s.cycle:
        steps *= max(1, math.ceil(step / steps))
    share = min(step, steps) / steps
    return float((s.initial_learning_rate - s.end_learning_rate) * (1 - share) ** s.power + s.end_learning_rate)


def _exponential(s: Any, step: int) -> float:
    times = step / s.decay_steps
    return float(s.initial_learning_rate * s.decay_rate ** (math.floor(times) if s.staircase else times))


def _cosine(s: Any, step: int) -> float:
    share = (1 + math.cos(math.pi * min(step, s.decay_steps) / s.decay_steps)) / 2
    return float(s.initial_learning_rate * ((1 - s.alpha) * share + s.alpha))


def _power_linear(s: Any, step: int) -> float:
    rate, fall = s.initial_learning_rate * max(step, 1) ** s.power, s.total_decay_steps * s.linear_decay_fraction
    return float(max(0.0, rate * min(1.0, (s.total_decay_steps - step) / fall)) if fall > 0 else rate)


def _power_with_offset(s: Any, step: int) -> float:
    falling = s.initial_learning_rate * max(step, 1) ** s.power
    return float(min(falling if step > 0 else s.pre_offset_learning_rate, s.pre_offset_learning_rate))


def _step_cosine(s: Any, step: int) -> float:
    part = max(0, bisect.bisect_right(s.boundaries, step) - 1)
    if part + 1 >= len(s.boundaries):
        return math.nan
    begin, stop = s.boundaries[part] if part else 0, s.boundaries[part + 1]
    length = stop - s.boundaries[part]
    share = (1 + math.cos(math.pi * (step - begin) / length)) / 2
    return float((s.values[part] - s.values[part + 1]) * share + s.values[part + 1])


_SCHEDULES: Mapping[str, Callable[[Any, int], float]] = {
    "constant": lambda s, step: s.learning_rate,
    "stepwise": lambda s, step: s.values[bisect.bisect_left(s.boundaries, step)],
    "exponential": _exponential,
    "polynomial": _polynomial,
    "cosine": _cosine,
    "power": lambda s, step: s.initial_learning_rate * max(step, 1) ** s.power,
    "power_linear": _power_linear,
    "power_with_offset": _power_with_offset,
    "step_cosine_with_offset": _step_cosine,
}
