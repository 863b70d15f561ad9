"""`from_arrays`: data that fits in memory, at a few microseconds a batch.

Owns: gathering batches from arrays, many steps at a time. Does not own: their order (`order.py`).

Shuffling moves indices, never examples, and one gather fetches the batches of many steps: for small models a pipeline
that moves single examples costs more than the step.
"""

from __future__ import annotations

import functools
from typing import Any

from official_trainer.inputs import order
from official_trainer.inputs.context import ArraysError, InputContext, leaves
from official_trainer.lazy import tf

_BLOCK_STEPS = 128  # more steps to a block save nothing measurable and delay the first batch


def from_arrays(
    arrays: Any,
    params: Any,
    input_context: Any = None,
    *,
    held_out: float | None = None,
    transform_fn: order.TransformFn | None = None,
) -> tf.data.Dataset:
    """Returns batches of arrays in memory: endless and shuffled for training, once and in order for evaluation.

    Training batches run across the edge of an epoch, so that each example counts once per epoch. An evaluation ends
    with a smaller batch unless `drop_remainder` is set.

    Args:
      arrays: NumPy arrays in nested tuples and dicts, all with the same first dimension.
      params: the data section, with `is_training` set, as a task's `build_inputs` gets it.
      input_context: the place of this pipeline in the job; None means that it feeds a single replica.
      held_out: share of the examples that is kept for validation, always the same ones, drawn once for arrays of a
        length; training has the others. None means that the caller has divided them.
      transform_fn: augmentation `(batch, seeds) -> batch`, for random ops that take a seed. `seeds` is
        `[batch, 2]` int64 and differs for every example and epoch, so a resumed run draws the same numbers.

    Returns:
      Batches of one replica, tensors `[batch, …]` in the structure and with the types of `arrays`.

    Raises:
      DataError: there is no example, or the arrays differ in length.

    Example:
      >>> import numpy as np
      >>> from official_trainer import inputs
      >>> from official_trainer.config import DataConfig
      >>> images, labels = np.zeros([100, 8, 8, 1], "float32"), np.arange(100) % 10
      >>> params = DataConfig(global_batch_size=32, is_training=True)
      >>> batch_images, batch_labels = next(iter(inputs.from_arrays((images, labels), params)))
      >>> batch_images.shape, batch_labels.dtype
      (TensorShape([32, 8, 8, 1]), tf.int64)
      >>> validation_params = params.replace(is_training=False)
      >>> [len(batch_labels) for _, batch_labels in inputs.from_arrays((images, labels), validation_params)]
      [32, 32, 32, 4]
      >>> validation = inputs.from_arrays((images, labels), validation_params, held_out=0.2)
      >>> [len(batch_labels) for _, batch_labels in validation]
      [20]
    """
    context = InputContext.adopt(input_context)
    plan = order.BatchPlan(params, context)
    source = _Arrays(arrays, plan, held_out)
    context.examples_per_epoch = source.num_examples
    context.order_depends_on_pipelines = False
    context.example_at = source.example_at
    return _endless(source, context, transform_fn) if plan.training else _one_pass(source, transform_fn)


class _Arrays:
    """The arrays as tensors, and the order in which they are read."""

    def __init__(self, arrays: Any, plan: order.BatchPlan, held_out: float | None) -> None:
        named_arrays = list(leaves(arrays, "arrays"))
        if not named_arrays:
            raise ArraysError(f"from_arrays() received no array for the {plan.use}")
        for path, leaf in named_arrays:
            if not getattr(leaf, "shape", ()):
                raise ArraysError(
                    f"from_arrays(): {path} is a {type(leaf).__name__}, not an array with a row for each example; "
                    "pass NumPy arrays in tuples and dicts, and np.asarray(…) for lists"
                )
        lengths = {path: int(leaf.shape[0]) for path, leaf in named_arrays}
        if len(set(lengths.values())) > 1:
            sizes = ", ".join(f"{path} has {length}" for path, length in lengths.items())
            raise ArraysError(
                f"from_arrays(): the arrays of the {plan.use} differ in their number of examples: {sizes}"
            )
        path, count = next(iter(lengths.items()))
        self.plan, self._rows = plan, _rows(count, held_out, plan)
        self.num_examples = len(self._rows)
        if self.num_examples == 0:
            part = "" if held_out is None else f", and held_out is {held_out}"
            raise ArraysError(f"from_arrays(): the {plan.use} are empty: {path} has {count} examples{part}")
        # A constant on an accelerator would be copied back for every gather, one inside a function be part of its code.
        with tf.init_scope(), tf.device("CPU:0"):
            try:
                self.tensors = tf.nest.map_structure(tf.convert_to_tensor, arrays)
                if held_out is not None:
                    self.tensors = self.gather(self._rows)
            except (TypeError, ValueError) as error:
                fix = "fill in what is missing, as with .fillna(''), or convert it, as with .astype('float32')"
                raise ArraysError(f"from_arrays(): no tensor holds these: {error}; {fix}") from error

    def indices(self, positions: tf.Tensor) -> tf.Tensor:
        """Returns which examples are at rising `positions`, `[n]` int64."""
        if self.plan.shuffle:
            return order.shuffled(positions, self.num_examples, self.plan.seed)
        return positions % self.num_examples

    def example_at(self, position: int) -> int | None:
        """Returns which example is at a position, if a value of it is not finite; else what follows has moved it."""
        index = int(self.indices(tf.constant([position], tf.int64))[0])
        floating = [tensor[index] for tensor in tf.nest.flatten(self.tensors) if tensor.dtype.is_floating]
        is_finite = all(bool(tf.reduce_all(tf.math.is_finite(value))) for value in floating)
        return None if is_finite else int(self._rows[index])

    def share(self) -> Any:
        """Returns the examples that this pipeline reads in one pass, in their order, `[n, …]`."""
        plan, first, end = self.plan, self.plan.first_element, self.plan.num_elements(self.num_examples)
        if first >= end or (plan.pipelines == 1 and not plan.shuffle):
            positions = slice(plan.first_positions(first), plan.first_positions(max(first, end)))
            return tf.nest.map_structure(lambda tensor: tensor[positions], self.tensors)  # which copies nothing
        starts = plan.first_positions(tf.range(first, end, dtype=tf.int64))
        positions = tf.reshape(starts[:, None] + tf.range(plan.replica_batch_size, dtype=tf.int64), [-1])
        return self.gather(self.indices(positions[positions < self.num_examples]))

    def gather(self, indices: tf.Tensor) -> Any:
        """Returns the examples at `indices`, of any shape."""
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), self.tensors)


def _rows(count: int, held_out: float | None, plan: order.BatchPlan) -> Any:
    """Returns which rows of arrays are read: all, or those of training, or those that are held out from it."""
    import numpy as np

    if held_out is None:
        return range(count)
    if isinstance(held_out, bool) or not isinstance(held_out, int | float) or not 0 < held_out < 1:
        what = f"held_out is a share of the examples, between 0 and 1, got {held_out!r}"
        raise ArraysError(f"from_arrays(): {what}; leave it out if the arrays are divided already")
    drawn = np.random.RandomState(0).permutation(count)  # whose numbers NumPy has promised never to change
    kept = round(count * held_out)
    return np.sort(drawn[kept:] if plan.training else drawn[:kept])


def _endless(source: _Arrays, context: InputContext, transform_fn: order.TransformFn | None) -> tf.data.Dataset:
    plan = source.plan
    batches = tf.nest.map_structure(
        lambda tensor: tf.TensorSpec([plan.pipeline_batch_size, *tensor.shape[1:]], tensor.dtype), source.tensors
    )
    # One gather fetches many steps of small examples, and one step of large ones.
    steps = order.window_length(batches, _BLOCK_STEPS)
    elements_in_block = steps * plan.replicas

    def block(index: tf.Tensor) -> Any:
        first = plan.first_element + index * elements_in_block
        starts = plan.first_positions(first + tf.range(elements_in_block, dtype=tf.int64))
        positions = starts[:, None] + tf.range(plan.replica_batch_size, dtype=tf.int64)
        return source.gather(tf.reshape(source.indices(tf.reshape(positions, [-1])), positions.shape))

    # AutoGraph would rewrite our own arithmetic, which has no control flow, at a cost of some tenths of a second.
    plain = tf.autograph.experimental.do_not_convert(block)
    blocks = tf.data.Dataset.range(2**62).map(plain, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    if plan.prefetch:
        blocks = blocks.prefetch(-(-plan.prefetch // steps))
    # Blocks are prepared ahead by the map above; handing over single small batches costs more than taking them.
    finish = functools.partial(order.finish, plan=plan, transform_fn=transform_fn, prefetch=transform_fn is not None)
    dataset = finish(blocks.unbatch())
    if transform_fn is None and plan.replicas == 1:
        context.offer_blocks(dataset, finish(blocks))
    return dataset


def _one_pass(source: _Arrays, transform_fn: order.TransformFn | None) -> tf.data.Dataset:
    plan = source.plan
    plan.check_has_batch(source.num_examples, "from_arrays(): ")

    # Slices, not a map: each evaluation begins an iterator, which makes the graph of a function in ten milliseconds.
    with tf.init_scope(), tf.device("CPU:0"):
        size, examples = plan.replica_batch_size, source.share()
        count, rest = divmod(tf.nest.flatten(examples)[0].shape[0], size)
        whole = tf.nest.map_structure(
            lambda tensor: tf.reshape(tensor[: count * size], [count, size, *tensor.shape[1:]]), examples
        )
        left = tf.nest.map_structure(lambda tensor: tensor[None, count * size :][: min(rest, 1)], examples)
    dataset = tf.data.Dataset.from_tensor_slices(whole)
    if not plan.drop_remainder:  # also if none are left: the number of examples in a batch stays open
        dataset = dataset.concatenate(tf.data.Dataset.from_tensor_slices(left))
    return order.finish(dataset, plan, transform_fn=transform_fn)
