"""The batches of a run: a task's data under the strategy, from the run's current step on.

Owns: building datasets, the position in the training data that checkpoints hold, and what happens when data ends. Does
not own: how a pipeline orders or reads examples (`inputs/`), the streams of workers (`coordinator.py`).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orbit

from official_trainer import inputs
from official_trainer.distributed import tpu
from official_trainer.engine import windows
from official_trainer.engine.step_clock import StepClock
from official_trainer.inputs import DataError, InputContext, data_service, in_hand
from official_trainer.lazy import tf
from official_trainer.tasks import keyed_draws, random_streams
from official_trainer.tasks.contract import length_of
from official_trainer.user_code import during

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blocks:
    """Asks for data in blocks of batches, `[steps, batch, …]`, wherever a pipeline offers them.

    Attributes:
      clock: measures how long steps wait for a block.
      stacked_steps: how many batches of all other data are stacked into a block; None if those stay single.
    """

    clock: StepClock
    stacked_steps: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuilderOptions:
    """What few data sections need.

    Attributes:
      service_timeout_seconds: how long a tf.data service may be silent.
    """

    service_timeout_seconds: float = 600.0


class DatasetBuilder:
    """Builds a task's dataset for one split under the strategy in scope.

    Attributes:
      strategy: the strategy in scope at construction.
      params: the data section to build from, or None.
      section: its path in the config, for messages; empty if it is in none.
      context: the context that the data built last was built for.
      yields_blocks: whether the data built last are blocks of batches.
    """

    def __init__(
        self,
        task: Any,
        params: Any,
        *,
        training: bool,
        seed: int,
        section: str = "",
        options: BuilderOptions | None = None,
    ) -> None:
        self._task, self._training, self._seed = task, training, seed
        self.params, self.section = inputs.with_training_flag(params, training), section
        self.strategy = tf.distribute.get_strategy()
        self._input_options = _input_options(self.strategy)
        self._options = options or BuilderOptions()
        self.context: InputContext | None = None
        self.yields_blocks = False
        self._dataset: Any = None
        self._is_separate = False

    @property
    def source(self) -> str:
        """The method that builds the data, for messages."""
        return f"{type(self._task).__name__}.build_inputs"

    @property
    def started_at_step(self) -> bool:
        """Whether the data built last began at its start step, instead of being read and skipped up to that step."""
        return self.context is not None and (self.context.starts_here or bool(self.context.served_by))

    def build(self, start_step: int = 0, blocks: Blocks | None = None, num_repeated: int | None = None) -> Any:
        """Returns the distributed dataset.

        Args:
          start_step: number of the first batch.
          blocks: which data are to come in blocks of batches; None for none.
          num_repeated: if set, only so many batches from the first one on, from memory, again and again.
        """
        repeats = num_repeated is not None

        def build(input_context: tf.distribute.InputContext) -> Any:
            is_served = self.is_served and not repeats
            if is_served:
                data_service.check_pipelines(self.params, input_context.num_input_pipelines)
            context = InputContext(
                # Data workers divide what one pipeline would read alone.
                num_input_pipelines=1 if is_served else input_context.num_input_pipelines,
                input_pipeline_id=0 if is_served else input_context.input_pipeline_id,
                num_replicas_in_sync=input_context.num_replicas_in_sync,
                start_step=0 if repeats else start_step,
                seed=self._seed,
            )
            context.first_batch = start_step
            context.served_by = self.params.tf_data_service_address if is_served else ""
            dataset = self._dataset_of(context)
            if self._training and isinstance(self.strategy, tf.distribute.TPUStrategy):
                tpu.check_static(dataset, self.source)
            self._dataset, self.context = dataset, context
            if num_repeated is not None:
                dataset = dataset.take(num_repeated * context.elements_per_step).cache().repeat()
            # What the pipeline did not do itself: skipping to the start, stacking batches into blocks.
            if start_step and not (repeats or context.starts_here or context.served_by):
                dataset = inputs.skip(dataset, start_step * context.elements_per_step)
            offered = None if blocks is None or is_served else context.blocks_of(dataset)
            stacked_steps = None if blocks is None else blocks.stacked_steps
            if offered is not None:
                dataset = offered
            elif stacked_steps is not None:
                dataset = inputs.stack_windows(dataset, stacked_steps).prefetch(2)
            self.yields_blocks = offered is not None or stacked_steps is not None
            if context.served_by:
                start, timeout = (start_step, self._seed), self._options.service_timeout_seconds
                dataset = data_service.distribute(dataset, self.params, start=start, timeout_seconds=timeout)
            return dataset

        with random_streams.temporary_seed(self._seed) if self._is_separate else contextlib.nullcontext():
            if self._training and not self._is_separate:
                # A pipeline that shuffles without a seed of its own must do so the same way after every restart.
                seeds = keyed_draws.set_seed if self.context is None else tf.random.set_seed
                seeds(self._seed)  # the latter, when the run goes back, also restarts what steps draw without a key
            # Under a coordinator this process reads alone, because the workers have streams of their own.
            if isinstance(self.strategy, tf.distribute.ParameterServerStrategy):
                return build(InputContext())
            return orbit.utils.make_distributed_dataset(self.strategy, build, input_options=self._input_options)

    def of_worker(self, first: int, num_workers: int, *, repeats: bool) -> tf.data.Dataset:
        """Returns global batch number `first` and every `num_workers`-th from there on, each with its number.

        `repeats` is whether data that ends begins again.
        """
        context = InputContext(start_step=first, seed=self._seed).with_stride(num_workers)
        dataset = self._dataset_of(context)
        if not context.starts_here:
            dataset = inputs.skip(dataset.repeat() if repeats else dataset, first)
        if not context.strides_here:
            dataset = dataset.shard(num_workers, 0)
        return tf.data.Dataset.zip((tf.data.Dataset.range(first, 2**62, num_workers), dataset))

    def _dataset_of(self, context: InputContext) -> Any:
        context.section = self.section
        notes = during(
            f"building {self.section.removeprefix('task.') or 'data'}", task=self._task, method="build_inputs"
        )
        with notes, keyed_draws.of_pipeline(context.seed):  # what it draws must be the same after every restart
            return inputs.call_build_inputs(self._task, data_service.read_here(self.params), context)

    @property
    def of_pipeline(self) -> Any:
        """The dataset built last, of this process alone, as the task returned it; None before."""
        return self._dataset

    def example_from(self, position: int) -> Callable[[int], int | None]:
        """Returns a function that tells which example is so many behind a position, if that is known."""
        if self.context is None or self.context.example_at is None or self.context.num_input_pipelines > 1:
            return lambda row: None
        find = self.context.example_at
        return lambda row: find(position + row)

    def element_spec(self) -> Any:
        """Returns the shapes and dtypes of a replica's batch; the state of this builder does not change."""
        builder = self.separate()
        builder.build()
        return builder._dataset.element_spec

    def separate(self) -> DatasetBuilder:
        """Returns a builder of the same data, for reading it without changing the state of the run."""
        builder = copy.copy(self)
        builder._is_separate, builder.context = True, None
        return builder

    @property
    def is_served(self) -> bool:
        """Whether a tf.data service delivers the batches, in no fixed order."""
        return self._training and not self._is_separate and data_service.is_used(self.params)

    def steps_per_epoch(self, *, count: bool = True) -> float | None:
        """Returns the steps of a pass over the data built last: infinity if it has no end, None if it is unknown.

        Args:
          count: whether the examples may be counted to find out.
        """
        assert self.context is not None, "nothing was built yet"
        context = self.context
        examples = context.examples_per_epoch if count else context.examples_counted
        if examples is not None:
            return examples / self.params.global_batch_size
        length = length_of(self._dataset)
        return length if length in (None, math.inf) else length // context.elements_per_step

    @contextlib.contextmanager
    def errors_explained(self) -> Iterator[None]:
        """Turns TensorFlow's errors about unreadable data into one that names the file."""
        try:
            yield
        except _READ_ERRORS as error:
            find_record = (lambda: "") if self.context is None else self.context.find_record
            explained = None if self.context is None else self.context.failure()
            explained = explained or inputs.explain_data_error(error, self.params, self.section, find_record)
            if explained is None:
                raise
            with during(task=self._task, method="build_inputs"):
                raise explained from (None if explained.__cause__ else error)


_READ_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
)


class DataPosition(tf.Module):
    """The position in the training data, saved so that a resumed run reads what an uninterrupted one would."""

    def __init__(self) -> None:
        super().__init__(name="data_position")

        def counter(name: str) -> tf.Variable:
            first = tf.VariableAggregation.ONLY_FIRST_REPLICA
            return tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=first, name=name)

        self.epoch = counter("epoch")
        self.epoch_start_step = counter("epoch_start_step")
        self.skipped_steps = counter("skipped_steps")

    @property
    def counters(self) -> tuple[tf.Variable, ...]:
        """All variables of the position."""
        return self.epoch, self.epoch_start_step, self.skipped_steps

    def values(self) -> list[int]:
        """Returns the position as numbers."""
        return [int(counter.numpy()) for counter in self.counters]

    def start_step(self, global_step: int) -> int:
        """Returns the number of batches of the iterator before the batch of `global_step`."""
        return global_step + int(self.skipped_steps.numpy()) - int(self.epoch_start_step.numpy())

    def change_batch_size(self, global_step: int, before: int, after: int) -> None:
        """Continues with the same examples in batches of another size; less than one batch is skipped."""
        done = (global_step + int(self.skipped_steps.numpy())) * before
        epoch_start = int(self.epoch_start_step.numpy()) * before
        # A position is counted from the epoch's start; both are rounded up, so nothing is seen twice.
        self.epoch_start_step.assign(-(-epoch_start // after))
        self.skipped_steps.assign(-(-(done - epoch_start) // after) + int(self.epoch_start_step.numpy()) - global_step)

    def begin_epoch(self, global_step: int) -> None:
        """Marks that the data ended and that its first batch is the batch of `global_step`."""
        self.epoch.assign_add(1)
        self.epoch_start_step.assign(global_step + int(self.skipped_steps.numpy()))


class TrainIterator:
    """The iterator over training batches: built at the run's step, dropped when the run goes elsewhere.

    Size: the data of the task, that of the caller and single batches in hand have one position.

    Attributes:
      builder: builds the task's data.
    """

    def __init__(
        self,
        builder: DatasetBuilder,
        global_step: tf.Variable,
        *,
        on_data_end: str,
        blocks: Blocks | None = None,
        dataset: Any = None,
        worker_streams: Callable[[DatasetBuilder, int], Any] | None = None,
    ) -> None:
        """Takes the task's builder, or a dataset to use instead.

        Args:
          builder: builds the task's training data.
          global_step: step whose batch comes next.
          on_data_end: `error`, `stop` or `repeat`.
          blocks: which data are to come in blocks of batches; None for none.
          dataset: dataset to use instead of the task's.
          worker_streams: returns the iterators of all workers from a batch on, by the builder and the batch's number.
        """
        self.position = DataPosition()
        self.build_seconds = 0.0
        self.builder = builder
        self._global_step = global_step
        self._on_data_end = on_data_end
        self._blocks = blocks
        self._dataset = dataset
        self._distribute: Callable[[Any], Any] = lambda dataset: dataset
        self._explained_by: Any = builder  # has `source` and `errors_explained`
        self._iterator: Any = None
        self._num_skipped = 0
        self._num_repeated: int | None = None
        self._has_warned = False
        self._worker_streams = worker_streams
        self._passes_before, self._batches_before = 0, 0  # of other data than that which is read now
        self._observers: list[Callable[[InputContext], object]] = []

    @property
    def dataset(self) -> Any:
        """The dataset that is used instead of the task's, or None."""
        return self._dataset

    def add_observer(self, on_build: Callable[[InputContext], object]) -> None:
        """Calls `on_build` with the context of the task's data, each time that the iterator is built from it."""
        self._observers.append(on_build)

    def replace(self, dataset: Any, name: str = "", distribute: Callable[[Any], Any] = lambda dataset: dataset) -> None:
        """Uses `dataset` from now on; the task's own data if that is None.

        Args:
          dataset: what `distribute` takes.
          name: of the dataset, for messages.
          distribute: returns the distributed dataset; by default it is distributed already.
        """
        self._dataset, self._distribute = dataset, distribute
        self._passes_before, self._batches_before, _ = self.position.values()
        self._explained_by = in_hand.InHand(name) if name else self.builder
        self.reset()

    def repeat_first(self, num_batches: int) -> None:
        """Trains on the first `num_batches` batches of the task's data from now on, again and again."""
        self._num_repeated = num_batches
        self.reset()

    @contextlib.contextmanager
    def instead(self, batches: Any) -> Iterator[None]:
        """Steps in a `with` block take these `batches`, distributed; the training data stays where it is."""
        first, before = int(self._global_step.numpy()), self._iterator
        self._iterator = iter(batches)
        if self._blocks is not None and self._blocks.stacked_steps is not None:
            self._iterator = windows.Blocks(iter(inputs.stack_windows(batches, 1)), self._blocks.clock)
        try:
            yield
        finally:
            self._iterator = before
            self.position.skipped_steps.assign_sub(int(self._global_step.numpy()) - first)

    @contextlib.contextmanager
    def on_end(self, policy: str) -> Iterator[None]:
        """In a `with` block, `policy` takes the place of `trainer.on_data_end`; `stop` where epochs are counted."""
        before, self._on_data_end = self._on_data_end, policy
        try:
            yield
        finally:
            self._on_data_end = before

    def iterator(self) -> Any:
        """Returns the iterator whose next batch is that of the current step."""
        if self._iterator is None:
            began = time.monotonic()
            step = int(self._global_step.numpy())
            dataset = self._build(step, self._blocks)
            is_of_task = self._dataset is None
            in_blocks = self.builder.yields_blocks if is_of_task else self._is_always_in_blocks
            blocks = self._blocks if in_blocks else None
            if is_of_task and self.builder.context is not None:
                self._warn_of_small_data(self.builder.context)
                for on_build in self._observers:
                    on_build(self.builder.context)
            self._num_skipped = 0 if self.builder.started_at_step else self.position.start_step(step)
            if self._worker_streams is not None:  # what was built above describes the data
                self._iterator = self._worker_streams(self.builder, self.position.start_step(step))
            else:
                iterator = tf.nest.map_structure(iter, dataset)
                self._iterator = iterator if blocks is None else windows.Blocks(iterator, blocks.clock)
            self.build_seconds += time.monotonic() - began
        return self._iterator

    @property
    def yields_blocks(self) -> bool:
        """Whether the iterator yields blocks of batches, `[steps, batch, …]`."""
        return isinstance(self.iterator(), windows.Blocks)

    @property
    def _is_always_in_blocks(self) -> bool:
        return self._blocks is not None and self._blocks.stacked_steps is not None

    def _warn_of_small_data(self, context: InputContext) -> None:
        """Warns, once, of a batch that is larger than the data."""
        examples, size = context.examples_counted, getattr(self.builder.params, "global_batch_size", 0)
        if examples is not None and examples < size and not self._has_warned:
            self._has_warned = True
            place = self.builder.section or self.builder.source
            _logger.warning(
                "%s: a batch of %d is larger than the data, which has %d examples, so each batch holds some of them "
                "several times; set %s.global_batch_size to at most %d",
                *(place, size, examples, place, examples),
            )

    def _build(self, step: int, blocks: Blocks | None = None) -> Any:
        """Returns the data that follows `step`."""
        start_step = self.position.start_step(step)
        if self._dataset is None:
            return self.builder.build(start_step, blocks, self._num_repeated)
        dataset = inputs.skip(self._dataset, start_step)
        if blocks is not None and blocks.stacked_steps is not None:
            dataset = inputs.stack_windows(dataset, blocks.stacked_steps)
        return self._distribute(dataset)

    def batches(self, step: int) -> Iterator[Any]:
        """Yields the batches that follow `step`, distributed; the training iterator keeps its position.

        Yields none if a service delivers them: it would not deliver the same ones again.
        """
        if self._dataset is None and self.builder.is_served:
            return
        yield from tf.nest.map_structure(iter, self._build(step))

    def first_batches(self) -> Iterator[Any]:
        """Yields batches from the first one of the data, distributed; the state of training does not change."""
        dataset, builder = self._dataset, self.builder.separate()
        if dataset is None:
            dataset = builder.build()
        with builder.errors_explained():
            yield from tf.nest.map_structure(iter, dataset)

    def pipelines(self) -> int | None:
        """Returns how many input pipelines divide the task's data, building none; None for the caller's dataset."""
        if self._dataset is not None:
            return None
        counts = []

        def build(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
            counts.append(input_context.num_input_pipelines)
            return tf.data.Dataset.from_tensors([0])

        orbit.utils.make_distributed_dataset(self.builder.strategy, build)
        return max(counts, default=1)

    def reset(self) -> None:
        """Drops the iterator; the next one is built from the state as it is then."""
        self._iterator = None

    def go_to(self, position: Sequence[int]) -> None:
        """Continues from the position of another process; see `DataPosition.values`."""
        if position != self.position.values():
            for counter, value in zip(self.position.counters, position, strict=True):
                counter.assign(value)
            self.reset()

    def skip(self, num_steps: int) -> None:
        """Moves the data past batches that training cannot use."""
        self.position.skipped_steps.assign_add(num_steps)
        self.reset()

    @property
    def skipped_steps(self) -> int:
        """How many batches before that of the current step belong to no step."""
        return int(self.position.skipped_steps.numpy())

    def begin_next_epoch(self) -> None:
        """Starts the data again: its first batch is the batch of the current step."""
        self.position.begin_epoch(int(self._global_step.numpy()))
        self.reset()

    def handle_end(self) -> bool:
        """Handles the end of the data as `trainer.on_data_end` configures; returns whether training continues.

        Raises:
          DataError: there was no batch at all, or the policy is `error`.
        """
        step = int(self._global_step.numpy())
        if self.position.start_step(step) <= 0:
            raise DataError(
                f"{self._explained_by.source}: the training data holds no batch; "
                "check input_path, or set a smaller global_batch_size"
            )
        if self._on_data_end == "error":
            raise DataError(
                f"{self._explained_by.source}: the training data ended at step {step}; set trainer.on_data_end to "
                "repeat (next epoch) or stop (end the run here), or repeat the dataset"
            )
        if self._on_data_end == "repeat":
            self.begin_next_epoch()
        return self._on_data_end == "repeat"

    def epoch(self, step: int) -> float | None:
        """Returns the passes over the data until `step`; None if nothing says the length of one before its end."""
        done, start, _ = self.position.values()
        steps = self.known_epoch_steps if self._dataset is None else self._steps_per_epoch(count=False)
        if steps is None and done > self._passes_before:
            steps = (start - self._batches_before) / (done - self._passes_before)
        if steps is None or not 0 < steps < math.inf:  # 0: where a program begins again before the first batch
            return float(done) if done else None
        return done + self.position.start_step(step) / steps

    @property
    def known_epoch_steps(self) -> float | None:
        """The steps of a pass over the task's data, if that is built, and its length is known without counting."""
        if self._iterator is None or self._dataset is not None:
            return None
        steps = self.builder.steps_per_epoch(count=False)
        return None if steps == math.inf else steps

    def _steps_per_epoch(self, *, count: bool) -> float | None:
        if self._dataset is None:
            return self.builder.steps_per_epoch(count=count)
        return length_of(self._dataset)

    def place(self, step: int) -> tuple[int, int] | None:
        """Returns the epoch in which step number `step` lies and which step of it that is, both counted from 1.

        None if the length of an epoch is unknown.
        """
        self.iterator()
        steps = self.known_epoch_steps
        if steps is None:
            return None
        done = step + self.skipped_steps
        epoch = max(1, math.ceil(done / steps))
        return epoch, done - math.floor((epoch - 1) * steps)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """For a window that reads from the iterator: explains errors, and logs how long it took to reach the data."""
        began = time.monotonic()
        with self._explained_by.errors_explained():
            yield
        if self._num_skipped:
            seconds = time.monotonic() - began
            _logger.warning("skipping %d batches, and the first step, took %.1f s", self._num_skipped, seconds)
            self._num_skipped = 0

    def steps_per_epoch(self) -> float | None:
        """Returns the steps of a pass over the data, or None if only a pass over it shows that.

        Raises:
          DataError: the data has no end, so that there are no epochs to count.
        """
        self.iterator()
        steps = self._steps_per_epoch(count=True)
        if steps is None and self._dataset is None and self.builder.is_served:
            raise DataError(
                f"{self.builder.source}: trainer.train_epochs needs to know how long an epoch is, and from a tf.data "
                "service its end cannot be seen; set trainer.train_steps instead, or "
                "input_context.examples_per_epoch in build_inputs"
            )
        if steps == math.inf:
            raise DataError(
                f"{self._explained_by.source}: trainer.train_epochs needs training data that ends, this dataset "
                "repeats forever; set trainer.train_steps instead, or leave out repeat()"
            )
        return steps


def _input_options(strategy: tf.distribute.Strategy) -> tf.distribute.InputOptions | None:
    """Returns how batches get to the replicas of the strategy in scope.

    On CPUs not through iterators made for devices, which take 6 % of a small step there without a use.
    """
    if not tf.distribute.has_strategy():
        return None
    kinds = {tf.DeviceSpec.from_string(device).device_type for device in strategy.extended.worker_devices}
    return tf.distribute.InputOptions(experimental_fetch_to_device=kinds != {"CPU"})
