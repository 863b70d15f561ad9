"""Which checkpoints are kept: the policy as values and pure functions, for the run directory and for the best ones.

Owns: the rules (newest, every so many steps, best by a metric), and that what somebody needs is never given up.
Does not own: deleting (`store.py`), or who needs what (`runs/lease.py`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping

from official_trainer.triggers import Every


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retention:
    """What a directory of checkpoints keeps. The same for the same steps, whatever happened before.

    Attributes:
      newest: how many of the newest are kept; None keeps all.
      every_steps: those at multiples of it are kept for ever; None for no such rule.
    """

    newest: int | None
    every_steps: int | None = None

    def __post_init__(self) -> None:
        assert self.newest is None or self.newest >= 1, self.newest
        assert self.every_steps is None or self.every_steps >= 1, self.every_steps

    def kept(self, committed: Collection[int], protected: Collection[int] = ()) -> tuple[int, ...]:
        """Returns the steps of `committed` that are kept, rising.

        Args:
          committed: steps of the checkpoints that are there.
          protected: steps that are kept whatever the rules say. They do not count as newest ones in place of others.
        """
        rising = sorted(committed)
        newest = set(rising if self.newest is None else rising[-self.newest :])
        forever = None if self.every_steps is None else Every(self.every_steps)
        return tuple(
            step for step in rising if step in newest or step in protected or (forever and forever.is_due_at(step))
        )


def ranked(values: Mapping[int, float], comp: str) -> list[int]:
    """Returns steps by their values, best first; of equal ones the earlier step; without those that are NaN.

    Args:
      values: step → value of the metric.
      comp: whether the `higher` or the `lower` value is better.
    """
    assert comp in ("higher", "lower"), comp
    sign = -1 if comp == "higher" else 1
    return sorted((s for s, value in values.items() if not math.isnan(value)), key=lambda s: (sign * values[s], s))
