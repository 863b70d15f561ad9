"""A batch as parts, one for each replica, so that several of them compute what one would.

Owns: dividing batches, and what a part's mean counts for. Does not own: batches (`data.py`), or steps (`task.py`).
"""

from __future__ import annotations

from typing import Any

from official_trainer.lazy import tf
from official_trainer.tasks.autograph import do_not_convert


def divided(dataset: tf.data.Dataset, num_replicas: int, *, weighted: bool = False) -> tf.data.Dataset:
    """Returns batches as one part for each replica, as TensorFlow divides them: the last ones may have less, or none.

    Args:
      dataset: whole batches.
      num_replicas: how many parts a batch has.
      weighted: whether a part comes with `share_of`'s weights, with which the mean over parts is that of the batch.
    """
    if num_replicas == 1:
        return dataset

    def parts(*batch: Any) -> tf.data.Dataset:
        size = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]
        length = -(-size // num_replicas)

        def part(replica: tf.Tensor) -> Any:
            start = tf.minimum(replica * length, size)
            stop = tf.minimum(start + length, size)
            rows = tf.nest.map_structure(lambda tensor: tensor[start:stop], batch)
            return (rows, tf.fill([stop - start], num_replicas / tf.cast(size, tf.float32))) if weighted else rows

        return tf.data.Dataset.range(num_replicas).map(do_not_convert(part))

    return dataset.flat_map(do_not_convert(parts)).prefetch(num_replicas)


def share_of(inputs: Any) -> tuple[Any, tf.Tensor | None]:
    """Returns a replica's part of a training batch, and what to multiply its mean by; None where it is the batch."""
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return inputs, None
    rows, weights = inputs
    return rows, tf.reduce_sum(weights)
