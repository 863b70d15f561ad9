"""`from_tfrecords`: files of records, parsed by the task.

Owns: reading records in an order that is a pure function of (seed, epoch), from any step on.
Does not own: finding files and naming damage (`files.py`), batch arithmetic (`order.py`).

A restart skips records before they are parsed, and does not read whole epochs that it skips.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from official_trainer.inputs import files as record_files
from official_trainer.inputs import order, random_access, unparsed
from official_trainer.inputs.context import DataError, InputContext
from official_trainer.inputs.files import RecordFile
from official_trainer.inputs.random_access import ParseFn, parsed_by
from official_trainer.lazy import tf

_logger = logging.getLogger(__name__)

_CYCLE_LENGTH = 16  # tf.data's own choice depends on the machine's cores, and with it the order of examples
_CACHE_BLOCK = 1024


def from_tfrecords(
    params: Any,
    input_context: Any = None,
    *,
    parse_fn: ParseFn,
    transform_fn: order.TransformFn | None = None,
) -> tf.data.Dataset:
    """Returns batches of the TFRecord files in `params.input_path`, or of the records of `params.source`.

    A `source` of records (`type: tfrecord` or `array_record`) is read by `from_source`: shuffled fully, in the same
    order on any number of hosts. Of the files in `input_path`, in training, files and records change their order from
    epoch to epoch and repeat without end. `params.cache` holds the serialized records in memory, which makes the
    shuffle perfect and a restart immediate.

    Args:
      params: the data section, with `is_training` set, as a task's `build_inputs` gets it.
      input_context: the place of this pipeline in the job; None means that it feeds a single replica.
      parse_fn: turns one serialized record (scalar string) into a nest of tensors, all examples alike in shape.
      transform_fn: augmentation `(batch, seeds) -> batch` of batches of what `parse_fn` returns; `seeds` is
        `[batch, 2]` int64, as for `from_arrays`.

    Returns:
      Batches of one replica, tensors `[batch, …]` in the structure and with the types of what `parse_fn` returns.

    Raises:
      DataError: no file, no record, a file that cannot be read or a record that `parse_fn` cannot parse.

    Example:
      >>> from official_trainer import inputs
      >>> from official_trainer.config import DataConfig
      >>> from official_trainer.lazy import tf
      >>> with tf.io.TFRecordWriter("train.tfrecord") as writer:
      ...     for value in (0.25, 0.75):
      ...         feature = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=[value, -value]))}
      ...         writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
      >>> def parse(record):
      ...     return tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature([2], tf.float32)})["x"]
      >>> def add_noise(x, seeds):
      ...     noise = tf.map_fn(lambda seed: tf.random.stateless_normal([2], seed), seeds, tf.float32)
      ...     return x + 0.01 * noise
      >>> params = DataConfig(input_path="train.tfrecord", global_batch_size=2, is_training=True, seed=7)
      >>> batches = inputs.from_tfrecords(params, parse_fn=parse, transform_fn=add_noise)
      >>> next(iter(batches)).shape
      TensorShape([2, 2])
      >>> validation = inputs.from_tfrecords(params.replace(is_training=False), parse_fn=parse)
      >>> next(iter(validation)).numpy().tolist()
      [[0.25, -0.25], [0.75, -0.75]]
    """
    context = InputContext.adopt(input_context)
    if (source := getattr(params, "source", None)) is not None:
        return random_access.from_source(source, params, context, transform_fn=transform_fn, parse_fn=parse_fn)
    files = record_files.find_files(params.input_path)
    return from_files(files, params, context, parse_fn=parse_fn, transform_fn=transform_fn)


def from_files(
    files: Sequence[RecordFile],
    params: Any,
    input_context: Any,
    *,
    parse_fn: ParseFn,
    transform_fn: order.TransformFn | None,
) -> tf.data.Dataset:
    """Returns batches of the records in `files`; see `from_tfrecords`."""
    context = InputContext.adopt(input_context)
    plan = order.BatchPlan(params, context)
    share = _Share(files, plan, params, context.section)
    context.scan = functools.partial(share.scan, parse_fn)
    counted = share.counted(parse_fn)
    read_by = 1 if params.sharding else plan.pipelines  # how many pipelines use each example
    context.examples_per_epoch = (lambda: read_by * sum(file.count() for file in files)) if counted is None else counted
    context.find_record = functools.partial(share.find_unparsed, parse_fn)
    first_example = plan.first_step * plan.pipeline_batch_size
    if params.cache:
        records = share.cached_records(first_example)
    else:
        # Each data worker of a service reads epochs of its own: what one of them skips would be lost.
        records = share.records(first_example, whole_epochs=bool(context.served_by))
    if plan.batch_stride > 1:
        # Other workers' batches are left out before they are parsed.
        records = records.batch(plan.replica_batch_size).shard(plan.batch_stride, 0).unbatch()

    examples = records.map(
        functools.partial(parsed_by, parse_fn), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    whole = plan.training or plan.drop_remainder
    elements = examples.batch(plan.replica_batch_size, drop_remainder=whole)
    if whole and plan.replicas > 1:  # a step is whole only if every replica's batch is
        elements = elements.batch(plan.replicas, drop_remainder=True).unbatch()
    return order.finish(elements, plan, transform_fn=transform_fn)


class _Share:
    """The part of all records that one pipeline reads, and in which order."""

    def __init__(self, files: Sequence[RecordFile], plan: order.BatchPlan, params: Any, section: str) -> None:
        self.plan, self.all_files, self.params, self.section = plan, files, params, section
        self.by: Literal["files", "examples", "nothing"] = "nothing"
        if plan.pipelines > 1 and params.sharding:
            self.by = "files" if len(files) >= plan.pipelines else "examples"
        self.files = files[plan.pipeline :: plan.pipelines] if self.by == "files" else files
        # Pipelines that all read everything should at least not read it in the same order.
        alone = plan.pipelines == 1 or self.by != "nothing"
        self.seed = plan.seed if alone else order.stream_seed(plan.seed, f"pipeline/{plan.pipeline}")

    def count(self) -> int:
        """Returns the records of this share in one epoch."""
        records = sum(file.count() for file in self.files)
        return -(-(records - self.plan.pipeline) // self.plan.pipelines) if self.by == "examples" else records

    def counted(self, parse_fn: ParseFn) -> int | None:
        """Reads and parses the first record, so that a fault of all records is an error before training.

        Warns, in one of the pipelines, if every example counts several times.

        Returns:
          The number of records where they are fewer than a batch, else None.
        """
        plan = self.plan
        alone = plan.pipelines == 1  # one of several may have less than a batch, or nothing, to evaluate
        needed = plan.pipeline_batch_size if alone and (plan.drop_remainder or plan.training) else 1
        with tf.init_scope():  # the pipeline may be built inside a traced function
            try:
                count = int(self._serialized().take(needed).reduce(0, lambda total, _: total + 1))
                first = self._serialized().take(1).map(functools.partial(parsed_by, parse_fn))
                list(first.prefetch(1))
            except tf.errors.OpError as error:
                find_record = functools.partial(self.find_unparsed, parse_fn)
                explained = record_files.explain(error, self.all_files, self.section, find_record)
                if explained is None:
                    raise
                raise explained from error
        if count == 0 and (alone or plan.training):  # of several pipelines, the others would wait for this one
            share = "" if alone else f" for input pipeline {plan.pipeline} of {plan.pipelines}"
            fix = "" if alone else "; remove empty files, or use fewer workers"
            raise DataError(f"the {plan.use} hold no record{share}: {_shown(self.files)}{fix}")
        if count < needed and needed > 1 and not plan.training:
            raise DataError(
                f"the {plan.use} hold {count} records, fewer than one batch of {needed}, and drop_remainder drops an "
                f"incomplete batch; set drop_remainder: false. Files: {_shown(self.files)}",
                field="drop_remainder",
            )
        if self.by == "nothing" and not alone and plan.pipeline == 0:
            _logger.warning(
                "%ssharding is false: each input pipeline reads all of the %s, so each example counts %d times; set it "
                "to true to divide them",
                f"{self.section}." if self.section else "",
                plan.use,
                plan.pipelines,
            )
        return count if count < needed and plan.training else None

    def find_unparsed(self, parse_fn: ParseFn) -> str:
        """Returns the first record that `parse_fn` cannot parse: its file, its number from 0, and the user's line."""
        for file in self.all_files:
            records = _records_of(file).take(unparsed.MOST_RECORDS)
            parsed = records.map(functools.partial(parsed_by, parse_fn))
            where = functools.partial(_place, file)
            if problem := unparsed.first_of(records, parsed, where, parse_fn):
                return problem
        return ""

    def scan(self, parse_fn: ParseFn) -> Iterator[str]:
        """Yields what is wrong with each record that cannot be parsed, and with each damaged file."""
        for file in self.all_files:
            parsed = _records_of(file).map(functools.partial(parsed_by, parse_fn))
            yield from (f"{_place(file, number)}: {reason}" for number, reason in unparsed.refused(parsed))
            if (damage := record_files.damage(file.path)) is not None:
                yield str(damage)

    def records(self, first: int, *, whole_epochs: bool = False) -> tf.data.Dataset:
        """Returns serialized records from this share's record number `first` on, counted over all epochs.

        Args:
          first: where to begin.
          whole_epochs: whether to begin at the start of its epoch instead.
        """
        repeats = self.plan.training
        first_epoch, skip = divmod(first, self.count()) if first and repeats else (0, first)
        skip = 0 if whole_epochs else skip
        epochs = tf.data.Dataset.range(first_epoch, 2**62 if repeats else 1)
        return epochs.flat_map(self._epoch).skip(skip)

    def cached_records(self, first: int) -> tf.data.Dataset:
        """Returns the same records from memory, shuffled whole."""
        with tf.init_scope(), tf.device("CPU:0"):
            blocks = [tf.zeros([0], tf.string), *self._serialized().batch(_CACHE_BLOCK)]
            serialized = tf.concat(blocks, axis=0)
        num_records = int(serialized.shape[0])
        last = 2**62 if self.plan.training else num_records

        def block(start: tf.Tensor) -> tf.Tensor:
            positions = tf.range(start, tf.minimum(start + _CACHE_BLOCK, last))
            if self.plan.shuffle:
                return tf.gather(serialized, order.shuffled(positions, num_records, self.seed))
            return tf.gather(serialized, positions % num_records)

        starts = tf.data.Dataset.range(first, last, _CACHE_BLOCK)
        return starts.map(block, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).unbatch()

    def _epoch(self, epoch: tf.Tensor) -> tf.data.Dataset:
        """Returns the records of one epoch in their order."""
        if not self.plan.shuffle:
            return self._serialized()
        positions = epoch * len(self.files) + tf.range(len(self.files), dtype=tf.int64)
        numbers = order.shuffled(positions, len(self.files), order.stream_seed(self.seed, "files"))
        if not tf.executing_eagerly():  # not under tf.data's debug mode
            # tf.data mixes the graph's seed into that of a shuffle: fix it (0 is refused together with a tensor), or
            # the order depends on set_seed().
            tf.random.set_seed(1)
        shuffle_seed = order.epoch_seed(self.seed, "records", epoch)
        buffer_size = self.params.shuffle_buffer_size
        return self._serialized(numbers).shuffle(buffer_size, seed=shuffle_seed, reshuffle_each_iteration=False)

    def _serialized(self, numbers: tf.Tensor | None = None) -> tf.data.Dataset:
        """Returns the serialized records of all files, or those with these numbers."""
        if numbers is None:
            numbers = tf.range(len(self.files), dtype=tf.int64)
        paths = tf.constant([file.path for file in self.files])
        skips = tf.constant([file.skip for file in self.files], tf.int64)
        takes = tf.constant([file.take for file in self.files], tf.int64)

        def part_of(number: tf.Tensor) -> tf.data.Dataset:
            part = tf.data.TFRecordDataset(paths[number])
            return part.skip(skips[number]).take(takes[number])

        records = tf.data.Dataset.from_tensor_slices(numbers).interleave(
            part_of,
            cycle_length=min(self.params.cycle_length or _CYCLE_LENGTH, len(self.files)),
            block_length=self.params.block_length,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        return records.shard(self.plan.pipelines, self.plan.pipeline) if self.by == "examples" else records


def _records_of(file: RecordFile) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(file.path).skip(file.skip).take(file.take)


def _place(file: RecordFile, number: int) -> str:
    return f"{file.path}: record {file.skip + number}"


def _shown(files: Sequence[RecordFile]) -> str:
    return files[0].path if len(files) == 1 else f"{len(files)} files, {files[0].path} to {files[-1].path}"
