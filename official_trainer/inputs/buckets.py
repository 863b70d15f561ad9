"""Batches of examples of similar length, padded to few lengths.

Owns: `Buckets`, and which examples are in which batch then. Does not own: the order of examples before that
(`order.py`, `grouped.py`, `mixture.py`), padding an example (`reader.py`), packing sequences into rows (`packing.py`).

A window of batches holds exactly the examples that it would hold without buckets. They are sorted by their bucket and
cut into batches: so all batches are full, what is left of a bucket goes up to the next larger one, and a batch depends
on nothing but the seed and its number, on every host.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.inputs.context import DataError
from official_trainer.inputs.order import BatchPlan
from official_trainer.inputs.packing import TOKENS, checked_lengths, refuse_longer
from official_trainer.inputs.reader import Reader
from official_trainer.inputs.source import Source
from official_trainer.lazy import tf
from official_trainer.shown import shorten


@dataclasses.dataclass(frozen=True, kw_only=True)
class Buckets:
    """How `from_source` makes batches of examples of similar length.

    Attributes:
      boundaries: rising lengths; a batch is padded to the one that its longest example needs.
      fields: what is padded along its first dimension, each with its value for padding, by their paths in an example
        after the transforms: `tokens`, or `[0].tokens` and `[1]` in a pair. The first has the length that counts.
      lengths: of each example, `[examples]` integers; None has all examples read once, which is logged.
      window_steps: batches whose examples are sorted together. Fewer keep examples nearer to their place in the order,
        more mix fewer lengths: in a window, at most one batch for each boundary has some of the next smaller bucket.

    Example:
      >>> from official_trainer import inputs
      >>> from official_trainer.config import DataConfig
      >>> texts = [{"tokens": list(range(1, length))} for length in (3, 9, 2, 7)]
      >>> params = DataConfig(global_batch_size=2, is_training=False)
      >>> batches = inputs.from_source(texts, params, buckets=inputs.Buckets(boundaries=(2, 8)))
      >>> [batch["tokens"].numpy().tolist() for batch in batches]
      [[[1, 2], [1, 0]], [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 0, 0]]]
    """

    boundaries: Sequence[int]
    fields: Mapping[str, Any] = dataclasses.field(default_factory=lambda: TOKENS)
    lengths: Any = None
    window_steps: int = 500

    def __post_init__(self) -> None:
        if not self.boundaries or list(self.boundaries) != sorted({*self.boundaries}) or self.boundaries[0] < 1:
            raise DataError(f"Buckets: boundaries must rise, from 1 or more, got {shorten(repr(self.boundaries))}")
        if not self.fields or self.window_steps < 1:
            raise DataError("Buckets: give at least one field, and window_steps of at least 1")


class BucketOrder:
    """Which examples are in a batch, and how long it is, as a function of its positions."""

    def __init__(self, buckets: Buckets, reader: Reader, source: Source, plan: BatchPlan, places: Any) -> None:
        """Learns the lengths.

        Raises:
          DataError: an example is longer than the last boundary, or has no such field.
        """
        leaves, field = _Leaves(reader, source), next(iter(buckets.fields))
        self._lengths = checked_lengths(leaves, field, buckets.lengths)
        refuse_longer(leaves, field, self._lengths, buckets.boundaries[-1], "add a boundary")
        self._boundaries, self._places, self._plan = buckets.boundaries, places, plan
        self._span = buckets.window_steps * plan.global_batch_size
        self._window = functools.lru_cache(maxsize=3)(self._make_window)  # one is used while the next begins
        self._lock = threading.Lock()  # else each reading thread would make it

    def of_batch(self, positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the examples at positions of one batch, `[n]` int64, and the length of the batch, int64."""
        indices, size = tf.numpy_function(self._of_batch, [positions], [tf.int64, tf.int64])
        return tf.ensure_shape(indices, positions.shape), tf.ensure_shape(size, [])

    def _of_batch(self, positions: Any) -> tuple[Any, Any]:
        window = int(positions[0] // self._span)
        with self._lock:
            indices, sizes = self._window(window)
        here = positions - window * self._span
        return indices[here], sizes[here[0] // self._plan.global_batch_size]

    def _make_window(self, window: int) -> tuple[Any, Any]:
        """Returns the examples of a window in their order, and the length of each batch."""
        import numpy as np

        size, first = self._plan.global_batch_size, window * self._span
        stop = first + self._span
        if not self._plan.training:
            stop = min(stop, len(self._lengths))
        with tf.init_scope(), tf.device("CPU:0"):
            indices = self._places(tf.range(first, stop, dtype=tf.int64)).numpy()
        bucket = np.searchsorted(self._boundaries, self._lengths[indices])
        order = np.argsort(bucket, kind="stable")
        longest = bucket[order][[*range(size - 1, len(order), size), *[len(order) - 1] * (len(order) % size > 0)]]
        if self._plan.shuffle:  # a last, smaller batch of an evaluation stays the last
            full = len(order) // size
            text = f"buckets/{self._plan.seed}/{window}"
            random = np.random.RandomState(np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint32))
            turns = random.permutation(full)
            order[: full * size] = order[: full * size].reshape([full, size])[turns].ravel()
            longest[:full] = longest[:full][turns]
        sizes = np.asarray(self._boundaries, np.int64)[longest]
        return indices[order].astype(np.int64), sizes


class _Leaves(Source):
    """The leaves of each example after the transforms, by their paths."""

    def __init__(self, reader: Reader, source: Source) -> None:
        self._reader, self._source = reader, source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        return self._reader.leaves(index)

    def where(self, index: int) -> str:
        return self._source.where(index)
