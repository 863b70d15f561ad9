"""Which checkpoints are saved and kept: one policy, as values and pure functions, for every directory of checkpoints.

Owns: the rules (the newest, the best by a metric, better than a threshold, every so many steps), ties and NaN.
Does not own: deleting (`directory.py`), which process still needs a checkpoint (`runs/lease.py`), or the comparison of
two numbers (`tracking/monitored.py`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any

from official_trainer.tracking.monitored import Direction, Value, is_better, is_nan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """A checkpoint that is saved, or may be.

    Attributes:
      name: of its folder, or of its files; no two that are kept have the same.
      step: global step; no two that are kept have the same.
      value: of the monitored metric, or the numbers that a rule compares; None without one.
      logs: the results of its evaluation.
    """

    name: str
    step: int
    value: Value | None = None
    logs: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retention:
    """Which checkpoints are saved and kept. The same for the same candidates, in any order.

    Attributes:
      monitor: name of the metric that decides; empty means that the newest are kept.
      direction: whether its higher (`max`) or lower (`min`) values are better, or a rule.
      max_to_keep: how many are kept; None keeps all.
      save_best_only: whether only what is better than all before is saved.
      threshold: only better values than this are saved.
      keep_every_n_steps: those at multiples of it are kept for ever, in addition; None for no such rule.
    """

    monitor: str = ""
    direction: Direction = "max"
    max_to_keep: int | None = None
    save_best_only: bool = False
    threshold: float | None = None
    keep_every_n_steps: int | None = None

    def kept(self, saved: Collection[Candidate]) -> list[Candidate]:
        """Returns the candidates that are kept, best or newest first: one of each name and of each step."""
        kept: list[Candidate] = []
        names, steps = set[str](), set[int]()
        for candidate in self._ranked(saved):
            if candidate.name not in names and candidate.step not in steps:
                kept.append(candidate)
                names.add(candidate.name)
                steps.add(candidate.step)
        if self.max_to_keep is None or self.keep_every_n_steps is None:
            return kept[: self.max_to_keep]
        every = self.keep_every_n_steps
        first, rest = kept[: self.max_to_keep], kept[self.max_to_keep :]
        return first + [candidate for candidate in rest if candidate.step > 0 and candidate.step % every == 0]

    def kept_steps(self, steps: Collection[int], protected: Collection[int] = ()) -> tuple[int, ...]:
        """Returns the steps that are kept where nothing but the step decides, rising.

        Args:
          steps: of the checkpoints that are there.
          protected: steps that are kept in any case. They do not count as newest ones in place of others.
        """
        kept = {candidate.step for candidate in self.kept([Candidate(name=str(step), step=step) for step in steps])}
        return tuple(step for step in sorted(steps) if step in kept or step in protected)

    def takes(self, new: Candidate, saved: Collection[Candidate]) -> bool:
        """Whether `new` is saved and kept, given the candidates that are there.

        Of two values of one step the better one is kept; of equal values, the earlier step. NaN is never saved.
        """
        others = [other for other in saved if other.step != new.step]
        if self.monitor:
            if new.value is None or not is_better(new.value, self.threshold, self.direction):
                return False
            values = [other.value for other in others if other.value is not None]
            if self.save_best_only and not all(is_better(new.value, value, self.direction) for value in values):
                return False
            others = [other for other in saved if other != new]
        return new in self.kept([new, *others])

    def _ranked(self, candidates: Collection[Candidate]) -> list[Candidate]:
        """Returns the candidates, best or newest first; of equal ones the earlier first; those without a value last."""
        if not self.monitor:
            return sorted(candidates, key=lambda one: (-one.step, one.name))

        def compare(one: Candidate, other: Candidate) -> int:
            left, right = (None if side.value is None or is_nan(side.value) else side.value for side in (one, other))
            if left is None or right is None:
                return (left is None) - (right is None)
            return is_better(right, left, self.direction) - is_better(left, right, self.direction)

        return sorted(sorted(candidates, key=lambda one: (one.step, one.name)), key=functools.cmp_to_key(compare))
