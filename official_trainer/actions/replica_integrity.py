"""A check that all replicas hold the same weights.

Owns: when they are compared. Does not own: comparing them (`engine/checkpoint_state.py`, `distributed/replicas.py`),
variables that differ between replicas on purpose: batch-norm statistics, metrics.
"""

from __future__ import annotations

import dataclasses
import logging

from official_trainer.actions.action import Action, Run
from official_trainer.config import ActionConfig, NonNegativeFloat, When

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicaIntegrityConfig(ActionConfig):
    """Compares what every replica holds of the model and the optimizer, and fails if it differs.

    Replicas apply the same updates to the same values, so a difference means a device that computes wrongly, or an
    update that does not go through the optimizer. With one replica it does nothing.

    Attributes:
      absolute_tolerance: differences up to this are none. With both tolerances at 0, every bit has to be the same.
      relative_tolerance: nor are those up to this share of the first replica's value.
    """

    when: When | None = When(after_summary=True)
    absolute_tolerance: NonNegativeFloat = 0.0
    relative_tolerance: NonNegativeFloat = 0.0

    def build(self) -> ReplicaIntegrity:
        return ReplicaIntegrity(self.absolute_tolerance, self.relative_tolerance)


class ReplicaIntegrity(Action):
    """Compares the replicas on the host, before the checkpoint of the same step is saved."""

    def __init__(self, absolute_tolerance: float = 0.0, relative_tolerance: float = 0.0) -> None:
        self._absolute, self._relative = absolute_tolerance, relative_tolerance

    def on_start(self, run: Run) -> None:
        if not run.trainer.checkpoint_state.mirrored_variables():
            self.when = When(after_summary=True)  # windows need not end for it
            _logger.info("%s: there is one replica, so there is nothing to compare", self.name)

    def on_step(self, run: Run) -> None:
        run.trainer.checkpoint_state.assert_replica_integrity(self._absolute, self._relative)
