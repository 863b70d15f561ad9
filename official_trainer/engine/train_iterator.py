"""The batches of a run: a task's data under the strategy, from the step where the run stands.

Owns: `TrainIterator`, which builds the iterator there and says what happens when data ends. Does not own: how a
pipeline orders or reads examples (`inputs/`), what is saved of where the data stands (`data_position.py`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orbit

from official_trainer import inputs
from official_trainer.distributed import tpu
from official_trainer.engine.data_position import DataPosition
from official_trainer.inputs import DataError, InputContext, data_service
from official_trainer.lazy import tf
from official_trainer.tasks import keyed_draws, random_streams

_logger = logging.getLogger(__name__)


class DatasetBuilder:
    """Builds a task's dataset for one split under the strategy in scope."""

    def __init__(
        self, task: Any, params: Any, *, training: bool, seed: int, service_timeout_seconds: float = 600.0
    ) -> None:
        self._task = task
        self._params = inputs.with_training_flag(params, training)
        self._training = training
        self._strategy = tf.distribute.get_strategy()
        self._seed = seed
        is_under_coordinator = isinstance(self._strategy, tf.distribute.ParameterServerStrategy)
        self._distribute = (
            _read_here
            if is_under_coordinator
            else functools.partial(orbit.utils.make_distributed_dataset, input_options=_input_options(self._strategy))
        )
        self._service_timeout_seconds = service_timeout_seconds
        self._built: tuple[Any, InputContext] | None = None
        self._is_apart = False

    @property
    def has_started_there(self) -> bool:
        """Whether the data built last began at its start step by itself, instead of being read over up to there."""
        return self._built is not None and (self._built[1].starts_at_step or bool(self._built[1].served_by))

    def pipelines(self) -> int:
        """Returns how many input pipelines share the data out under the strategy; builds none of the task's data."""
        counts = []

        def build(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
            counts.append(input_context.num_input_pipelines)
            return tf.data.Dataset.from_tensors([0])

        orbit.utils.make_distributed_dataset(self._strategy, build)
        return max(counts, default=1)

    @property
    def has_section(self) -> bool:
        """Whether there is a data section to build from."""
        return self._params is not None

    @property
    def context(self) -> InputContext | None:
        """What the data built last was built for."""
        return None if self._built is None else self._built[1]

    @property
    def source(self) -> str:
        """What built the data, for messages."""
        return f"{type(self._task).__name__}.build_inputs"

    def build(self, start_step: int = 0, window_steps: int | None = None) -> Any:
        """Returns the distributed dataset from batch `start_step`; blocks of `window_steps` batches if given."""

        def build(input_context: tf.distribute.InputContext) -> Any:
            is_served = self.is_served
            if is_served:
                data_service.check_pipelines(self._params, input_context.num_input_pipelines)
            context = InputContext(
                # Data workers share out what one pipeline would read alone.
                num_input_pipelines=1 if is_served else input_context.num_input_pipelines,
                input_pipeline_id=0 if is_served else input_context.input_pipeline_id,
                num_replicas_in_sync=input_context.num_replicas_in_sync,
                start_step=start_step,
                seed=self._seed,
                window_steps=window_steps,
            )
            context.served_by = self._params.tf_data_service_address if is_served else ""
            dataset = self._dataset_of(context)
            if self._training and isinstance(self._strategy, tf.distribute.TPUStrategy):
                tpu.check_static(dataset, self.source)
            self._built = dataset, context
            return self._adapt(dataset, context, start_step, window_steps)

        if self._is_apart:
            with random_streams.temporary_seed(self._seed):
                return self._distribute(self._strategy, build)
        if self._training:
            # A pipeline that shuffles without a seed of its own must do so the same way after every restart.
            tf.random.set_seed(self._seed)
        return self._distribute(self._strategy, build)

    def of_worker(self, first: int, num_workers: int, *, repeats: bool) -> tf.data.Dataset:
        """Returns global batch number `first` and every `num_workers`-th from there on, each with its number.

        `repeats` is whether data that ends begins again.
        """
        context = InputContext(start_step=first, seed=self._seed).with_stride(num_workers)
        dataset = self._dataset_of(context)
        if not context.starts_at_step:
            dataset = inputs.skip(dataset.repeat() if repeats else dataset, first)
        if not context.strides:
            dataset = dataset.shard(num_workers, 0)
        return tf.data.Dataset.zip((tf.data.Dataset.range(first, 2**62, num_workers), dataset))

    def _dataset_of(self, context: InputContext) -> Any:
        with keyed_draws.of_pipeline(context.seed):  # what it draws must be the same after every restart
            return inputs.call_build_inputs(self._task, self._params, context)

    def element_spec(self) -> Any:
        """Returns what a batch of one replica looks like; for the run, it is as if nothing had been built."""
        builder = self.apart()
        builder.build()
        assert builder._built is not None
        return builder._built[0].element_spec

    def apart(self) -> DatasetBuilder:
        """Returns a builder of the same data, for whoever reads it without the run taking notice."""
        builder = copy.copy(self)
        builder._is_apart, builder._built = True, None
        return builder

    def _adapt(self, dataset: Any, context: InputContext, start_step: int, window_steps: int | None) -> Any:
        """Does what the pipeline did not do itself: skip to the start, group batches into blocks."""
        if start_step and not context.starts_at_step and not context.served_by:
            dataset = inputs.skip(dataset, start_step * context.elements_per_step)
        if window_steps is not None and not context.yields_windows:
            dataset = inputs.stack_windows(dataset, window_steps).prefetch(2)
        if context.served_by:
            start, timeout = (start_step, self._seed), self._service_timeout_seconds
            dataset = data_service.distribute(dataset, self._params, start=start, timeout_seconds=timeout)
        return dataset

    @property
    def is_served(self) -> bool:
        """Whether a tf.data service gives the batches, in no fixed order."""
        return self._training and not self._is_apart and data_service.is_used(self._params)

    def steps_per_epoch(self, *, count: bool = True) -> float | None:
        """Returns the steps of a pass over the data built last: infinity if it has no end, None if nobody knows.

        Args:
          count: whether the examples may be counted to find out.
        """
        assert self._built is not None, "nothing was built yet"
        dataset, context = self._built
        examples = context.examples_per_epoch if count else context.examples_counted
        if examples is not None:
            return examples / self._params.global_batch_size
        cardinality = (
            int(dataset.cardinality()) if isinstance(dataset, tf.data.Dataset) else tf.data.UNKNOWN_CARDINALITY
        )
        if cardinality == tf.data.UNKNOWN_CARDINALITY:
            return None
        return math.inf if cardinality == tf.data.INFINITE_CARDINALITY else cardinality // context.elements_per_step

    @contextlib.contextmanager
    def errors_explained(self) -> Iterator[None]:
        """Turns TensorFlow's errors about unreadable data into one that names the file."""
        try:
            yield
        except _READ_ERRORS as error:
            explained = inputs.explain_data_error(error, self._params)
            if explained is None:
                raise
            raise explained from error


_READ_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
)


class TrainIterator:
    """The iterator over training batches: built at the run's step, dropped when the run goes elsewhere."""

    def __init__(
        self,
        builder: DatasetBuilder,
        global_step: tf.Variable,
        *,
        on_data_end: str,
        window_steps: int | None = None,
        given: Any = None,
    ) -> None:
        """Takes the task's builder, or a dataset `given` by the caller in its place.

        `on_build` is called with what the task's data was built for, each time that the iterator is built.

        Args:
          builder: builds the task's training data.
          global_step: step whose batch comes next.
          on_data_end: `error`, `stop` or `repeat`.
          window_steps: batches in a block, if the iterator is to give blocks.
          given: dataset to use instead of the task's.
        """
        self.position = DataPosition()
        self._builder = builder
        self._global_step = global_step
        self._on_data_end = on_data_end
        self._window_steps = window_steps
        self._given = given
        self._iterator: Any = None
        self._to_read_over = 0
        self.of_workers: Callable[[DatasetBuilder, int], Any] | None = (
            None  # gives all workers' streams from a batch on
        )
        self.on_build: Callable[[InputContext], object] = lambda context: None

    @property
    def given(self) -> Any:
        """The dataset given by the caller, or None."""
        return self._given

    def replace(self, dataset: Any) -> None:
        """Uses `dataset` from now on."""
        self._given = dataset
        self.reset()

    def iterator(self) -> Any:
        """Returns the iterator whose next batch is that of the current step."""
        if self._iterator is None:
            step = int(self._global_step.numpy())
            dataset = self._dataset(step, self._window_steps)
            if self._given is None and self._builder.context is not None:
                self.on_build(self._builder.context)
            self._to_read_over = 0 if self._builder.has_started_there else self.position.start_step(step)
            if self.of_workers is not None:  # what was built above is for asking about the data
                dataset = self.of_workers(self._builder, self.position.start_step(step))
            self._iterator = tf.nest.map_structure(iter, dataset)
        return self._iterator

    def _dataset(self, step: int, window_steps: int | None = None) -> Any:
        """Returns the data that follows `step`; in blocks of `window_steps` batches, if given."""
        start_step = self.position.start_step(step)
        if self._given is None:
            return self._builder.build(start_step, window_steps)
        dataset = inputs.skip(self._given, start_step)
        return dataset if window_steps is None else inputs.stack_windows(dataset, window_steps)

    def batches(self, step: int) -> Iterator[Any]:
        """Yields the batches that follow `step`, distributed; the iterator that trains stays where it is.

        None if a service gives them: it would not give the same ones again.
        """
        if self._given is None and self._builder.is_served:
            return
        yield from tf.nest.map_structure(iter, self._dataset(step))

    def first_batches(self) -> Iterator[Any]:
        """Yields batches from the first one of the data, distributed; nothing of what trains is changed or drawn."""
        dataset, builder = self._given, self._builder.apart()
        if dataset is None:
            dataset = builder.build()
        with builder.errors_explained():
            yield from tf.nest.map_structure(iter, dataset)

    def pipelines(self) -> int | None:
        """Returns how many input pipelines share the task's data out; None for a dataset given by the caller."""
        return self._builder.pipelines() if self._given is None else None

    def reset(self) -> None:
        """Drops the iterator; the next one is built from the state as it is then."""
        self._iterator = None

    def go_to(self, position: Sequence[int]) -> None:
        """Goes on from where another process says that the data stands; see `DataPosition.values`."""
        if position != self.position.values():
            self.position.go_to(position)
            self.reset()

    def skip(self, num_steps: int) -> None:
        """Moves the data on, past batches that training could not bear."""
        self.position.skipped_steps.assign_add(num_steps)
        self.reset()

    @property
    def skipped_steps(self) -> int:
        """How many batches lie before that of the current step beyond one for each step."""
        return int(self.position.skipped_steps.numpy())

    def begin_next_epoch(self) -> None:
        """Starts the data again: its first batch is the batch of the current step."""
        self.position.begin_epoch(int(self._global_step.numpy()))
        self.reset()

    def handle_end(self) -> bool:
        """Deals with the end of the data as `trainer.on_data_end` says; returns whether training goes on.

        Raises:
          DataError: there was no batch at all, or the policy is `error`.
        """
        step = int(self._global_step.numpy())
        if self.position.start_step(step) <= 0:
            raise DataError(
                f"{self._builder.source}: the training data holds no batch; "
                "check input_path, and global_batch_size against the number of examples"
            )
        if self._on_data_end == "error":
            raise DataError(
                f"{self._builder.source}: the training data ended at step {step}; set trainer.on_data_end to repeat "
                "(next epoch) or stop (end the run here), or repeat the dataset"
            )
        if self._on_data_end == "repeat":
            self.begin_next_epoch()
        return self._on_data_end == "repeat"

    def epoch(self, step: int) -> float | None:
        """Returns the passes over the data until `step`, or None if nobody knows how long one is."""
        done = int(self.position.epoch.numpy())
        if self._given is None and self._iterator is not None:
            steps = self._builder.steps_per_epoch(count=False)
            if steps is not None and steps != math.inf:
                return (step + self.skipped_steps) / steps
        return float(done) if done else None

    def place(self, step: int) -> tuple[int, int] | None:
        """Returns the epoch in which step number `step` lies and which step of it that is, both counted from 1.

        None if nobody knows how long an epoch is.
        """
        self.iterator()
        steps = None if self._given is not None else self._builder.steps_per_epoch(count=False)
        if steps is None or steps == math.inf:
            return None
        done = step + self.skipped_steps
        epoch = max(1, math.ceil(done / steps))
        return epoch, done - math.floor((epoch - 1) * steps)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """For a window that reads from the iterator: explains errors, and says what it took to get to the data."""
        began = time.monotonic()
        with self._builder.errors_explained():
            yield
        if self._to_read_over:
            seconds = time.monotonic() - began
            _logger.warning("reading over %d batches, and the first step, took %.1f s", self._to_read_over, seconds)
            self._to_read_over = 0

    def steps_per_epoch(self) -> float | None:
        """Returns the steps of a pass over the task's data, or None if that takes a pass to know.

        Raises:
          DataError: the data has no end, so that there are no epochs to count.
        """
        self.iterator()
        steps = self._builder.steps_per_epoch()
        if steps is None and self._given is None and self._builder.is_served:
            raise DataError(
                f"{self._builder.source}: trainer.train_epochs needs to know how long an epoch is, and from a tf.data "
                "service the end of one does not show; set trainer.train_steps instead, or "
                "input_context.examples_per_epoch in build_inputs"
            )
        if steps == math.inf:
            raise DataError(
                f"{self._builder.source}: trainer.train_epochs needs training data that ends, this dataset repeats for "
                "ever; set trainer.train_steps instead, or leave out repeat()"
            )
        return steps


def _input_options(strategy: tf.distribute.Strategy) -> tf.distribute.InputOptions | None:
    """Returns how batches get to the replicas of the strategy in scope.

    On processors not through iterators made for devices, which take 6 % of a small step there, for nothing.
    """
    if not tf.distribute.has_strategy():
        return None
    kinds = {tf.DeviceSpec.from_string(device).device_type for device in strategy.extended.worker_devices}
    return tf.distribute.InputOptions(experimental_fetch_to_device=kinds != {"CPU"})


def _read_here(strategy: Any, build: Callable[[Any], Any]) -> Any:
    """Stands for distributing where this process reads alone, beside workers that have streams of their own."""
    return build(InputContext())
