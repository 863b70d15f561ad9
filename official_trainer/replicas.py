"""What each replica keeps for itself: batch-norm statistics, metrics, the loss trace.

Owns: giving all replicas their part of the common value, saving the values of each one beside it, and holding values to
give them back. Does not own: when (`trainer.py`, `evaluation.py`), or the variables.

TensorFlow saves one mean, or one sum, for all replicas. A run that stops between two of its own saves and goes on from
that would round differently from one that did not stop. So a checkpoint also holds what every replica had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from official_trainer.lazy import tf


class ReplicaValues:
    """The values that replicas keep apart, for a number of variables; does nothing where there is one replica.

    Attributes:
      state: what is saved of it; None with one replica.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._apart = [variable for variable in variables if len(_parts(variable)) > 1]
        self._saved = [_on_host(tf.stack(_parts(variable))) for variable in self._apart]
        self.state = tf.train.Checkpoint(values=self._saved) if self._apart else None

    def take(self) -> None:
        """Copies what each replica has to where it is saved."""
        for saved, variable in zip(self._saved, self._apart, strict=True):
            saved.assign(tf.stack([part.read_value() for part in _parts(variable)]))

    def give(self) -> None:
        """Gives each replica what was saved of it."""
        for saved, variable in zip(self._saved, self._apart, strict=True):
            for part, value in zip(_parts(variable), tf.unstack(saved), strict=True):
                part.assign(value)


class HeldValues:
    """What variables hold at this moment, on every replica."""

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        parts = [part for variable in variables for part in getattr(variable, "values", (variable,))]
        self._held = [(part, tf.identity(part.read_value())) for part in parts]

    def give_back(self) -> None:
        """Gives every replica what it had, bit for bit."""
        for part, value in self._held:
            part.assign(value)


def share_out(variables: Sequence[tf.Variable]) -> None:
    """Gives all replicas the mean of what they have, or equal parts of the sum, as a checkpoint would."""
    common = (tf.VariableAggregation.MEAN, tf.VariableAggregation.SUM)
    for variable in variables:
        if len(_parts(variable)) > 1 and variable.aggregation in common and variable.dtype.is_floating:
            variable.assign(tf.identity(variable.read_value()))


def _parts(variable: Any) -> tuple[tf.Variable, ...]:
    """Returns the variables of the replicas, if they may differ; none for one that is the same everywhere."""
    is_apart = getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
    return tuple(variable.values) if is_apart and hasattr(variable, "values") else ()


def _on_host(value: tf.Tensor) -> tf.Variable:
    with tf.device("CPU:0"):
        return tf.Variable(value, trainable=False, name="of_replicas")
