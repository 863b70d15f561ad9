"""Training under a coordinator: windows of training steps that several workers share.

Owns: a stream of numbered batches for each worker, which together are those of one device; dividing a window into
closures, so that every worker has work and none waits long at the end; that `global_step` moves by exactly the steps of
the window, whichever worker dies; how much each worker did. Does not own: what a step is (`train_steps.py`), what is in
a stream (`train_iterator.py`).

A closure is a traced loop of steps. It counts each step on the parameter server, in a row of its own, after everything
that the step changes. TensorFlow runs the closure of a worker that died again, on another worker, which runs the steps
that the row has not counted. After the last closure `global_step` is set to the end of the window, because a worker
may have died between its update of `global_step` and its count.

Evaluations stay in the coordinator's process: each example once, in order, whichever worker ends. An evaluator that
runs beside leaves the workers to train.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from official_trainer.distributed.cluster import PS, WORKER
from official_trainer.distributed.parameter_server import addresses_of
from official_trainer.distributed.peers import PeerLostError, answers, explain_loss, named, processes_of
from official_trainer.engine.traces import Traces
from official_trainer.engine.train_iterator import DatasetBuilder
from official_trainer.inputs import DataError
from official_trainer.lazy import tf
from official_trainer.tasks import publish
from official_trainer.tasks.random_streams import RandomStreams
from official_trainer.threads import has_ended, run_bounded

_logger = logging.getLogger(__name__)

Step = Callable[[Any], Any]

LEAST_SECONDS = 0.02
"""Closures take about this long, or longer: sending one takes some milliseconds."""

_POLL_SECONDS = 0.1
_LOOK_SECONDS = 1.0
_SLOW_SECONDS = 5.0
_ROWS_PER_WORKER = 64
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp", "Placeholder"})


# The batches of each worker.


class WorkerStreams(tf.distribute.coordinator.PerWorkerValue):
    """The number and the iterator of each worker, over batches with their numbers; `schedule` passes each its own.

    Attributes:
      next_numbers: number of the global batch with which each worker begins, if it has to begin again.
      spec: the type of one worker's part, for which functions are traced.
    """

    next_numbers: list[int]
    spec: Any


def create_streams(coordinator: Any, builder: DatasetBuilder, start_step: int, *, repeats: bool) -> WorkerStreams:
    """Creates a stream on each worker; a worker that comes back gets its own again, from the last window on.

    TensorFlow traces one function for the data of all workers, which does not depend on the worker. So each worker gets
    a resource of its own here, by the calls that TensorFlow's own function consists of.

    Args:
      coordinator: of the workers.
      builder: builds the data of one worker.
      start_step: the first batch, of worker 0; that of worker 1 is the next one.
      repeats: whether data that ends starts again.
    """
    builder.build(start_step)  # tells what is known of the data
    workers = coordinator._cluster.workers  # there is no public way to one worker
    numbers = [start_step + index for index in range(len(workers))]

    def traced(number: int) -> Any:
        """Returns the function that builds the dataset of the worker whose next batch has this number."""

        def make() -> tf.data.Dataset:
            return builder.of_worker(number, len(workers), repeats=repeats)

        with tf.device(None):  # in a worker's thread, the worker would read what is read now
            return tf.function(make, autograph=False).get_concrete_function()

    functions = {number: traced(number) for number in numbers}
    element_spec = functions[start_step].structured_outputs.element_spec

    def creator(worker: int) -> Callable[[], Any]:
        """Returns a function that creates the stream of a worker from its number on; called in the worker's thread."""

        def create() -> Any:
            make = functions.pop(numbers[worker], None) or traced(numbers[worker])
            return tf.constant(worker, tf.int64), iter(make())

        return create

    streams = WorkerStreams([worker.create_resource(creator(worker.worker_index)) for worker in workers])
    streams.next_numbers = numbers
    streams.spec = tf.TensorSpec([], tf.int64), tf.data.IteratorSpec(element_spec)
    return streams


class NumberedBatches:
    """A worker's iterator without the numbers of the batches. Created in the function that is traced.

    Attributes:
      number: number of the batch that was read last, scalar int64.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self.number: Any = None

    def __iter__(self) -> NumberedBatches:
        return self

    def __next__(self) -> Any:
        self.number, batch = next(self._iterator)
        return batch

    get_next = __next__

    def read_value(self) -> tf.Tensor:
        """Returns the number, as a variable would return its value."""
        return self.number


# A window in closures.


def closure_lengths(num_steps: int, num_workers: int, least: int) -> list[int]:
    """Returns the steps of each closure of a window, longest first.

    Half of the remaining steps are divided over all workers in equal parts, repeatedly (factoring: Hummel, Schonberg
    and Flynn, 1992). So few closures are sent, and at the end the workers wait for a short one at most.

    Args:
      num_steps: steps of the window.
      num_workers: workers that share them; each gets a closure if there are as many steps.
      least: the fewest steps that are worth a closure.
    """
    lengths: list[int] = []
    left = num_steps
    while left:
        portion = min(left, max(least * num_workers, math.ceil(left / 2)))
        equal, rest = divmod(portion, num_workers)
        lengths += [length for worker in range(num_workers) if (length := equal + (worker < rest))]
        left -= portion
    return lengths


class Closures:
    """The traced function of a closure, and the count of its steps on the parameter server."""

    def __init__(self, strategy: tf.distribute.Strategy, step: Step, traces: Traces) -> None:
        """Takes what is run.

        Args:
          strategy: the strategy of the workers.
          step: `step(iterator)`, traced: one step on the next batch, returns something and the number of the batch.
          traces: records traces.
        """
        num_workers = len(addresses_of(strategy)[WORKER])
        self._strategy, self._step, self._traces = strategy, step, traces
        with tf.init_scope(), tf.device("/job:ps/task:0/device:CPU:0"):
            self._counts = tf.Variable(tf.zeros([_ROWS_PER_WORKER * num_workers, num_workers], tf.int64))
        self._traced: tuple[Any, Any] | None = None

    def steps(self) -> list[int]:
        """Returns the steps that each worker has run since `begin_window`."""
        return self._counts.numpy().sum(0).tolist()

    def begin_window(self, streams: WorkerStreams) -> Any:
        """Sets all counts to zero; returns a closure's loop, traced for these streams, before workers need it."""
        if self._traced is None or self._traced[0] != streams.spec:
            loop = tf.function(self._traces.watched("train", self._closure))
            number = tf.TensorSpec([], tf.int64)
            with self._strategy.scope():  # an optimizer may create its variables only now
                self._traced = streams.spec, loop.get_concrete_function(streams.spec, number, number)
        self._counts.assign(tf.zeros_like(self._counts))
        return self._traced[1]

    def _closure(self, stream: Any, row: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs the steps of a closure that were not run yet; returns the worker, and the number of its last batch."""
        worker, iterator = stream
        left = length - tf.reduce_sum(tf.gather(self._counts, row))
        cell = tf.stack([row, worker])

        def body(last: tf.Tensor) -> list[tf.Tensor]:
            graph = tf.compat.v1.get_default_graph()
            with tf.name_scope(""):
                _, number = self._step(iterator)
            changes = [op for op in graph.get_operations() if op.op_def.is_stateful and op.type not in _READS]
            with tf.control_dependencies(changes):
                self._counts.scatter_nd_add([cell], tf.ones([1], tf.int64))
            return [number]

        before = [tf.constant(-1, tf.int64)]
        (last,) = tf.while_loop(lambda last: True, body, before, maximum_iterations=tf.cast(left, tf.int32))
        return worker, last


# Who does the steps.


class AsyncWorkers:
    """The workers of a ParameterServerStrategy, each of which runs steps at its own speed.

    Attributes:
      batches: the batches of the step that is traced; `read_value()` returns the number of the last one, int64.
      steps: the steps of each worker in the last window.
    """

    def __init__(
        self,
        coordinator: Any,
        global_step: tf.Variable,
        streams: RandomStreams,
        traces: Traces,
        *,
        patience_seconds: float,
    ) -> None:
        """Takes what windows need.

        Args:
          coordinator: TensorFlow's `ClusterCoordinator`.
          global_step: counts steps.
          streams: the random numbers of steps, set before each window.
          traces: records traces.
          patience_seconds: how long a window waits when no worker goes on.
        """
        self.batches: NumberedBatches | None = None
        self.steps: list[int] = []
        self._addresses = addresses_of(coordinator.strategy)
        self._lost: set[str] = set()
        self._coordinator, self._global_step, self._streams = coordinator, global_step, streams
        self._traces, self._patience_seconds = traces, patience_seconds
        self._closures: Closures | None = None
        self._steps_per_second: float | None = None

    @property
    def devices(self) -> str:
        """What the training steps run on, in words."""
        return f"{len(self._addresses[WORKER])} workers and {len(self._addresses[PS])} ps"

    def create_loop(self, train_step: Step) -> Callable[[WorkerStreams, tf.Tensor], None]:
        """Returns `loop(iterator, num_steps)` over `train_step`, which is `run_window`."""
        self._closures = Closures(self._coordinator.strategy, self._with_number(train_step), self._traces)
        return self.run_window

    def create_publishing_step(self, train_step: Step) -> Callable[[WorkerStreams], Any]:
        """Returns `step(iterator)`: runs `train_step` once, on any worker, and returns what it publishes, in NumPy."""
        step = self._with_number(publish.returning(train_step))
        function = tf.function(self._traces.watched("train", lambda stream: (step(stream[1]), stream[0])))

        def run_one(streams: WorkerStreams) -> Any:
            start = self._begin()
            with self._coordinator.strategy.scope():
                concrete = function.get_concrete_function(streams.spec)
            (((values, last), worker),) = self._run(streams, concrete, [()], lambda: [])
            streams.next_numbers[int(worker)] = int(last) + len(streams.next_numbers)
            self._global_step.assign(start + 1)
            return values

        return run_one

    def _with_number(self, train_step: Step) -> Step:
        """Returns `train_step` for a worker's iterator, as a function that also returns the number of its batch."""

        def step(iterator: Any) -> tuple[Any, tf.Tensor]:
            self.batches = batches = NumberedBatches(iterator)
            return train_step(batches), batches.number

        return step

    def run_window(self, iterator: WorkerStreams, num_steps: tf.Tensor) -> None:
        """Runs `num_steps` steps on the batches of `iterator`, and returns when all are done.

        Raises:
          PeerLostError: a parameter server is gone, or all workers for too long.
          DataError: the data of a worker ended.
        """
        closures = self._closures
        assert closures is not None, "the loop is created first"
        num_workers, window = len(self._addresses[WORKER]), int(num_steps)
        rate = self._steps_per_second
        least = 1 if rate is None else max(1, round(LEAST_SECONDS * rate / num_workers))
        function = closures.begin_window(iterator)
        start, began = self._begin(), time.monotonic()
        # Numbers become tensors here: in a worker's thread that would block all of Python while the worker hangs.
        lengths = closure_lengths(window, num_workers, least)
        arguments = [(tf.constant(row, tf.int64), tf.constant(length, tf.int64)) for row, length in enumerate(lengths)]
        for worker, last in self._run(iterator, function, arguments, closures.steps):
            iterator.next_numbers[worker] = max(iterator.next_numbers[worker], int(last) + num_workers)
        self.steps = closures.steps()
        self._tell_who_is_lost()
        self._global_step.assign(start + window)
        self._steps_per_second = window / max(time.monotonic() - began, 1e-9)

    def _tell_who_is_lost(self) -> None:
        """Says which workers have run no step of the last window because they do not answer, and which are back."""
        workers = processes_of({WORKER: self._addresses[WORKER]})
        for (name, address), count in zip(workers.items(), self.steps, strict=True):
            if count and name in self._lost:
                self._lost.discard(name)
                _logger.info("%s is back", name)
            elif not count and name not in self._lost and not answers(address):
                self._lost.add(name)
                _logger.warning("lost %s (%s): the others take over its steps; it may come back", name, address)

    def _begin(self) -> int:
        """Returns the step before the next one, from which random numbers are drawn."""
        start = int(self._global_step.numpy())
        self._streams.begin_step(tf.constant(start, tf.int64))
        return start

    def _run(
        self,
        streams: WorkerStreams,
        function: Any,
        arguments: Sequence[tuple[Any, ...]],
        progress: Callable[[], list[int]],
    ) -> list[Any]:
        """Has workers run `function(stream, *arguments)`; returns what each call returned, in NumPy's types.

        Args:
          streams: of which each call gets that of its worker.
          function: traced.
          arguments: of each call.
          progress: returns the steps of each worker; asked while it takes long.
        """
        try:
            calls = [self._coordinator.schedule(function, (streams, *those)) for those in arguments]
            self._wait(progress)
            return [call.fetch() for call in calls]
        except tf.errors.OutOfRangeError as error:
            num_workers = len(self._addresses[WORKER])
            raise DataError(
                f"the training data of a worker ended after step {int(self._global_step.numpy())}: each of the "
                f"{num_workers} workers reads every {num_workers}. batch, at its own speed. Set "
                "trainer.on_data_end=repeat, or repeat the dataset"
            ) from error
        except tf.errors.OpError as error:
            if (lost := explain_loss(error, self._addresses)) is None:
                raise
            raise lost from error

    def _wait(self, progress: Callable[[], list[int]]) -> None:
        """Waits for all calls. The loop looks after the window, of a second at most, whether it has to stop."""
        joining = run_bounded(self._coordinator.join, _POLL_SECONDS, "coordinator")
        changed_seconds = looked_seconds = time.monotonic()
        before: list[int] = []
        has_warned = False
        while not has_ended(joining, _POLL_SECONDS):
            now = time.monotonic()
            if now - looked_seconds < _LOOK_SECONDS:
                continue
            looked_seconds, steps = now, progress()
            if steps != before:
                before, changed_seconds = steps, now
            idle_seconds = now - changed_seconds
            if idle_seconds < min(_SLOW_SECONDS, self._patience_seconds):
                continue
            workers = processes_of({WORKER: self._addresses[WORKER]})
            silent = named({name: address for name, address in workers.items() if not answers(address)})
            problem = f"no worker has finished a step for {idle_seconds:.0f} seconds"
            problem += f": no answer from {silent}" if silent else ", though all of them answer"
            if not has_warned:
                has_warned = True
                _logger.warning("%s", problem)
            if silent and idle_seconds > self._patience_seconds:
                raise PeerLostError(
                    f"{problem}, longer than runtime.rendezvous_timeout_seconds={self._patience_seconds:g}. "
                    "Start the missing workers, and the same command continues from the last checkpoint"
                )
        joining.result()
