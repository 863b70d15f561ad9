"""Arrays as rows, one for each example: dense, ragged and sparse ones.

Owns: what counts as an array, its dtype, gathering and cutting rows, and dividing a batch among replicas. Does not own:
which rows make a batch (`data.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from official_trainer.inputs import DataError
from official_trainer.lazy import tf
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.autograph import do_not_convert


class _SparseRows:
    """The rows of a sparse tensor, each on its own, so that any of them can be gathered."""

    def __init__(self, tensor: tf.SparseTensor) -> None:
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self._rows = tf.io.serialize_many_sparse(tf.sparse.reorder(tensor))

    def __getitem__(self, rows: Any) -> tf.SparseTensor:
        rows = tf.range(self.shape[0])[rows] if isinstance(rows, slice) else rows
        tensor = tf.io.deserialize_many_sparse(tf.gather(self._rows, rows), self.dtype, rank=self.shape.rank)
        shape = tf.concat([tf.shape(rows, tf.int64), tf.constant(list(self.shape[1:]), tf.int64)], axis=0)
        return tf.SparseTensor(tensor.indices, tensor.values, shape)  # with a static shape, as layers need it


def as_rows(array: Any) -> Any:
    """Returns an array as Keras does: all floats have the type `floatx`; also a ragged or sparse one."""
    if hasattr(array, "tocoo"):  # of SciPy
        coo = array.tocoo()
        array = tf.SparseTensor(np.stack([coo.row, coo.col], axis=1), coo.data, coo.shape)
    tensor = array if isinstance(array, tf.RaggedTensor | tf.SparseTensor) else tf.convert_to_tensor(array)
    if tensor.shape.rank == 0:
        raise DataError(f"{tensor.numpy()!r} is one number; give an array with a row for each example")
    tensor = tf.cast(tensor, kerases.floatx()) if tensor.dtype.is_floating else tensor
    return _SparseRows(tensor) if isinstance(tensor, tf.SparseTensor) else tensor


def gather(tensor: Any, rows: tf.Tensor) -> Any:
    """Returns rows of what `as_rows` has returned, by their numbers, in this order."""
    return tensor[rows] if isinstance(tensor, _SparseRows) else tf.gather(tensor, rows)


def cut_rows(tensor: Any, start: tf.Tensor, stop: tf.Tensor) -> Any:
    """Returns the rows from `start` to before `stop`."""
    if not isinstance(tensor, tf.SparseTensor):
        return tensor[start:stop]
    rest = tensor.shape.rank - 1
    part = tf.sparse.slice(
        tensor,
        tf.concat([[start], tf.zeros([rest], tf.int64)], axis=0),
        tf.concat([[stop - start], tensor.dense_shape[1:]], axis=0),
    )
    shape = tf.concat([[stop - start], tf.constant(list(tensor.shape[1:]), tf.int64)], axis=0)
    return tf.SparseTensor(part.indices, part.values, shape)


def divided(dataset: tf.data.Dataset, num_replicas: int, *, weighted: bool = False) -> tf.data.Dataset:
    """Returns one part of each batch for each replica, as TensorFlow divides it: the last may be smaller, or empty.

    Args:
      dataset: batches.
      num_replicas: parts of a batch.
      weighted: whether a part has the weights for `share_of`: with them, the mean over parts is the mean of the batch.
    """
    if num_replicas == 1:
        return dataset

    def split(*batch: Any) -> tf.data.Dataset:
        size = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]
        length = -(-size // num_replicas)

        def part(replica: tf.Tensor) -> Any:
            start = tf.minimum(replica * length, size)
            stop = tf.minimum(start + length, size)
            rows = tf.nest.map_structure(lambda tensor: cut_rows(tensor, start, stop), batch)
            return (rows, tf.fill([stop - start], num_replicas / tf.cast(size, tf.float32))) if weighted else rows

        return tf.data.Dataset.range(num_replicas).map(do_not_convert(part))

    return dataset.flat_map(do_not_convert(split)).prefetch(num_replicas)


def share_of(inputs: Any) -> tuple[Any, tf.Tensor | None]:
    """Returns a replica's part of a training batch, and the factor of its mean; None if the part is the batch."""
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return inputs, None
    rows, weights = inputs
    return rows, tf.reduce_sum(weights)
