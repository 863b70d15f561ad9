"""The batches of a run: a task's data under the strategy, from the run's current step on.

Owns: building datasets, the position in the training data that checkpoints hold, and what happens when data ends. Does
not own: how a pipeline orders or reads examples (`inputs/`), the streams of workers (`coordinator.py`).
"""

from __future__ import annotations

import abc
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
from official_trainer.engine import windows
from official_trainer.engine.step_clock import StepClock
from official_trainer.inputs import DataError, InputContext, data_service
from official_trainer.lazy import tf
from official_trainer.tasks import keyed_draws, random_streams
from official_trainer.tasks.contract import length_of
from official_trainer.user_code import during

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stacking:
    """Asks for data in blocks of batches, `[steps, batch, …]`, wherever a pipeline offers them.

    Attributes:
      clock: measures how long steps wait for a block.
      num_steps: how many batches of all other data are stacked into a block; None if those stay single.
    """

    clock: StepClock
    num_steps: int | None = None

    def of_plain(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns data of single batches as it is asked for."""
        return dataset if self.num_steps is None else inputs.stack_windows(dataset, self.num_steps)


class Data(abc.ABC):
    """Batches to read, and what is known of them.

    Attributes:
      source: what builds them, or what the caller calls them, for messages.
      section: path of the data section in the config, for messages; empty if it is in none.
      params: the data section; None for data of the caller.
      context: what the data built last was built for; None before, and for data of the caller.
      of_pipeline: the dataset built last, of this process alone, as the task returned it; None before.
      is_stacked: whether the data built last comes in blocks of batches.
    """

    source: str
    section = ""
    params: Any = None
    context: InputContext | None = None
    of_pipeline: Any = None
    is_stacked = False

    @abc.abstractmethod
    def build(self, start_step: int = 0, stacking: Stacking | None = None) -> Any:
        """Returns the distributed dataset.

        Args:
          start_step: number of the first batch.
          stacking: which data are to come in blocks of batches; None for none.
        """

    @abc.abstractmethod
    def element_spec(self) -> Any:
        """Returns the shapes and dtypes of a replica's batch."""

    @abc.abstractmethod
    def steps_per_epoch(self, *, count: bool = True) -> float | None:
        """Returns the steps of a pass over the data built last: infinity if it has no end, None if it is unknown.

        Args:
          count: whether the examples may be counted to find out.
        """

    @abc.abstractmethod
    def errors_explained(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which TensorFlow's errors about the data say where they came from."""

    def separate(self) -> Data:
        """Returns the same data, to be read without changing the state of the run."""
        return self

    @property
    def is_served(self) -> bool:
        """Whether a tf.data service delivers the batches, in no fixed order."""
        return False

    @property
    def started_at_step(self) -> bool:
        """Whether the data built last began at its start step, instead of being read and skipped up to that step."""
        return self.context is not None and (self.context.starts_here or bool(self.context.served_by))


class DatasetBuilder(Data):
    """Builds a task's dataset for one split under the strategy in scope.

    Size: what data is built from, and what is known of the data built last.

    Attributes:
      strategy: the strategy in scope at construction.
      pipeline: builds the dataset of one pipeline for an `InputContext`; by default `build_inputs` of the task.
    """

    def __init__(
        self,
        task: Any,
        params: Any,
        *,
        training: bool,
        seed: int,
        section: str = "",
        service_timeout_seconds: float = 600.0,
    ) -> None:
        """Takes what is built from.

        Args:
          task: has `build_inputs`.
          params: the data section.
          training: whether it is for training steps.
          seed: of the order of examples where the section has none.
          section: path of the section in the config.
          service_timeout_seconds: how long a tf.data service may be silent.
        """
        self._task, self._training, self._seed = task, training, seed
        self.source = f"{type(task).__name__}.build_inputs"
        self.params, self.section = inputs.with_training_flag(params, training), section
        self.strategy = tf.distribute.get_strategy()
        self.pipeline = self._pipeline_of_task
        self._input_options = _input_options(self.strategy)
        self._service_timeout_seconds = service_timeout_seconds
        self._is_separate = self._has_warned = False

    def build(self, start_step: int = 0, stacking: Stacking | None = None) -> Any:
        """Returns the distributed dataset; blocks are those that a pipeline offers, or of plain data."""

        def build(input_context: tf.distribute.InputContext) -> Any:
            is_served = self.is_served
            if is_served:
                data_service.check_pipelines(self.params, input_context.num_input_pipelines)
            context = InputContext(
                # Data workers divide what one pipeline would read alone.
                num_input_pipelines=1 if is_served else input_context.num_input_pipelines,
                input_pipeline_id=0 if is_served else input_context.input_pipeline_id,
                num_replicas_in_sync=input_context.num_replicas_in_sync,
                start_step=start_step,
                seed=self._seed,
            )
            context.served_by = self.params.tf_data_service_address if is_served else ""
            dataset = self.pipeline(context)
            self.of_pipeline, self.context = dataset, context
            # What the pipeline did not do itself: skipping to the start, stacking batches into blocks.
            if start_step and not (context.starts_here or is_served):
                dataset = inputs.skip(dataset, start_step * context.elements_per_step)
            dataset = self._stacked(dataset, context, stacking)
            if is_served:
                start, timeout = (start_step, self._seed), self._service_timeout_seconds
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

    def _stacked(self, dataset: Any, context: InputContext, stacking: Stacking | None) -> Any:
        """Returns a dataset in blocks of batches, if it is asked for and possible."""
        offered = None if stacking is None or context.served_by else context.blocks_of(dataset)
        self.is_stacked = stacking is not None and (offered is not None or stacking.num_steps is not None)
        if stacking is None or not self.is_stacked:
            return dataset
        return stacking.of_plain(dataset).prefetch(2) if offered is None else offered

    def of_worker(self, first: int, num_workers: int, *, repeats: bool) -> tf.data.Dataset:
        """Returns global batch number `first` and every `num_workers`-th from there on, each with its number.

        `repeats` is whether data that ends begins again.
        """
        context = InputContext(start_step=first, seed=self._seed).with_stride(num_workers)
        dataset = self.pipeline(context)
        if not context.starts_here:
            dataset = inputs.skip(dataset.repeat() if repeats else dataset, first)
        if not context.strides_here:
            dataset = dataset.shard(num_workers, 0)
        return tf.data.Dataset.zip((tf.data.Dataset.range(first, 2**62, num_workers), dataset))

    def _pipeline_of_task(self, context: InputContext) -> Any:
        context.section = self.section
        notes = during(
            f"building {self.section.removeprefix('task.') or 'data'}", task=self._task, method="build_inputs"
        )
        with notes, keyed_draws.of_pipeline(context.seed):  # what it draws must be the same after every restart
            return inputs.call_build_inputs(self._task, data_service.read_here(self.params), context)

    def repeat_first(self, num_batches: int) -> None:
        """Has this process read the first batches of the data, again and again from memory, from now on."""
        pipeline = self.pipeline

        def repeated(context: InputContext) -> Any:
            context.start_step, context.starts_here = 0, True
            return pipeline(context).take(num_batches * context.elements_per_step).cache().repeat()

        self.pipeline, self.params = repeated, data_service.read_here(self.params)

    def warn_if_small(self) -> None:
        """Warns, once, of a batch that is larger than the data built last."""
        examples = None if self.context is None else self.context.examples_counted
        size = getattr(self.params, "global_batch_size", 0)
        if examples is not None and examples < size and not self._has_warned:
            self._has_warned = True
            name = self.section or self.source
            _logger.warning(
                "%s: a batch of %d is larger than the data, which has %d examples, so each batch holds some of them "
                "several times; set %s.global_batch_size to at most %d",
                *(name, size, examples, name, examples),
            )

    def example_from(self, position: int) -> Callable[[int], int | None]:
        """Returns a function that tells which example is so many behind a position, if that is known."""
        if self.context is None or self.context.example_at is None or self.context.num_input_pipelines > 1:
            return lambda row: None
        find = self.context.example_at
        return lambda row: find(position + row)

    def element_spec(self) -> Any:
        builder = self.separate()
        builder.build()
        return builder.of_pipeline.element_spec

    def separate(self) -> DatasetBuilder:
        builder = copy.copy(self)
        builder._is_separate, builder.context = True, None
        return builder

    @property
    def is_served(self) -> bool:
        return self._training and not self._is_separate and data_service.is_used(self.params)

    def num_pipelines(self) -> int:
        """Returns how many input pipelines divide the data, building none."""
        counts = []

        def build(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
            counts.append(input_context.num_input_pipelines)
            return tf.data.Dataset.from_tensors([0])

        orbit.utils.make_distributed_dataset(self.strategy, build)
        return max(counts, default=1)

    def steps_per_epoch(self, *, count: bool = True) -> float | None:
        """Returns the steps of a pass, see `Data.steps_per_epoch`.

        Raises:
          DataError: examples have to be counted, and a tf.data service delivers them, which shows no end.
        """
        if self.context is None:
            return None
        context = self.context
        examples = context.examples_per_epoch if count else context.examples_counted
        if examples is not None:
            return examples / self.params.global_batch_size
        length = length_of(self.of_pipeline)
        if count and length is None and self.is_served:
            raise DataError(
                f"{self.source}: trainer.train_epochs needs to know how long an epoch is, and from a tf.data "
                "service its end cannot be seen; set trainer.train_steps instead, or "
                "input_context.examples_per_epoch in build_inputs"
            )
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


class GivenData(Data):
    """A dataset that the caller has, in place of what a `DatasetBuilder` builds.

    Attributes:
      dataset: of global batches, or distributed.
    """

    def __init__(self, dataset: Any, source: str, distribute: Callable[[Any], Any] = lambda dataset: dataset) -> None:
        """Takes the dataset, its name, and what distributes it; by default it is distributed already."""
        self.dataset, self.source, self._distribute = dataset, source, distribute

    def build(self, start_step: int = 0, stacking: Stacking | None = None) -> Any:
        dataset = inputs.skip(self.dataset, start_step)
        self.is_stacked = stacking is not None and stacking.num_steps is not None
        return self._distribute(dataset if stacking is None else stacking.of_plain(dataset))

    def element_spec(self) -> Any:
        # There is no public way to ask a distributed dataset for what a replica gets.
        return tf.nest.map_structure(lambda spec: getattr(spec, "_value_specs", [spec])[0], self.dataset.element_spec)

    def steps_per_epoch(self, *, count: bool = True) -> float | None:
        return length_of(self.dataset)

    @contextlib.contextmanager
    def errors_explained(self) -> Iterator[None]:
        """Adds the name to TensorFlow's errors about the data, and about steps on it."""
        try:
            with during(source=self.source):
                yield
        except tf.errors.OpError as error:
            error.add_note(f"It came from {self.source}, or a step on it.")
            raise


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


def opened(data: Data, start_step: int, stacking: Stacking | None = None) -> Any:
    """Returns an iterator over batches from number `start_step` on; in blocks, if asked for and possible."""
    iterator = tf.nest.map_structure(iter, data.build(start_step, stacking))
    return windows.Blocks(iterator, stacking.clock) if stacking is not None and data.is_stacked else iterator


class TrainData:
    """The training batches of a run: an iterator from the run's step on, dropped when the run goes elsewhere.

    Attributes:
      builder: builds the task's data.
      data: what is read: the builder, or data of the caller.
      position: where in it the run is; checkpoints hold that.
      build_seconds: how long building the data took so far.
    """

    def __init__(
        self,
        builder: DatasetBuilder,
        global_step: tf.Variable,
        *,
        on_data_end: str,
        opens: Callable[[Any, int], Any] = opened,
        data: Data | None = None,
    ) -> None:
        """Takes the task's builder, and what is read.

        Args:
          builder: builds the task's training data.
          global_step: step whose batch comes next.
          on_data_end: `error`, `stop` or `repeat`.
          opens: builds data, and returns what reads it from the number of a batch on.
          data: what is read; None for what the builder builds.
        """
        self.position = DataPosition()
        self.build_seconds = 0.0
        self.builder = builder
        self.data: Data = builder if data is None else data
        self._global_step, self._on_data_end, self._opens = global_step, on_data_end, opens
        self._iterator: Any = None
        self._num_skipped = 0
        self._passes_before, self._batches_before = 0, 0  # of other data than that which is read now
        self._observers: list[Callable[[InputContext], object]] = []

    @property
    def dataset(self) -> Any:
        """The dataset that is used instead of the task's, or None."""
        return self.data.dataset if isinstance(self.data, GivenData) else None

    def add_observer(self, on_build: Callable[[InputContext], object]) -> None:
        """Calls `on_build` with the context of the task's data, each time that the iterator is built from it."""
        self._observers.append(on_build)

    def use(self, data: Data) -> None:
        """Reads `data` from now on."""
        self.data = data
        self._passes_before, self._batches_before, _ = self.position.values()
        self.reset()

    @contextlib.contextmanager
    def instead(self, data: Data) -> Iterator[None]:
        """Steps in a `with` block take the first batches of `data`; the training data stays where it is."""
        first, before, read = int(self._global_step.numpy()), self._iterator, self.data
        self._iterator, self.data = self._opens(data, 0), data
        try:
            yield
        finally:
            self._iterator, self.data = before, read
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
            began, start = time.monotonic(), self.position.start_step(int(self._global_step.numpy()))
            self._iterator = self._opens(self.data, start)
            if self.data is self.builder:
                self.builder.warn_if_small()
            if self.data.context is not None:
                for on_build in self._observers:
                    on_build(self.data.context)
            self._num_skipped = 0 if self.data.started_at_step else start
            self.build_seconds += time.monotonic() - began
        return self._iterator

    def batches(self, step: int) -> Iterator[Any]:
        """Yields the batches that follow `step`, distributed; the training iterator keeps its position.

        Yields none if a service delivers them: it would not deliver the same ones again.
        """
        if not self.data.is_served:
            with self.data.errors_explained():
                yield from tf.nest.map_structure(iter, self.data.build(self.position.start_step(step)))

    def first_batches(self) -> Iterator[Any]:
        """Yields batches from the first one of the data, distributed; the state of training does not change."""
        data = self.data.separate()
        dataset = data.build()
        with data.errors_explained():
            yield from tf.nest.map_structure(iter, dataset)

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
                f"{self.data.source}: the training data holds no batch; "
                "check input_path, or set a smaller global_batch_size"
            )
        if self._on_data_end == "error":
            raise DataError(
                f"{self.data.source}: the training data ended at step {step}; set trainer.on_data_end to "
                "repeat (next epoch) or stop (end the run here), or repeat the dataset"
            )
        if self._on_data_end == "repeat":
            self.begin_next_epoch()
        return self._on_data_end == "repeat"

    def epoch(self, step: int) -> float | None:
        """Returns the passes over the data until `step`; None if nothing says the length of one before its end."""
        done, start, _ = self.position.values()
        is_given = self.data is not self.builder
        steps = self.data.steps_per_epoch(count=False) if is_given else self.known_epoch_steps
        if steps is None and done > self._passes_before:
            steps = (start - self._batches_before) / (done - self._passes_before)
        if steps is None or not 0 < steps < math.inf:  # 0: where a program begins again before the first batch
            return float(done) if done else None
        return done + self.position.start_step(step) / steps

    @property
    def known_epoch_steps(self) -> float | None:
        """The steps of a pass over the task's data, if that is built, and its length is known without counting."""
        steps = self.builder.steps_per_epoch(count=False) if self.data is self.builder else None
        return None if self._iterator is None or steps == math.inf else steps

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
        with self.data.errors_explained():
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
        steps = self.data.steps_per_epoch()
        if steps == math.inf:
            raise DataError(
                f"{self.data.source}: trainer.train_epochs needs training data that ends, this dataset "
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
