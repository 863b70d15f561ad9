"""A check that all replicas hold the same weights.

Owns: comparing the values of all replicas, and the error when they differ. Does not own: variables that differ between
replicas on purpose (`distributed/replicas.py`): batch-norm statistics, metrics.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from official_trainer import triggers
from official_trainer.actions.action import Action, Run
from official_trainer.config import ActionConfig, NonNegativeFloat, When
from official_trainer.errors import UserError

if TYPE_CHECKING:
    import numpy as np

_logger = logging.getLogger(__name__)


class ReplicaIntegrityError(UserError, RuntimeError):
    """Replicas hold different values of a variable that must be equal on all of them."""


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
            self.when = triggers.AtSteps(())  # windows need not end for it
            _logger.info("%s: there is one replica, so there is nothing to compare", self.name)

    def on_step(self, run: Run) -> None:
        for number, checksums in enumerate(run.trainer.checkpoint_state.checksums_of_replicas()):
            if len(set(checksums)) > 1:
                variable = run.trainer.checkpoint_state.mirrored_variables()[number]
                self._compare(variable.name, run.trainer.checkpoint_state.values_of_replicas(number), run.step)

    def _compare(self, name: str, replicas: Sequence[tuple[str, np.ndarray]], step: int) -> None:
        first, *others = (value for _, value in replicas)
        different = [number for number, other in enumerate(others, 1) if not self._is_same(first, other)]
        if not different:
            return
        largest_of = {number: float(_distances(first, others[number - 1]).max(initial=0.0)) for number in different}
        number, largest = max(largest_of.items(), key=lambda pair: pair[1])
        places = ", ".join(f"{n} ({replicas[n][0]})" for n in (0, number))
        more = "" if len(different) == 1 else f"; of {len(others) + 1} replicas, {len(different)} differ from replica 0"
        raise ReplicaIntegrityError(
            f"replicas hold different values of {name} at step {step}: replicas {places} differ by up to "
            f"{largest:g}{more}. {self._allowed}. The checkpoints before this step hold one value for all replicas, "
            "and the same command continues from the last of them. If it happens again at this step, a variable is "
            "updated in a way of its own; if at another, suspect the device."
        )

    @property
    def _allowed(self) -> str:
        if not self._absolute and not self._relative:
            return "Allowed is no difference at all (absolute_tolerance=0, relative_tolerance=0)"
        return f"Allowed is absolute_tolerance={self._absolute:g}, relative_tolerance={self._relative:g}"

    def _is_same(self, first: np.ndarray, other: np.ndarray) -> bool:
        if first.tobytes() == other.tobytes():
            return True
        if not self._absolute and not self._relative:
            return False
        bound = self._absolute + self._relative * abs(first.astype("float64"))
        return bool((_distances(first, other) <= bound).all())


def _distances(first: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the distances of values: 0 for equal infinities and two NaNs; infinity for any other pair with one."""
    import numpy as np

    left, right = np.asarray(first, np.float64), np.asarray(other, np.float64)
    with np.errstate(invalid="ignore"):
        distances = np.abs(left - right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    return np.where(same, 0.0, np.where(np.isnan(distances), np.inf, distances))
