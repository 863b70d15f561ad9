"""MultiWorkerMirroredStrategy: processes that train as one, each with its own part of every batch.

Owns: connecting them, and exchanging values other than gradients between them.
Does not own: who decides what all of them do (`collective.py`), the list of processes (`cluster.py`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import Any

from official_trainer.distributed.cluster import CHIEF, WORKER, Cluster, process_name
from official_trainer.distributed.peers import ALONE, Peers, explain_loss, meet
from official_trainer.distributed.tree_json import TreeError, from_json, to_json
from official_trainer.lazy import tf

_logger = logging.getLogger(__name__)

_GROUP_KEY = 720_001  # of our collectives; TensorFlow counts its own up from 0
_WORDS = 256  # of 32 bits; enough for most messages


def build(runtime: Any, cluster: Cluster | None) -> tf.distribute.Strategy:
    """Returns the strategy over all workers, once all of them are there.

    Raises:
      RendezvousError: not all of them came within `runtime.rendezvous_timeout_seconds`.
    """
    if cluster is None or len(cluster.training) < 2:
        return tf.distribute.MultiWorkerMirroredStrategy()
    members = {process_name(role, index): cluster.addresses[role][index] for role, index in cluster.training}
    meet(cluster.name, members, runtime.rendezvous_timeout_seconds)
    # Without TensorFlow's timeout: for each sum of gradients it would start a thread that waits until it has passed.
    implementation = tf.distribute.experimental.CommunicationImplementation[(runtime.all_reduce_alg or "auto").upper()]
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster.resolver((CHIEF, WORKER)), options)
    _PEERS[strategy] = _Workers(cluster)
    others = ", ".join(name for name in members if name != cluster.name)
    _logger.info("%s trains together with %s", cluster.name, others)
    return strategy


def peers_of(strategy: tf.distribute.Strategy) -> Peers:
    """Returns the processes that train under `strategy`, this one among them."""
    return _PEERS.get(strategy, ALONE)


def own_peers() -> Peers:
    """Returns the processes that train together with this one; a process is in one cluster at most."""
    return next(iter(_PEERS.values()), ALONE)


_PEERS: dict[Any, Peers] = {}


class _Workers(Peers):
    """The processes of a cluster, which all-gather bytes on their CPUs."""

    def __init__(self, cluster: Cluster) -> None:
        self.index = cluster.training.index((cluster.role, cluster.index))
        self.count = len(cluster.training)
        self._names = [process_name(role, index) for role, index in cluster.training]
        self._addresses = {role: cluster.addresses[role] for role, _ in cluster.training}

    @contextlib.contextmanager
    def losses_explained(self) -> Iterator[None]:
        """Turns TensorFlow's errors about lost processes into one that names them."""
        try:
            yield
        except tf.errors.OpError as error:
            if (lost := explain_loss(error, self._addresses)) is not None:
                raise lost from error
            raise

    def exchange(self, value: Any) -> list[Any]:
        data = to_json(value).encode()
        words = _WORDS
        padded = len(data).to_bytes(8, "little") + data
        rows = self._gather(padded, words)
        longest = max(8 + int.from_bytes(row[:8], "little") for row in rows)
        if longest > words * 4:  # all processes compute the same length, and repeat with a buffer for it
            words = 1 << (-(-longest // 4) - 1).bit_length()
            rows = self._gather(padded, words)
        contents = [row[8 : 8 + int.from_bytes(row[:8], "little")] for row in rows]
        return [_read(message, sender) for message, sender in zip(contents, self._names, strict=True)]

    def _gather(self, data: bytes, words: int) -> list[bytes]:
        size = words * 4
        buffer = tf.io.decode_raw(tf.constant(data[:size].ljust(size, b"\0")), tf.int32)
        with self.losses_explained():
            gathered = _gather_of(words, self.count)(buffer).numpy().tobytes()
        return [gathered[start : start + size] for start in range(0, len(gathered), size)]


def _read(message: bytes, sender: str) -> Any:
    """Returns the value that a process has sent.

    Raises:
      TreeError: it is no message.
    """
    try:
        return from_json(message)
    except TreeError as error:
        raise TreeError(
            f"what {sender} has sent is no message of this version of official-trainer; start all processes with the "
            "same version, and keep other programs away from their ports"
        ) from error


@functools.cache
def _gather_of(words: int, group_size: int) -> Any:
    @tf.function(input_signature=[tf.TensorSpec([words], tf.int32)], autograph=False)
    def gather(buffer: tf.Tensor) -> tf.Tensor:
        with tf.device("CPU:0"):
            return tf.raw_ops.CollectiveGatherV2(
                input=buffer,
                group_size=group_size,
                group_key=_GROUP_KEY,
                instance_key=words,
                ordering_token=[],
                timeout_seconds=0.0,
            )

    return gather
