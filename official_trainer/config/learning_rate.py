"""Which mistakes of a learning rate its fields show before training, without TensorFlow.

Owns: warm-ups and schedules that do not go with the steps of training, and rates that are 0 throughout.
Does not own: the sections (`optimization.py`), the schedule that trains (`official_trainer/tasks/optimization.py`). No
rate is computed here: what is said follows from the fields.

The sections are ours or those of an experiment of Model Garden, which have the same fields.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def finding(resolved: Resolved) -> Finding | None:
    """Returns what is wrong with the learning rate of an experiment, before it trains; None if nothing is known.

    A rate that is 0 throughout, or that is no number, is fatal. A warm-up longer than training, and a schedule that
    ends before training or has hardly begun when it ends, are not.

    Args:
      resolved: the configuration of an experiment.
    """
    trainer = resolved.config.trainer
    rate: Any = getattr(trainer.optimizer_config, "learning_rate", None)
    warmup: Any = getattr(trainer.optimizer_config, "warmup", None)
    sections = [part.get() for part in (rate, warmup) if getattr(part, "type", None)]
    nulls = {key for section in sections for key, value in fields.children(section) if value is None}
    if not trainer.train_steps or not getattr(rate, "type", None) or nulls - {"name", "staircase"}:
        return None  # Model Garden's own code refuses nulls in its sections
    return next(_Comparison(resolved, rate, warmup).findings(), None)


class _Comparison:
    """Compares a schedule and its warm-up with the steps of training."""

    def __init__(self, resolved: Resolved, rate: Any, warmup: Any) -> None:
        self._trail = resolved.trail
        self._steps: int = resolved.config.trainer.train_steps
        self._kind, self._schedule = rate.type, rate.get()
        self._branch = f"{_ROOT}.learning_rate.{rate.type}"
        self._offset: int = getattr(self._schedule, "offset", 0)
        self._warmup = warmup.get() if getattr(warmup, "type", None) else None
        self._warmup_steps: int = self._warmup.warmup_steps if self._warmup else 0
        self._warmup_path = f"{_ROOT}.warmup.{warmup.type}.warmup_steps" if self._warmup else ""

        self._end = self._end_and_rate()

    def findings(self) -> Iterator[Finding]:
        """Yields what is wrong, the worst first."""
        yield from self._zero()
        yield from self._no_number()
        if self._warmup_steps > self._steps:
            what = f"the warm-up takes {self._warmup_steps} steps, and training ends at step {self._steps}"
            yield self._finding(what, self._warmup_path, self._shorter_warmup)
        if self._end is not None and (start := max(self._end[0], self._warmup_steps, 0)) < self._steps:
            what = f"the learning rate stays at {self._end[1]:.4g} from step {start} on"
            yield self._finding(f"{what}, and training ends at step {self._steps}", *self._longer_schedule)
        yield from self._hardly_begun()

    def _zero(self) -> Iterator[Finding]:
        what = f"the learning rate is 0 at all {self._steps} steps, so nothing is learned"
        if getattr(self._warmup, "warmup_learning_rate", 0) != 0:
            return
        if self._kind == "constant" and not self._schedule.learning_rate:
            yield self._finding(what, f"{self._branch}.learning_rate", "set another rate", is_fatal=True)
        elif self._kind == "stepwise" and not any(self._schedule.values):
            yield self._finding(what, f"{self._branch}.values", "set another rate", is_fatal=True)
        elif self._end is not None and self._end[1] == 0 and self._warmup_steps >= max(self._end[0], 1):
            # The warm-up rises to the rate at which the schedule has ended.
            if self._steps <= self._warmup_steps:
                yield self._finding(what, self._warmup_path, self._shorter_warmup, is_fatal=True)
            else:
                yield self._finding(what, *self._longer_schedule, is_fatal=True)

    def _no_number(self) -> Iterator[Finding]:
        if self._kind != "step_cosine_with_offset" or not self._schedule.boundaries:
            return
        last, path = self._schedule.boundaries[-1] + self._offset, f"{self._branch}.boundaries"
        start = 0 if last <= self._warmup_steps else last
        if start < self._steps:
            what = f"the learning rate is not a number from step {start} on, and training ends at step {self._steps}"
            fix = f"add '--set={path}[-1]={self._steps - self._offset}'"
            yield self._finding(what, path, fix, is_fatal=True)

    def _hardly_begun(self) -> Iterator[Finding]:
        boundary = next((each for each in getattr(self._schedule, "boundaries", ()) if each > 0), None)
        if self._end is not None:
            field, length, when = LENGTHS[self._kind], self._end[0], "ends at step {}"
        elif self._kind == "exponential" and self._schedule.decay_rate != 1:
            field, length, when = "decay_steps", self._schedule.decay_steps, "decays once in {} steps"
        elif boundary is not None:
            field, length, when = "boundaries", boundary + self._offset, "first changes at step {}"
        else:
            return
        path = f"{self._branch}.{field}"
        is_try = self._trail.origin("trainer.train_steps").by_user and not self._trail.origin(path).by_user
        if length > self._steps * (_TRIED if is_try else _HARDLY_BEGUN):
            what = f"the learning rate's schedule {when.format(length)}, and training ends at step {self._steps}"
            fix = f"set boundaries below {self._steps}" if boundary is not None else f"add --set={path}={self._steps}"
            yield self._finding(f"{what}, when it has hardly begun", path, fix)

    def _end_and_rate(self) -> tuple[int, float] | None:
        """Returns the step from which the schedule stays at a rate, and the rate; None if there is no such step."""
        s = self._schedule
        if self._kind == "polynomial" and not s.cycle and s.end_learning_rate != s.initial_learning_rate:
            rate = s.end_learning_rate
        elif self._kind == "cosine" and s.alpha != 1:
            rate = s.alpha * s.initial_learning_rate
        elif self._kind == "power_linear" and s.linear_decay_fraction != 0:
            rate = 0.0
        else:
            return None
        return getattr(s, LENGTHS[self._kind]) + self._offset, rate

    @property
    def _shorter_warmup(self) -> str:
        return f"add --set={self._warmup_path}={max(1, self._steps // 10)}"

    @property
    def _longer_schedule(self) -> tuple[str, str]:
        path = f"{self._branch}.{LENGTHS[self._kind]}"
        return path, f"add --set={path}={self._steps - self._offset}"

    def _finding(self, what: str, path: str, fix: str, *, is_fatal: bool = False) -> Finding:
        origin = self._trail.origin(path)
        return Finding(Problem(what, path, fix=fix, origin=None if origin.kind == "default" else origin), is_fatal)
