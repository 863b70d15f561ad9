"""Which example is at which position, and which positions a batch covers.

Owns: the arithmetic of global batches, pipelines and replicas; the permutation of an epoch; the seeds of augmentation;
blocks of batches, and reading over batches. Does not own: where examples come from (`arrays.py`, `records.py`).

Position p counts examples over all epochs. Global batch s covers positions [s * B, (s + 1) * B), pipelines take
contiguous shares of it, and replicas contiguous parts of those. So the order does not depend on what reads it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any

from official_trainer.inputs.context import DataError, InputContext
from official_trainer.lazy import tf

_logger = logging.getLogger(__name__)

TransformFn = Callable[[Any, "tf.Tensor"], Any]

_WINDOW_BYTES = 64 << 20  # what a block of many small batches is worth in memory
_PREFETCHED = 2  # batches prepared ahead where the data section has no number
_GOLDEN = 0x9E3779B97F4A7C15  # the increment and multipliers of SplitMix64 (Steele, Lea and Flood, 2014)
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class BatchPlan:
    """A data section with its unset fields resolved, for one pipeline of a job. An element is one replica's batch."""

    def __init__(self, params: Any, context: InputContext) -> None:
        """Resolves `params` (a data section) in `context`.

        A promise to read from its `start_step` on, and in training only those global batches that it asks for.
        """
        shuffle = getattr(params, "shuffle", None)
        drop_remainder = getattr(params, "drop_remainder", None)
        seed = getattr(params, "seed", None)
        self.training = bool(params.is_training)
        self.shuffle = self.training if shuffle is None else shuffle
        self.drop_remainder = self.training if drop_remainder is None else drop_remainder
        self.seed: int = context.seed if seed is None else seed
        self.prefetch: int | None = getattr(params, "prefetch_buffer_size", None)
        self.global_batch_size: int = params.global_batch_size
        self.replica_batch_size = context.get_per_replica_batch_size(self.global_batch_size)
        self.replicas = context.num_replicas_in_sync // context.num_input_pipelines
        self.pipelines, self.pipeline = context.num_input_pipelines, context.input_pipeline_id
        self.first_step = context.start_here()
        self.batch_stride = context.stride_here() if self.training else 1

    @property
    def first_element(self) -> int:
        """Number of this pipeline's first element since the start of training."""
        return self.first_step * self.replicas

    @property
    def pipeline_batch_size(self) -> int:
        """Examples of a global batch that this pipeline reads."""
        return self.replica_batch_size * self.replicas

    @property
    def use(self) -> str:
        """What the data is for, in words."""
        return "training data" if self.training else "evaluation data"

    def check_has_batch(self, num_examples: int, prefix: str = "") -> None:
        """Checks that one pass over the examples has a batch; the message begins with `prefix`.

        Raises:
          DataError: there are fewer than a batch, and `drop_remainder` drops them.
        """
        if self.drop_remainder and num_examples < self.global_batch_size:
            raise DataError(
                f"{prefix}the {self.use} have {num_examples} examples, fewer than one batch of "
                f"{self.global_batch_size}, and drop_remainder drops an incomplete batch; set drop_remainder: false",
                field="drop_remainder",
            )

    def first_positions(self, elements: Any) -> Any:
        """Returns the global position of the first example of each of this pipeline's elements.

        Elements are numbered without gaps from `first_step` on, for any stride.
        """
        step, replica = elements // self.replicas, elements % self.replicas
        step = self.first_step + (step - self.first_step) * self.batch_stride
        offset = self.pipeline * self.pipeline_batch_size
        return step * self.global_batch_size + offset + replica * self.replica_batch_size

    def num_elements(self, num_examples: int) -> int:
        """Returns how many elements this pipeline has in one pass over `num_examples`."""
        steps, rest = divmod(num_examples, self.global_batch_size)
        rest = 0 if self.drop_remainder else rest - self.pipeline * self.pipeline_batch_size
        return steps * self.replicas + min(max(-(-rest // self.replica_batch_size), 0), self.replicas)


def shuffled(positions: tf.Tensor, num_examples: Any, seed: int) -> tf.Tensor:
    """Returns which example is at each position: in every epoch, each example once, in another order.

    Args:
      positions: rising global positions, `[n]` int64.
      num_examples: examples in an epoch.
      seed: seed of the order.
    """
    epochs = positions // num_examples
    # Few epochs meet in one vector: mix a key for each of them, not for each position. The cipher behind
    # RandomIndexShuffle is weak in its key: with keys such as (0, epoch, 0) it hardly moves anything.
    meeting = tf.range(epochs[0], epochs[-1] + 1)
    words = [_mix(stream_seed(seed, f"order/{word}"), meeting) for word in range(3)]
    keys = tf.gather(tf.bitcast(tf.stack(words, axis=1), tf.int64), epochs - epochs[0])
    last = tf.cast(num_examples, tf.int64) - 1
    return tf.raw_ops.RandomIndexShuffle(index=positions % num_examples, seed=keys, max_index=last, rounds=4)


def stream_seed(seed: int, name: str) -> int:
    """Returns the seed of the stream called `name`, in [0, 2**63)."""
    return int.from_bytes(hashlib.blake2b(f"{name}/{seed}".encode(), digest_size=8).digest(), "little") >> 1


def epoch_seed(seed: int, name: str, epoch: tf.Tensor) -> tf.Tensor:
    """Returns the seed of the stream called `name` in `epoch`, scalar int64."""
    return tf.bitcast(_mix(stream_seed(seed, name), epoch), tf.int64)


def _mix(start: int, counter: tf.Tensor) -> tf.Tensor:
    """Returns the outputs of SplitMix64 from `start` at `counter`, uint64."""
    value = tf.cast(counter, tf.uint64) * tf.constant(_GOLDEN, tf.uint64) + tf.constant(start, tf.uint64)
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        value = tf.bitwise.bitwise_xor(value, tf.bitwise.right_shift(value, tf.constant(shift, tf.uint64)))
        value = value * tf.constant(multiplier, tf.uint64)
    return tf.bitwise.bitwise_xor(value, tf.bitwise.right_shift(value, tf.constant(31, tf.uint64)))


def finish(
    dataset: tf.data.Dataset,
    plan: BatchPlan,
    *,
    transform_fn: TransformFn | None,
    prefetch: bool = True,
) -> tf.data.Dataset:
    """Augments and prefetches a dataset of elements (replica batches).

    Args:
      dataset: elements from the plan's first one on.
      plan: what this pipeline reads.
      transform_fn: augmentation, called with a batch and seeds `[batch, 2]` int64.
      prefetch: whether to prepare elements ahead here.
    """
    if transform_fn is not None:
        stream = stream_seed(plan.seed, "transform")

        def transform(element: tf.Tensor, batch: Any) -> Any:
            size = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]
            positions = plan.first_positions(element) + tf.range(size)
            seeds = tf.stack([tf.fill([size], tf.constant(stream, tf.int64)), positions], axis=1)
            with tf.name_scope("transform_fn"):
                return transform_fn(batch, seeds)

        def key_of(element: tf.Tensor, batch: Any) -> tf.Tensor:  # of what draws without these seeds
            return tf.stack([stream_seed(plan.seed, "draws of transform"), plan.first_positions(element)])

        vars(transform)["key_of"] = key_of
        numbered = dataset.enumerate(start=plan.first_element)
        dataset = numbered.map(transform, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    if plan.training:
        # Data without end: else workers ask each other at each step whether all of them have a batch.
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    if prefetch and plan.prefetch != 0:
        dataset = dataset.prefetch(_PREFETCHED if plan.prefetch is None else plan.prefetch)
    return without_tuning(dataset)


def without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns `dataset` without tf.data's tuning thread: parallel parts use every core, buffers have a fixed size.

    The thread sleeps for up to a minute at a time, and an iterator waits for it when it goes away. So with tuning, an
    evaluation, a rollback or the end of the process may stand still for that long.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def stack_windows(dataset: tf.data.Dataset, max_steps: int) -> tf.data.Dataset:
    """Returns blocks `[steps, batch, …]` of `max_steps` batches, or fewer where that would take too much memory."""
    return dataset.batch(window_length(dataset.element_spec, max_steps), drop_remainder=False)


def skip(dataset: Any, num_elements: int) -> Any:
    """Returns `dataset` from element `num_elements` on, for pipelines that cannot start there by themselves.

    The elements before are read over, which is logged; for a distributed dataset at once, and its iterator is returned.

    Args:
      dataset: plain or distributed.
      num_elements: how many to read over.
    """
    if num_elements == 0:
        return dataset
    why = "this pipeline cannot start there; one that can calls input_context.start_here()"
    _logger.warning("reading over %d batches up to the restored step: %s", num_elements, why)
    if isinstance(dataset, tf.data.Dataset):
        return dataset.skip(num_elements)
    iterator = iter(dataset)  # TensorFlow has no `skip` for a distributed dataset
    for _ in range(num_elements):
        next(iterator)
    return iterator


def window_length(batch_spec: Any, max_steps: int) -> int:
    """Returns how many batches of this form a block holds: one where their shapes may differ."""
    if not all(spec.shape[1:].is_fully_defined() for spec in tf.nest.flatten(batch_spec)):
        return 1
    sizes = [(spec.shape.num_elements() or 1) * spec.dtype.size for spec in tf.nest.flatten(batch_spec)]
    return max(1, min(max_steps, _WINDOW_BYTES // max(1, sum(sizes))))
