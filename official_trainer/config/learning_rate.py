"""Which mistakes of a learning rate its fields show before training, without TensorFlow.

Owns: warm-ups and schedules that do not go with the steps of training, and rates that are 0 throughout.
Does not own: the sections (`optimization.py`), the schedule that trains (`official_trainer/tasks/optimization.py`). No
rate is computed here: what is said follows from the fields.

The sections are ours or those of an experiment of Model Garden, which have the same fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from official_trainer.config import fields
from official_trainer.config.errors import Problem
from official_trainer.config.optimization import LENGTHS, CustomScheduleConfig, LrConfig
from official_trainer.config.provenance import Resolved, Trail

_ROOT = "trainer.optimizer_config"


class Finding(NamedTuple):
    """What is wrong with a learning rate; whether nothing can be learned with it."""

    problem: Problem
    is_fatal: bool


def finding(resolved: Resolved, start_step: int = 0) -> Finding | None:
    """Returns what is wrong with the learning rate of an experiment, before it trains; None if nothing is known.

    A rate that is 0 throughout, or that is no number, is fatal. A warm-up longer than training, and a schedule that
    ends before training, are not.

    Args:
      resolved: the configuration of an experiment.
      start_step: from which the run continues.
    """
    trainer = resolved.config.trainer
    rate: Any = getattr(trainer.optimizer_config, "learning_rate", None)
    warmup: Any = getattr(trainer.optimizer_config, "warmup", None)
    if isinstance(rate, LrConfig) and isinstance(rate.get(), CustomScheduleConfig):
        rate = LrConfig(type="constant")  # nothing is known of its rates; of a warm-up before it, all is
    sections = [part.get() for part in (rate, warmup) if getattr(part, "type", None)]
    nulls = {key for section in sections for key, value in fields.children(section) if value is None}
    if not trainer.train_steps or not getattr(rate, "type", None) or nulls - {"name", "staircase"}:
        return None  # Model Garden's own code refuses nulls in its sections
    return next(_findings(resolved.trail, (start_step, trainer.train_steps), rate, warmup), None)


def _findings(trail: Trail, span: tuple[int, int], rate: Any, warmup: Any) -> Iterator[Finding]:
    """Yields what is wrong with a schedule and its warm-up for training from a step to another, the worst first."""
    start_step, steps = span
    schedule_type, schedule, branch = rate.type, rate.get(), f"{_ROOT}.learning_rate.{rate.type}"
    offset: int = getattr(schedule, "offset", 0)
    rise = warmup.get() if getattr(warmup, "type", None) else None
    rise_steps: int = rise.warmup_steps if rise else 0
    rise_path = f"{_ROOT}.warmup.{warmup.type}.warmup_steps" if rise else ""
    shorter = rise_path, f"add --set={rise_path}={max(1, steps // 10)}"
    length_path = f"{branch}.{LENGTHS.get(schedule_type)}"
    longer = length_path, f"add --set={length_path}={steps - offset}"
    end, last_rate = _end_and_rate(schedule_type, schedule)

    def made(what: str, path: str, fix: str, *, is_fatal: bool = False) -> Finding:
        origin = trail.origin(path)
        return Finding(Problem(what, path, fix=fix, origin=None if origin.kind == "default" else origin), is_fatal)

    zero = f"the learning rate is 0 at all {steps} steps, so nothing is learned"
    if getattr(rise, "warmup_learning_rate", 0) == 0:
        if schedule_type == "constant" and not schedule.learning_rate:
            yield made(zero, f"{branch}.learning_rate", "set another rate", is_fatal=True)
        elif schedule_type == "stepwise" and not any(schedule.values):
            yield made(zero, f"{branch}.values", "set another rate", is_fatal=True)
        elif last_rate == 0 and rise_steps >= max(end, 1):  # it rises to the rate at which the schedule has ended
            yield made(zero, *(shorter if steps <= rise_steps else longer), is_fatal=True)
    if last_rate == 0 and 0 < max(end, rise_steps) <= start_step < steps:
        what = f"the learning rate is 0 from step {max(end, rise_steps)} on, and this run continues from {start_step}"
        yield made(f"{what}, so nothing more is learned", *longer, is_fatal=True)
    if schedule_type == "step_cosine_with_offset" and schedule.boundaries:
        last, path = schedule.boundaries[-1] + offset, f"{branch}.boundaries"
        if (start := 0 if last <= rise_steps else last) < steps:
            what = f"the learning rate is not a number from step {start} on, and training ends at step {steps}"
            yield made(what, path, f"add '--set={path}[-1]={steps - offset}'", is_fatal=True)
    if rise_steps > steps:
        yield made(f"the warm-up takes {rise_steps} steps, and training ends at step {steps}", *shorter)
    if (start := max(end, rise_steps, 0)) < steps:
        what = f"the learning rate stays at {last_rate:.4g} from step {start} on, and training ends at step {steps}"
        yield made(what, *longer)


def _end_and_rate(schedule_type: str, schedule: Any) -> tuple[float, float]:
    """Returns the step from which a schedule stays at a rate, and the rate; infinity if there is no such step."""
    if (
        schedule_type == "polynomial"
        and not schedule.cycle
        and schedule.end_learning_rate != schedule.initial_learning_rate
    ):
        rate = schedule.end_learning_rate
    elif schedule_type == "cosine" and schedule.alpha != 1:
        rate = schedule.alpha * schedule.initial_learning_rate
    elif schedule_type == "power_linear" and schedule.linear_decay_fraction != 0:
        rate = 0.0
    else:
        return math.inf, math.nan
    return getattr(schedule, LENGTHS[schedule_type]) + schedule.offset, rate
