"""When: pure values that say at which steps something is due.

Owns: the arithmetic of intervals on the global step, so that what fires when never depends on restarts or windows.
Does not own: what is done (`loop.py`).
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Every:
    """Due at the multiples of `steps`; never at step 0."""

    steps: int

    def is_due(self, step: int) -> bool:
        """Whether this is due at `step`."""
        return step > 0 and step % self.steps == 0

    def next_step(self, step: int) -> int:
        """Returns the first step after `step` at which this is due."""
        return (step // self.steps + 1) * self.steps
