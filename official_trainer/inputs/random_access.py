"""`from_source` and `from_grain`: examples by their number, read in Python, as batches that start at any step.

Owns: pipelines over sources of random access, the threads or processes that read them, errors with the place of an
example. Does not own: what a source is (`source.py`), the order of examples (`order.py`, `grouped.py`), reading one
example (`reader.py`).

Which example is at a position is computed, and the source is asked for it: so a step on any number of hosts costs what
the first one costs. Reading an example in Python takes tens of microseconds; arrays and TFRecord files have a path of
their own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from official_trainer.inputs import files as record_files
from official_trainer.inputs import order, unparsed
from official_trainer.inputs.context import DataError, InputContext, SourceInUse
from official_trainer.inputs.grouped import GroupedOrder
from official_trainer.inputs.reader import Reader, Transform, Workers
from official_trainer.inputs.source import Source, adopt
from official_trainer.lazy import tf

_MOST_WORKERS = 16
_BLOCK_STEPS = 64  # that are read in one call where that is quicker than one by one
_BLOCK_EXAMPLES = 2**14  # and at most so many
_BLOCK_BYTES = 2**22  # and about so many bytes, which caches hold; each worker reads a block ahead
_RESTS = 2**62


def from_source(
    source: Any,
    params: Any,
    input_context: Any = None,
    *,
    transforms: Sequence[Transform] = (),
    transform_fn: order.TransformFn | None = None,
    parse_fn: ParseFn | None = None,
) -> tf.data.Dataset:
    """Returns batches of a source of random access: endless and shuffled for training, once and in order else.

    The order is a function of the seed and the position alone: a run continues at any step at once, on any number of
    hosts and replicas. `params.workers` threads read, or processes if `params.use_multiprocessing` is set; then the
    source and `transforms` are pickled.

    Args:
      source: an `inputs.Source`; a section that builds one, such as `params.source`; or any object with `__len__` and
        `__getitem__`, as those of PyTorch, Hugging Face, Grain and TFDS (`tfds.data_source`).
      params: the data section, with `is_training` set, as a task's `build_inputs` gets it.
      input_context: the place of this pipeline in the job; None means that it feeds a single replica.
      transforms: called with each example, one after the other, in Python: functions `example -> example`; functions
        with a parameter `rng` get a `numpy.random.Generator` that depends on the seed and the position; Grain's `Map`
        and `RandomMap` serve, too.
      transform_fn: augmentation `(batch, seeds) -> batch` in TensorFlow, as for `from_arrays`.
      parse_fn: turns an example that is a serialized record (scalar string) into a nest of tensors, in TensorFlow.

    Returns:
      Batches of one replica, tensors `[batch, …]` in the structure of an example, or of what `parse_fn` returns.

    Raises:
      DataError: there is no example, or the first cannot be read; later, with the place of an example.

    Example:
      >>> from official_trainer import inputs
      >>> from official_trainer.config import DataConfig
      >>> words = ["a", "list", "of", "words"]
      >>> params = DataConfig(global_batch_size=2, is_training=False)
      >>> batches = inputs.from_source(words, params, transforms=[lambda word: {"word": word, "size": len(word)}])
      >>> [batch["size"].numpy().tolist() for batch in batches]
      [[1, 4], [2, 5]]
    """
    context = InputContext.adopt(input_context)
    plan = order.BatchPlan(params, context)
    adopted = adopt(source)
    count = len(adopted)
    if count == 0:
        raise DataError(f"from_source(): the {plan.use} are empty: {type(source).__name__} has no example")
    seed = order.stream_seed(plan.seed, "transforms")
    reader = Reader(adopted, transforms, seed=seed)
    parsing = None if parse_fn is None else _Parsing(parse_fn, reader)
    context.scan = functools.partial(_scanned, reader, parsing)
    reader.begin()
    context.examples_per_epoch = count
    if parsing is not None:
        parsing.begin(context)
    example_order = _order_of(adopted, params, plan, plan.seed)
    pipeline = _Pipeline(reader, params, plan, example_order, parsing)
    return pipeline.dataset(context, transform_fn, adopted)


def from_grain(
    dataset: Any,
    params: Any,
    input_context: Any = None,
    *,
    transform_fn: order.TransformFn | None = None,
) -> tf.data.Dataset:
    """Returns batches of a Grain `MapDataset`, in Grain's order: `dataset[i]` is example i.

    It must yield single examples: batches are made here, of `params.global_batch_size`. For training it repeats
    without end; a shuffle in it changes from epoch to epoch. `params.shuffle` has no effect.

    Args:
      dataset: the `grain.MapDataset`.
      params: the data section, with `is_training` set.
      input_context: the place of this pipeline in the job.
      transform_fn: augmentation `(batch, seeds) -> batch` in TensorFlow, as for `from_arrays`.

    Returns:
      Batches of one replica, tensors `[batch, …]` in the structure of an element.

    Raises:
      DataError: it is no `MapDataset`, is empty, or an element was filtered out.

    Example:
      >>> import grain
      >>> from official_trainer import inputs
      >>> from official_trainer.config import DataConfig
      >>> numbers = grain.MapDataset.source(range(10)).seed(7).shuffle().map(lambda number: {"x": number})
      >>> batches = inputs.from_grain(numbers, DataConfig(global_batch_size=5, is_training=False))
      >>> sorted(x for batch in batches for x in batch["x"].numpy().tolist())
      [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    import grain

    if not isinstance(dataset, grain.MapDataset):
        hint = "; an IterDataset has a state instead of positions" if isinstance(dataset, grain.IterDataset) else ""
        raise DataError(f"from_grain() needs a grain.MapDataset, got a {type(dataset).__name__}{hint}")
    context = InputContext.adopt(input_context)
    plan = order.BatchPlan(params, context)
    count, is_endless = len(dataset), len(dataset) >= _RESTS
    if count == 0 or (is_endless and not plan.training):
        what = "are empty" if count == 0 else "have no end; leave repeat() out"
        raise DataError(f"from_grain(): the {plan.use} {what}")
    context.order = f"grain {grain.__version__}"
    context.examples_per_epoch = None if is_endless else count
    source = _OfGrain(dataset if is_endless or not plan.training else dataset.repeat(), count)
    reader = Reader(source, (), seed=0)
    context.scan = functools.partial(_scanned, reader, None)
    reader.begin()
    pipeline = _Pipeline(reader, params, plan, lambda positions: positions)
    return pipeline.dataset(context, transform_fn, source)


def _scanned(reader: Reader, parsing: _Parsing | None) -> Iterator[str]:
    """Yields what is wrong with each example that cannot be read or parsed, with its place."""
    bad = set()
    for index, error in reader.scan():
        bad.add(index)
        yield str(error)
    if parsing is not None:
        good = [index for index in range(len(reader.source)) if index not in bad]
        yield from parsing.unparsed(good)


class _OfGrain(Source):
    """The elements of a `MapDataset`, whose numbers go on over epochs."""

    def __init__(self, dataset: Any, count: int) -> None:
        self._dataset, self._count = dataset, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        element = self._dataset[index]
        if element is None:
            raise ValueError("a filter of the dataset dropped it, which leaves a hole in a batch; filter its source")
        return element

    def where(self, index: int) -> str:
        return f"element {index} of the MapDataset"


ExampleOrder = Callable[["tf.Tensor"], "tf.Tensor"]
"""Returns the numbers of the examples at rising positions, `[n]` int64."""


def _order_of(source: Source, params: Any, plan: order.BatchPlan, seed: int) -> ExampleOrder:
    """Returns the order of a source's examples."""
    count = len(source)

    def of_part(part: Source, name: str) -> ExampleOrder:
        return _order_of(part, params, plan, order.stream_seed(seed, f"part/{name}"))

    if plan.training and (decided := source.training_order(of_part)) is not None:
        return decided
    if not plan.shuffle:
        return lambda positions: positions % count
    if not source.groups:
        return lambda positions: order.shuffled(positions, count, seed)
    window = getattr(params, "shuffle_buffer_size", 1)
    grouped = GroupedOrder(source.groups, window, order.stream_seed(seed, "groups"))
    return lambda positions: tf.ensure_shape(tf.numpy_function(grouped.indices, [positions], tf.int64), positions.shape)


ParseFn = Callable[["tf.Tensor"], Any]


def parsed_by(parse_fn: ParseFn, record: tf.Tensor) -> Any:
    """Returns what `parse_fn` makes of a record; errors name the function."""
    with tf.name_scope("parse_fn"):
        return parse_fn(record)


class _Parsing:
    """Records that TensorFlow parses one by one, before they are batches."""

    def __init__(self, parse_fn: ParseFn, reader: Reader) -> None:
        self._parse_fn, self._reader = parse_fn, reader

    def begin(self, context: InputContext) -> None:
        """Parses the first record, and a sample of the others, so that a fault of many is an error before training.

        Raises:
          DataError: an example is no record, or one of these cannot be parsed.
        """
        reader = self._reader
        if len(reader.first) > 1 or reader.first[0][1].dtype.kind != "O" or reader.first[0][1].ndim:
            fields = ", ".join(path for path, _ in reader.first)
            raise DataError(f"parse_fn parses serialized records, and an example of the source has {fields}")
        context.find_record = functools.partial(self._find, range(len(reader.source)))
        samples = [0, *reader.samples]
        with tf.init_scope():  # the pipeline may be built inside a traced function
            try:
                list(self.parsed(self._records(samples)))
            except tf.errors.OpError as error:
                find_sample = functools.partial(self._find, samples)
                if (explained := record_files.explain(error, (), context.section, find_sample)) is None:
                    raise
                raise explained from error

    def batches(self, elements: tf.data.Dataset, size: int, *, drop_remainder: bool) -> tf.data.Dataset:
        """Returns elements of records as elements of what these hold."""
        return self.parsed(elements.unbatch()).batch(size, drop_remainder=drop_remainder)

    def parsed(self, records: tf.data.Dataset) -> tf.data.Dataset:
        """Returns what serialized records hold."""
        function = functools.partial(parsed_by, self._parse_fn)
        return records.map(function, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def unparsed(self, indices: Sequence[int]) -> Iterator[str]:
        """Yields the place of each of these records that cannot be parsed, and TensorFlow's reason."""
        for number, reason in unparsed.refused(self.parsed(self._records(indices))):
            yield f"{self._reader.source.where(indices[number])}: {reason}"

    def _find(self, indices: Sequence[int]) -> str:
        """Returns the first of these records that cannot be parsed, and the user's line."""
        searched = indices[: unparsed.MOST_RECORDS]
        records, where = self._records(searched), self._reader.source.where
        return unparsed.first_of(records, self.parsed(records), lambda number: where(searched[number]), self._parse_fn)

    def _records(self, indices: Sequence[int]) -> tf.data.Dataset:
        """Returns records by their numbers."""
        import numpy as np

        def record(number: Any) -> Any:
            return self._reader.read(number[None], number[None])[0]

        numbers = tf.data.Dataset.from_tensor_slices(np.asarray(indices, np.int64))
        return numbers.map(lambda number: tf.ensure_shape(tf.numpy_function(record, [number], tf.string), [1])[0])


def _slices(blocks: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the elements of blocks, as parts of their memory; `unbatch` copies them, and costs twice as much."""
    if isinstance(blocks.element_spec, tuple):
        return blocks.flat_map(lambda *block: tf.data.Dataset.from_tensor_slices(block))
    return blocks.flat_map(tf.data.Dataset.from_tensor_slices)


class _Pipeline:
    """One pipeline of a job over a source."""

    def __init__(
        self,
        reader: Reader,
        params: Any,
        plan: order.BatchPlan,
        examples: ExampleOrder,
        parsing: _Parsing | None = None,
    ) -> None:
        """Takes what reads examples, and which are in a batch.

        Args:
          reader: what reads examples.
          params: the section.
          plan: which positions an element has.
          examples: the numbers of the examples at positions.
          parsing: turns records into examples; None for examples.
        """
        self._plan, self._examples, self._parsing, self._structure = plan, examples, parsing, reader.structure
        self._specs = [
            tf.TensorSpec([None, *array.shape], tf.string if array.dtype.kind == "O" else array.dtype)
            for _, array in reader.first
        ]
        self._workers = getattr(params, "workers", None) or min(os.cpu_count() or 1, _MOST_WORKERS)
        self._failure: DataError | None = None
        most = min(_BLOCK_EXAMPLES, _BLOCK_BYTES // max(1, reader.num_bytes)) // plan.pipeline_batch_size
        self._block_steps = max(1, min(_BLOCK_STEPS, most)) if plan.training and reader.reads_many else 1
        ahead = self._workers * self._block_steps * plan.global_batch_size
        windows = 2 * getattr(params, "shuffle_buffer_size", 1) if plan.shuffle else 0  # two meet
        reader.source.expect(ahead + windows)
        is_elsewhere = getattr(params, "use_multiprocessing", False)
        self._read = Workers(reader, self._workers).read if is_elsewhere else reader.read

    def dataset(self, context: InputContext, transform_fn: order.TransformFn | None, source: Source) -> tf.data.Dataset:
        """Returns the batches of one replica, and tells `context` what is known of them."""
        plan, count = self._plan, len(source)
        told = SourceInUse(
            section=context.section,
            examples=count,
            fingerprint=source.fingerprint,
            order=context.order,
        )
        context.sources.append(told)
        self._section = context.section
        context.order_depends_on_pipelines = False
        context.failure = lambda: self._failure
        finish = functools.partial(order.finish, plan=plan, transform_fn=transform_fn)
        if not plan.training:
            plan.check_has_batch(count)
            elements = tf.data.Dataset.range(plan.first_element, max(plan.first_element, plan.num_elements(count)))
            batches = self._mapped(elements, functools.partial(self._element, count))
            return self._threaded(finish(self._parsed(batches)))
        blocks = self._mapped(tf.data.Dataset.range(_RESTS), self._block)
        waits = transform_fn is not None or self._parsing is not None or self._block_steps == 1
        if plan.prefetch and not waits:
            blocks = blocks.prefetch(-(-plan.prefetch // self._block_steps))
        dataset = self._threaded(finish(self._parsed(_slices(blocks)), prefetch=waits))
        if plan.replicas == 1 and not waits:
            context.offer_blocks(dataset, self._threaded(finish(blocks, prefetch=False)))
        return dataset

    def _parsed(self, elements: tf.data.Dataset) -> tf.data.Dataset:
        plan = self._plan
        if self._parsing is None:
            return elements
        return self._parsing.batches(elements, plan.replica_batch_size, drop_remainder=plan.training)

    def _mapped(self, numbers: tf.data.Dataset, function: Callable[[tf.Tensor], Any]) -> tf.data.Dataset:
        plain = tf.autograph.experimental.do_not_convert(function)
        return numbers.map(plain, num_parallel_calls=self._workers, deterministic=True)

    def _threaded(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Lets all workers wait for their reads at the same time, on a machine with fewer cores too."""
        options = tf.data.Options()
        options.threading.private_threadpool_size = max(self._workers, os.cpu_count() or 1)
        return dataset.with_options(options)

    def _block(self, number: tf.Tensor) -> Any:
        """Returns the elements of some steps, `[elements, batch, …]`."""
        plan, elements = self._plan, self._block_steps * self._plan.replicas
        starts = plan.first_positions(plan.first_element + number * elements + tf.range(elements, dtype=tf.int64))
        positions = starts[:, None] + tf.range(plan.replica_batch_size, dtype=tf.int64)
        batch = self._batch(tf.reshape(positions, [-1]))
        lead = [elements, plan.replica_batch_size]
        return tf.nest.map_structure(lambda tensor: tf.reshape(tensor, [*lead, *tensor.shape[1:]]), batch)

    def _element(self, count: int, number: tf.Tensor) -> Any:
        """Returns an element of one pass over all examples; the last has fewer."""
        first = self._plan.first_positions(number)
        return self._batch(tf.range(first, tf.minimum(first + self._plan.replica_batch_size, count)))

    def _batch(self, positions: tf.Tensor) -> Any:
        """Returns the examples at rising positions, `[n, …]`."""
        dtypes = [spec.dtype for spec in self._specs]
        values = tf.numpy_function(self._values, [self._examples(positions), positions], dtypes)
        for value, spec in zip(values, self._specs, strict=True):
            value.set_shape(spec.shape)
        return tf.nest.pack_sequence_as(self._structure, values)

    def _values(self, indices: Any, positions: Any) -> list[Any]:
        try:
            return self._read(indices, positions)
        except DataError as error:
            error.field = error.field and ".".join(filter(None, (self._section, error.field)))
            self._failure = self._failure or error  # TensorFlow's own has only its text
            raise
