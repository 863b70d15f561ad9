"""Variables that have a value on each replica: batch-norm statistics, metrics, the loss trace; and mirrored variables.

Owns: giving all replicas their part of the common value, saving the value of each replica, keeping values and restoring
them, and comparing the values of replicas. Does not own: when (`engine/checkpoint_state.py`, `trees.py`), or the
variables.

TensorFlow saves one mean, or one sum, for all replicas. A run that stops between two of its own saves and continues
from that would round differently from one that did not stop. So a checkpoint also holds the value of every replica.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from official_trainer.distributed.peers import ALONE, Peers
from official_trainer.errors import UserError
from official_trainer.lazy import tf

if TYPE_CHECKING:
    import numpy as np


class ReplicaIntegrityError(UserError, RuntimeError):
    """Replicas hold different values of what must be equal on all of them."""


class ReplicaValues:
    """What a checkpoint holds of variables that differ by replica; empty if there is one replica.

    Attributes:
      state: the saved values; None with one replica.
    """

    def __init__(
        self, variables: Sequence[tf.Variable], peers: Peers = ALONE, set_by_replicas: Sequence[tf.Variable] = ()
    ) -> None:
        """Takes the variables.

        Args:
          variables: those that differ by replica are picked.
          peers: the processes that have the other replicas; all of them collect and restore together.
          set_by_replicas: more of them, of which a step sets each copy by itself where they are not aggregated.
        """
        self._peers = peers
        separate = [v for v in set_by_replicas if not _parts(v) and v.aggregation == tf.VariableAggregation.NONE]
        all_copies = [_parts(variable) for variable in variables] + [tuple(getattr(v, "values", ())) for v in separate]
        self._parts = [copies for copies in all_copies if len(copies) * peers.count > 1]
        values = [tf.concat([tf.stack(copies)] * peers.count, axis=0) for copies in self._parts]
        with tf.device("CPU:0"):
            self._saved = [tf.Variable(value, trainable=False, name="of_replicas") for value in values]
        self.state = tf.train.Checkpoint(values=self._saved) if self._saved else None

    def collect(self) -> None:
        """Copies the value of each replica to `state`."""
        local_values = [tf.stack([copy.read_value() for copy in copies]).numpy() for copies in self._parts]
        for saved, *values in zip(self._saved, *self._peers.exchange(local_values), strict=True):
            saved.assign(tf.concat(values, axis=0))

    def restore(self) -> None:
        """Assigns each replica its value from `state`."""
        for saved, copies in zip(self._saved, self._parts, strict=True):
            first = self._peers.index * len(copies)
            for copy, value in zip(copies, tf.unstack(saved[first : first + len(copies)]), strict=True):
                copy.assign(value)


class ValueBackup:
    """The values of variables at this moment, on every replica."""

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        of_replicas = [part for variable in variables for part in copies(variable)]
        self._values = [(part, tf.identity(part.read_value())) for part in of_replicas]

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
    differing = [v for v in variables if len(_parts(v)) * peers.count > 1]
    return [v for v in differing if v.aggregation in common and v.dtype.is_floating]


def mirrored(variables: Sequence[tf.Variable], peers: Peers = ALONE) -> list[tf.Variable]:
    """Returns the variables that have a copy on every replica, all alike; none if there is one replica."""
    return [v for v in variables if not _parts(v) and len(copies(v)) * peers.count > 1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How much the values of replicas may differ; with both at 0, every bit has to be the same.

    Attributes:
      absolute: differences up to this are none.
      relative: nor are those up to this share of the first replica's value.
    """

    absolute: float = 0.0
    relative: float = 0.0

    def __str__(self) -> str:
        if not self.absolute and not self.relative:
            return "Allowed is no difference at all (absolute_tolerance=0, relative_tolerance=0)"
        return f"Allowed is absolute_tolerance={self.absolute:g}, relative_tolerance={self.relative:g}"

    def allows(self, first: np.ndarray, other: np.ndarray) -> bool:
        """Whether `other` is near enough to the first replica's value."""
        if first.tobytes() == other.tobytes():
            return True
        if first.shape != other.shape or first.dtype.kind not in _NUMBERS or not (self.absolute or self.relative):
            return False
        bound = self.absolute + self.relative * abs(first.astype("float64"))
        return bool((_distances(first, other) <= bound).all())


def find_difference(
    named: Sequence[tuple[str, Any]], tolerance: Tolerance, peers: Peers = ALONE
) -> tuple[str, str] | None:
    """Returns the first of `named` that differs between replicas, and how; None if they are equal on all of them.

    Called by all processes, which find the same: one message has the checksums of all, and one more the values of each
    that differs.

    Args:
      named: names, each with a variable, values of replicas, a tensor, an array or a number; alike in all processes.
      tolerance: how much they may differ.
      peers: the processes.
    """
    checksums: list[list[str]] = []
    for _, value in named:
        checksums.append([])
        for array in map(_as_array, copies(value)):
            content = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
            checksums[-1].append(hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + content).hexdigest())
    for (name, value), *sums in zip(named, *peers.exchange(checksums), strict=True):
        if len(set(itertools.chain(*sums))) > 1:
            values = [(str(part.device) if hasattr(part, "numpy") else "", _as_array(part)) for part in copies(value)]
            if said := _difference(list(itertools.chain(*peers.exchange(values))), tolerance):
                return name, said
    return None


def _difference(replicas: Sequence[tuple[str, np.ndarray]], tolerance: Tolerance) -> str:
    """Returns by how much which replicas differ, and what is allowed; empty if no more than that."""
    first, *others = (value for _, value in replicas)
    different = [number for number, other in enumerate(others, 1) if not tolerance.allows(first, other)]
    if not different:
        return ""
    largest_of = {}
    for number in different:
        other = others[number - 1]
        is_comparable = first.shape == other.shape and first.dtype.kind in _NUMBERS
        largest_of[number] = float(_distances(first, other).max(initial=0.0)) if is_comparable else float("inf")
    number, largest = max(largest_of.items(), key=lambda pair: pair[1])
    places = ", ".join(f"{n} ({replicas[n][0]})" if replicas[n][0] else str(n) for n in (0, number))
    more = "" if len(different) == 1 else f"; of {len(others) + 1} replicas, {len(different)} differ from replica 0"
    return f"replicas {places} differ by up to {largest:g}{more}. {tolerance}"


_NUMBERS = "biufV"
"""Kinds of arrays that have distances; bfloat16 is of kind V."""


def _distances(first: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the distances of values: 0 for equal infinities and two NaNs; infinity for any other pair with one."""
    import numpy as np

    left, right = np.asarray(first, np.float64), np.asarray(other, np.float64)
    with np.errstate(invalid="ignore"):
        distances = np.abs(left - right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    return np.where(same, 0.0, np.where(np.isnan(distances), np.inf, distances))


def _as_array(value: Any) -> np.ndarray:
    import numpy as np

    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def local_sum(variable: Any) -> Any:
    """Returns the sum over the replicas of this process, a NumPy value; no message is sent."""
    return sum(part.numpy() for part in copies(variable))


def copies(variable: Any) -> Sequence[Any]:
    """Returns the variables of the replicas of this process, or the variable itself if it has one value for all."""
    return getattr(variable, "values", (variable,))


def _parts(variable: Any) -> tuple[tf.Variable, ...]:
    """Returns the variables of the replicas, if their values may differ; else none."""
    is_on_read = getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
    return tuple(variable.values) if is_on_read and hasattr(variable, "values") else ()
