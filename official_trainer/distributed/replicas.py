"""What each replica keeps for itself: batch-norm statistics, metrics, the loss trace; and what is the same on all.

Owns: giving all replicas their part of the common value, saving the values of each one beside it, holding values to
give them back, and fetching those that are to be the same, to be compared. Does not own: when (`engine/trainer.py`,
`engine/evaluation.py`), or the variables.

TensorFlow saves one mean, or one sum, for all replicas. A run that stops between two of its own saves and goes on from
that would round differently from one that did not stop. So a checkpoint also holds what every replica had.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

from official_trainer.distributed.peers import ALONE, Peers
from official_trainer.lazy import tf


class ReplicaValues:
    """The values that replicas keep apart, for a number of variables; does nothing where there is one replica.

    Attributes:
      state: what is saved of it; None with one replica.
    """

    def __init__(self, variables: Sequence[tf.Variable], peers: Peers = ALONE) -> None:
        """Takes variables, and the processes that have the other replicas; all of them take and give together."""
        self._peers = peers
        self._apart = [variable for variable in variables if _is_apart(variable, peers)]
        self._saved = [_on_host(tf.concat([tf.stack(_parts(v))] * peers.count, axis=0)) for v in self._apart]
        self.state = tf.train.Checkpoint(values=self._saved) if self._apart else None

    def take(self) -> None:
        """Copies what each replica has to where it is saved."""
        own = [tf.stack([part.read_value() for part in _parts(variable)]).numpy() for variable in self._apart]
        for saved, *values in zip(self._saved, *self._peers.exchange(own), strict=True):
            saved.assign(tf.concat(values, axis=0))

    def give(self) -> None:
        """Gives each replica what was saved of it."""
        for saved, variable in zip(self._saved, self._apart, strict=True):
            parts = _parts(variable)
            first = self._peers.index * len(parts)
            for part, value in zip(parts, tf.unstack(saved[first : first + len(parts)]), strict=True):
                part.assign(value)


class ValueBackup:
    """What variables hold at this moment, on every replica."""

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        parts = [part for variable in variables for part in _copies(variable)]
        self._held = [(part, tf.identity(part.read_value())) for part in parts]

    def give_back(self) -> None:
        """Gives every replica what it had, bit for bit."""
        for part, value in self._held:
            part.assign(value)


def synchronize_replicas(variables: Sequence[tf.Variable], peers: Peers = ALONE) -> None:
    """Gives all replicas the mean of what they have, or equal parts of the sum, as a checkpoint would."""
    for variable in aggregated(variables, peers):
        variable.assign(tf.identity(variable.read_value()))


def aggregated(variables: Sequence[tf.Variable], peers: Peers = ALONE) -> list[tf.Variable]:
    """Returns those that replicas keep apart and that read as the mean or the sum of it, in floating point."""
    common = (tf.VariableAggregation.MEAN, tf.VariableAggregation.SUM)
    return [v for v in variables if _is_apart(v, peers) and v.aggregation in common and v.dtype.is_floating]


def mirrored(variables: Sequence[tf.Variable], peers: Peers = ALONE) -> list[tf.Variable]:
    """Returns those that exist once on every replica and are to be the same there; none if there is one replica."""
    return [v for v in variables if not _parts(v) and len(_copies(v)) * peers.count > 1]


def checksums(variables: Sequence[tf.Variable], peers: Peers = ALONE) -> list[list[str]]:
    """Returns, for each variable, a checksum of its value on every replica of every process."""
    own = [[hashlib.sha256(part.numpy().tobytes()).hexdigest() for part in _copies(v)] for v in variables]
    return [list(itertools.chain(*parts)) for parts in zip(*peers.exchange(own), strict=True)]


def values(variable: tf.Variable, peers: Peers = ALONE) -> list[tuple[str, Any]]:
    """Returns device and value of a variable on every replica of every process."""
    return list(itertools.chain(*peers.exchange([(part.device, part.numpy()) for part in _copies(variable)])))


def _copies(variable: Any) -> Sequence[Any]:
    return getattr(variable, "values", (variable,))


def local_sum(variable: Any) -> Any:
    """Returns what the replicas of this process have together, a NumPy value; asks no other process."""
    return sum(part.numpy() for part in _copies(variable))


def _parts(variable: Any) -> tuple[tf.Variable, ...]:
    """Returns the variables of the replicas, if they may differ; none for one that is the same everywhere."""
    is_apart = getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
    return tuple(variable.values) if is_apart and hasattr(variable, "values") else ()


def _is_apart(variable: Any, peers: Peers) -> bool:
    return len(_parts(variable)) * peers.count > 1


def _on_host(value: tf.Tensor) -> tf.Variable:
    with tf.device("CPU:0"):
        return tf.Variable(value, trainable=False, name="of_replicas")
