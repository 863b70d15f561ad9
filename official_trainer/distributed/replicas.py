"""Variables that have a value on each replica: batch-norm statistics, metrics, the loss trace; and mirrored variables.

Owns: giving all replicas their part of the common value, saving the value of each replica, keeping values and restoring
them, and reading mirrored values for a comparison. Does not own: when (`engine/checkpoint_state.py`), or the variables.

TensorFlow saves one mean, or one sum, for all replicas. A run that stops between two of its own saves and continues
from that would round differently from one that did not stop. So a checkpoint also holds the value of every replica.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

from official_trainer.distributed.peers import ALONE, Peers
from official_trainer.lazy import tf


class ReplicaValues:
    """What a checkpoint holds of variables that differ by replica; empty if there is one replica.

    Attributes:
      state: the saved values; None with one replica.
    """

    def __init__(self, variables: Sequence[tf.Variable], peers: Peers = ALONE) -> None:
        """Takes variables, and the processes that have the other replicas; all of them collect and restore together."""
        self._peers = peers
        self._variables = [variable for variable in variables if _differs_by_replica(variable, peers)]
        values = [tf.concat([tf.stack(_parts(v))] * peers.count, axis=0) for v in self._variables]
        with tf.device("CPU:0"):
            self._saved = [tf.Variable(value, trainable=False, name="of_replicas") for value in values]
        self.state = tf.train.Checkpoint(values=self._saved) if self._variables else None

    def collect(self) -> None:
        """Copies the value of each replica to `state`."""
        own = [tf.stack([part.read_value() for part in _parts(variable)]).numpy() for variable in self._variables]
        for saved, *values in zip(self._saved, *self._peers.exchange(own), strict=True):
            saved.assign(tf.concat(values, axis=0))

    def restore(self) -> None:
        """Assigns each replica its value from `state`."""
        for saved, variable in zip(self._saved, self._variables, strict=True):
            parts = _parts(variable)
            first = self._peers.index * len(parts)
            for part, value in zip(parts, tf.unstack(saved[first : first + len(parts)]), strict=True):
                part.assign(value)


class ValueBackup:
    """The values of variables at this moment, on every replica."""

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        parts = [part for variable in variables for part in _copies(variable)]
        self._values = [(part, tf.identity(part.read_value())) for part in parts]

    def restore(self) -> None:
        """Assigns every replica its value of then, bit for bit."""
        for part, value in self._values:
            part.assign(value)


def synchronize_replicas(variables: Sequence[tf.Variable], peers: Peers = ALONE) -> None:
    """Gives all replicas the mean of their values, or equal parts of the sum, as a checkpoint would."""
    for variable in aggregated(variables, peers):
        variable.assign(tf.identity(variable.read_value()))


def aggregated(variables: Sequence[tf.Variable], peers: Peers = ALONE) -> list[tf.Variable]:
    """Returns the floating-point variables that differ by replica and read as the mean or the sum over replicas."""
    common = (tf.VariableAggregation.MEAN, tf.VariableAggregation.SUM)
    return [v for v in variables if _differs_by_replica(v, peers) and v.aggregation in common and v.dtype.is_floating]


def mirrored(variables: Sequence[tf.Variable], peers: Peers = ALONE) -> list[tf.Variable]:
    """Returns the variables that have a copy on every replica, all alike; none if there is one replica."""
    return [v for v in variables if not _parts(v) and len(_copies(v)) * peers.count > 1]


def checksums(variables: Sequence[tf.Variable], peers: Peers = ALONE) -> list[list[str]]:
    """Returns, for each variable, a checksum of its value on every replica of every process."""
    own = [[hashlib.sha256(part.numpy().tobytes()).hexdigest() for part in _copies(v)] for v in variables]
    return [list(itertools.chain(*parts)) for parts in zip(*peers.exchange(own), strict=True)]


def values(variable: tf.Variable, peers: Peers = ALONE) -> list[tuple[str, Any]]:
    """Returns device and value of a variable on every replica of every process."""
    return list(itertools.chain(*peers.exchange([(part.device, part.numpy()) for part in _copies(variable)])))


def local_sum(variable: Any) -> Any:
    """Returns the sum over the replicas of this process, a NumPy value; no message is sent."""
    return sum(part.numpy() for part in _copies(variable))


def _copies(variable: Any) -> Sequence[Any]:
    return getattr(variable, "values", (variable,))


def _parts(variable: Any) -> tuple[tf.Variable, ...]:
    """Returns the variables of the replicas, if their values may differ; else none."""
    is_on_read = getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
    return tuple(variable.values) if is_on_read and hasattr(variable, "values") else ()


def _differs_by_replica(variable: Any, peers: Peers) -> bool:
    return len(_parts(variable)) * peers.count > 1
