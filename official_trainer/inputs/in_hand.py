"""Data that a program has in hand: one batch, or a dataset of batches, in place of a task's `build_inputs`.

Owns: what can be taken, and the messages about it, which name the data. Does not own: reading it (`engine/`).
"""

from __future__ import annotations

from typing import Any

from official_trainer.inputs.context import DataError
from official_trainer.lazy import tf


def one_batch(batch: Any, name: str, *, num_replicas: int = 1) -> tf.data.Dataset:
    """Returns a dataset with one batch.

    Args:
      batch: nested tuples and dictionaries of tensors or arrays, `[batch, …]`.
      name: of the batch, for messages.
      num_replicas: how many have to get equal parts of it.

    Raises:
      DataError: it is a dataset, its parts differ in their number of examples, or replicas cannot share these.
    """
    if isinstance(batch, tf.data.Dataset | tf.distribute.DistributedDataset):
        raise DataError(f"{name} is a dataset, and one batch is wanted; give one of its elements")
    try:
        dataset = tf.data.Dataset.from_tensors(batch)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} cannot become tensors: {error}") from error
    shapes = [spec.shape for spec in tf.nest.flatten(dataset.element_spec)]
    sizes = {shape[0] if shape.rank else None for shape in shapes}
    if len(sizes) != 1 or not (size := next(iter(sizes))):
        raise DataError(
            f"{name}: all parts of a batch need the same number of examples, at least one; their shapes: "
            f"{', '.join(map(str, shapes)) or 'none'}"
        )
    if size % num_replicas:
        raise DataError(f"{name}: {num_replicas} replicas cannot share {size} examples equally; give a multiple")
    return dataset


def checked(dataset: Any, name: str, *, needs_end: bool = False) -> Any:
    """Returns a dataset, plain or distributed.

    Args:
      dataset: whose elements are global batches.
      name: of the dataset, for messages.
      needs_end: whether one that repeats forever is refused.

    Raises:
      DataError: it is no dataset, or has no end.
    """
    if not isinstance(dataset, tf.data.Dataset | tf.distribute.DistributedDataset):
        raise DataError(f"{name} is a {type(dataset).__name__}; give a tf.data.Dataset of batches")
    is_plain = isinstance(dataset, tf.data.Dataset)
    if needs_end and is_plain and dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise DataError(f"{name} has no end; give dataset.take(number of batches), or leave out repeat()")
    return dataset
