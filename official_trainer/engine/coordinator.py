"""Training under a coordinator: windows of training steps that several workers share.

Owns: a stream of numbered batches for each worker, which together are those of one device; dividing a window into
closures, so that every worker has work and none waits long at the end; that `global_step` moves by exactly the steps of
the window, whichever worker dies; how much each worker did. Does not own: what a step is (`train_steps.py`), what is in
a stream (`train_iterator.py`).

A closure is a traced loop of steps. It counts each step on the parameter server, in a slot of its own, after everything
that the step changes. TensorFlow runs the closure of a worker that died again, on another worker, which runs the steps
that the slot has not counted. After the last closure `global_step` is set to the end of the window, because a worker
may have died between its update of `global_step` and its count.

Evaluations stay in the coordinator's process: each example once, in order, whichever worker ends. An evaluator that
runs beside leaves the workers to train.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from official_trainer.distributed.cluster import PS, WORKER, process_name
from official_trainer.distributed.collective import ProcessGroup
from official_trainer.distributed.parameter_server import addresses_of
from official_trainer.distributed.peers import PeerLostError, answers, explain_loss, is_loss, named
from official_trainer.engine.traces import Traces
from official_trainer.engine.train_iterator import DatasetBuilder
from official_trainer.inputs import DataError
from official_trainer.lazy import load, tf
from official_trainer.tasks import publish
from official_trainer.tasks.random_streams import RandomStreams

_logger = logging.getLogger(__name__)

Step = Callable[[Any], Any]

LEAST_SECONDS = 0.02
"""Closures take about this long, or longer: sending one takes some milliseconds."""

_AT_MOST_FIRST = 0.9
_POLL_SECONDS = 0.1
_SLOW_SECONDS = 5.0
_FINISH_SECONDS = 5.0
_SLOTS_PER_WORKER = 64
_READS = frozenset({"ReadVariableOp", "ResourceGather", "VarHandleOp", "Placeholder"})


class WorkerStreams(tf.distribute.coordinator.PerWorkerValue):
    """The iterators of all workers, over batches with their numbers; `schedule` passes each worker (index, its own).

    Attributes:
      next_numbers: number of the global batch that each worker reads next, as far as the chief knows.
      iterator_spec: the type of one worker's iterator, for which functions are traced.
    """

    next_numbers: list[int]
    iterator_spec: Any

    def record(self, worker: int, number: int) -> None:
        """Records that `worker` has trained on its batch `number`; any thread may call it."""
        self.next_numbers[worker] = number + len(self.next_numbers)


def create_streams(coordinator: Any, builder: DatasetBuilder, start_step: int, *, repeats: bool) -> WorkerStreams:
    """Creates a stream on each worker; a worker that comes back gets its own again, at its last position.

    TensorFlow traces one function for the data of all workers, which does not depend on the worker. So each worker gets
    a resource of its own here, by the calls that TensorFlow's own function consists of.

    Args:
      coordinator: of the workers.
      builder: builds the data of one worker.
      start_step: the first batch, of worker 0; that of worker 1 is the next one.
      repeats: whether data that ends starts again.
    """
    workers = coordinator._cluster.workers  # there is no public way to one worker
    numbers = [start_step + index for index in range(len(workers))]

    def traced(number: int) -> Any:
        """Returns the function that builds the dataset of the worker whose next batch has this number."""

        def make() -> tf.data.Dataset:
            return builder.of_worker(number, len(workers), repeats=repeats)

        with tf.device(None):  # in a worker's thread, the worker would read what is read now
            return tf.function(make, autograph=False).get_concrete_function()

    functions = [traced(number) for number in numbers]

    def creator(worker: int) -> Callable[[], Any]:
        """Returns a function that creates the stream of a worker from its number on; called in the worker's thread."""
        first: dict[int, Any] = {numbers[worker]: functions[worker]}

        def create() -> Any:
            number = numbers[worker]
            found = first.pop(number, None) or traced(number)
            return worker, iter(found())

        return create

    made = [worker.create_resource(creator(worker.worker_index)) for worker in workers]
    streams = WorkerStreams(made)
    streams.next_numbers = numbers
    streams.iterator_spec = tf.data.IteratorSpec(functions[0].structured_outputs.element_spec)
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


def closure_lengths(num_steps: int, num_workers: int, least: int, first_part: float = 0.5) -> list[int]:
    """Returns the steps of each closure of a window, longest first.

    Half of the remaining steps are divided over all workers in equal parts, repeatedly (factoring: Hummel, Schonberg
    and Flynn, 1992). So few closures are sent, and at the end the workers wait for a short one at most.

    Args:
      num_steps: steps of the window.
      num_workers: workers that share them; each gets a closure if there are as many steps.
      least: the fewest steps that are worth a closure.
      first_part: the part of the window that is divided first: more than half if all workers are about as fast.
    """
    lengths: list[int] = []
    left, part = num_steps, first_part
    while left:
        portion = min(left, max(least * num_workers, math.ceil(left * part)))
        equal, rest = divmod(portion, num_workers)
        lengths += [length for worker in range(num_workers) if (length := equal + (worker < rest))]
        left, part = left - portion, 0.5
    return lengths


@dataclasses.dataclass
class Shares:
    """What each worker did in a window.

    Attributes:
      steps: steps of each worker.
      closures: closures of each worker.
      seconds: how long each worker was busy with them.
      at_once: the most workers that had a closure at the same time.
    """

    steps: list[int]
    closures: list[int]
    seconds: list[float]
    at_once: int = 0

    @property
    def first_part(self) -> float:
        """The part of a window like this that can be divided first without the slowest worker finishing last."""
        speeds = [steps / max(seconds, 1e-9) for steps, seconds in zip(self.steps, self.seconds, strict=True)]
        evenness = len(speeds) * min(speeds) / max(sum(speeds), 1e-9)
        return max(0.5, _AT_MOST_FIRST * evenness)


class Closures:
    """The traced function of a closure, and the count of its steps on the parameter server."""

    def __init__(self, strategy: tf.distribute.Strategy, step: Step, traces: Traces) -> None:
        """Takes what is run.

        Args:
          strategy: the strategy of the workers.
          step: `step(iterator)`, traced: one step on the next batch, returns something and the number of the batch.
          traces: records traces.
        """
        num_slots = _SLOTS_PER_WORKER * len(addresses_of(strategy)[WORKER])
        self._strategy, self._step, self._traces = strategy, step, traces
        with tf.init_scope(), tf.device("/job:ps/task:0/device:CPU:0"):
            self._counts = tf.Variable(tf.zeros([num_slots], tf.int64), trainable=False)
        self._traced: tuple[Any, Any] | None = None
        # Ends functions that run on workers; TensorFlow's own coordinator makes one, and offers it to no caller.
        self._cancellation = load("tensorflow.python.eager.cancellation").CancellationManager()

    def num_steps(self) -> int:
        """Returns the steps that all closures have run since `begin_window`."""
        return int(tf.reduce_sum(self._counts))

    def cancel(self) -> None:
        """Ends the closures that run now."""
        self._cancellation.start_cancel()

    def begin_window(self, iterator: WorkerStreams) -> Any:
        """Sets all counts to zero; returns a closure's loop, traced for these streams, before workers need it."""
        spec = iterator.iterator_spec
        if self._traced is None or self._traced[0] != spec:
            number = tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int64)
            loop = tf.function(self._traces.watched("train", self._closure))
            with self._strategy.scope():  # an optimizer may create its variables only now
                self._traced = spec, loop.get_concrete_function(spec, *number)
        self._counts.assign(tf.zeros_like(self._counts))
        return self._cancellation.get_cancelable_function(self._traced[1])

    def _closure(self, iterator: Any, slot: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs the steps of a closure that were not run yet; returns how many, and the number of the last batch."""
        left = length - tf.gather(self._counts, slot)

        def body(last: tf.Tensor) -> list[tf.Tensor]:
            graph = tf.compat.v1.get_default_graph()
            with tf.name_scope(""):
                _, number = self._step(iterator)
            changes = [op for op in graph.get_operations() if op.op_def.is_stateful and op.type not in _READS]
            with tf.control_dependencies(changes):
                self._counts.scatter_add(tf.IndexedSlices(tf.constant(1, tf.int64), slot))
            return [number]

        before = [tf.constant(-1, tf.int64)]
        (last,) = tf.while_loop(lambda last: True, body, before, maximum_iterations=tf.cast(left, tf.int32))
        return left, last


class Activity:
    """Which workers are busy, and which are lost; called in the threads of the workers, but for `wait_problem`.

    Attributes:
      addresses: `host:port` of workers and parameter servers, by role.
      shares: what each worker did in the last window; None before the first.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        """Takes the strategy of the workers."""
        self.addresses = addresses_of(strategy)
        self.shares: Shares | None = None
        self._lock = threading.Lock()
        self._busy: set[int] = set()  # workers, which have one closure at a time
        self._lost: set[int] = set()
        self._last_event_seconds = 0.0

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return len(self.addresses[WORKER])

    @property
    def is_any_busy(self) -> bool:
        """Whether a worker has a closure."""
        return bool(self._busy)

    def begin_window(self) -> Shares:
        """Returns the new shares of a window that begins."""
        self.shares = Shares([0] * self.num_workers, [0] * self.num_workers, [0.0] * self.num_workers)
        self._last_event_seconds = time.monotonic()
        return self.shares

    @contextlib.contextmanager
    def closure(self, shares: Shares, worker: int) -> Iterator[None]:
        """For a closure, in the thread of its worker: records when it begins and ends."""
        with self._lock:
            self._busy.add(worker)
            shares.at_once = max(shares.at_once, len(self._busy))
            self._last_event_seconds = began = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(worker)
                self._last_event_seconds = ended = time.monotonic()
                shares.seconds[worker] += ended - began

    def record_success(self, shares: Shares, streams: WorkerStreams, worker: int, ran: int, last: int) -> None:
        """Records the steps of a closure, in the thread of its worker; reports that it is back, if it was lost."""
        shares.closures[worker] += 1
        if ran > 0:
            shares.steps[worker] += ran
            streams.record(worker, last)
        if worker in self._lost:
            self._lost.discard(worker)
            _logger.info("%s is back", process_name(WORKER, worker))

    def record_error(self, error: tf.errors.OpError, worker: int) -> None:
        """Warns if the worker of a closure is lost."""
        address = self.addresses[WORKER][worker]
        if worker not in self._lost and is_loss(error) and not answers(address):
            self._lost.add(worker)
            left = self.num_workers - len(self._lost)
            effect = "the others take over its steps" if left else "training waits for a worker"
            _logger.warning("lost %s (%s): %s; it may come back", process_name(WORKER, worker), address, effect)

    def idle_seconds(self) -> float:
        """Returns how long no worker has begun or finished a closure."""
        return time.monotonic() - self._last_event_seconds

    def wait_problem(self) -> str:
        """Returns a message about the workers that delay the end of a window."""
        seconds = self.idle_seconds()
        workers = {process_name(WORKER, index): address for index, address in enumerate(self.addresses[WORKER])}
        with self._lock:
            busy = [process_name(WORKER, index) for index in self._busy]
        silent = {name: address for name, address in workers.items() if not answers(address)}
        slow = {name: workers[name] for name in busy if name not in silent}
        parts = [f"no answer from {named(silent)}"] if silent else []
        parts += [f"unfinished work at {named(slow)}"] if slow else []
        return (
            f"no worker has finished anything for {seconds:.0f} seconds: {'; '.join(parts) or 'the cause is unknown'}"
        )


class AsyncWorkers:
    """The workers of a ParameterServerStrategy, each of which runs steps at its own speed.

    Attributes:
      batches: the batches of the step that is traced; `read_value()` returns the number of the last one, int64.
      activity: which workers are busy, and what each did in the last window.
    """

    def __init__(
        self,
        coordinator: Any,
        global_step: tf.Variable,
        streams: RandomStreams,
        process_group: ProcessGroup,
        traces: Traces,
        *,
        patience_seconds: float,
    ) -> None:
        """Takes what windows need.

        Args:
          coordinator: TensorFlow's `ClusterCoordinator`.
          global_step: counts steps.
          streams: the random numbers of steps, set before each window.
          process_group: has the request to stop, which is checked while a window runs.
          traces: records traces.
          patience_seconds: how long a window waits when all workers are gone.
        """
        self.batches: NumberedBatches | None = None
        self.activity = Activity(coordinator.strategy)
        self._coordinator, self._global_step, self._streams = coordinator, global_step, streams
        self._process_group, self._traces, self._patience_seconds = process_group, traces, patience_seconds
        self._closures: Closures | None = None
        self._is_left = False
        self._steps_per_second: float | None = None

    @property
    def devices(self) -> str:
        """What the training steps run on, in words."""
        addresses = self.activity.addresses
        return f"{len(addresses[WORKER])} workers and {len(addresses[PS])} ps"

    def create_loop(self, train_step: Step) -> Callable[[WorkerStreams, tf.Tensor], None]:
        """Returns `loop(iterator, num_steps)` over `train_step`, which is `run_window`."""
        self._closures = Closures(self._coordinator.strategy, self._with_number(train_step), self._traces)
        return self.run_window

    def create_publishing_step(self, train_step: Step) -> Callable[[WorkerStreams], Any]:
        """Returns `step(iterator)`: runs `train_step` once, on any worker, and returns what it publishes."""
        step = self._traces.watched("train", self._with_number(publish.returning(train_step)))
        return functools.partial(self._run_one, function=tf.function(step))

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
          PreemptedError: the run was asked to stop; `global_step` has the number of steps that ran.
        """
        assert self._closures is not None, "the loop is created first"
        closures, shares = self._closures, self.activity.shares
        window, start = int(num_steps), int(self._global_step.numpy())
        rate, num_workers = self._steps_per_second, self.activity.num_workers
        least = 1 if rate is None else max(1, round(LEAST_SECONDS * rate / num_workers))
        lengths = closure_lengths(window, num_workers, least, 0.5 if shares is None else shares.first_part)
        function = closures.begin_window(iterator)
        self._streams.begin_step(tf.constant(start, tf.int64))
        began = time.monotonic()

        def run(stream: Any, slot: tf.Tensor, length: tf.Tensor) -> Any:
            return _here(function(stream, slot, length))

        # Numbers become tensors here: in a worker's thread that would block all of Python while the worker hangs.
        numbers = [(tf.constant(slot), tf.constant(length, tf.int64)) for slot, length in enumerate(lengths)]
        self._run(iterator, numbers, run)
        if self._is_left:
            self._global_step.assign(start + closures.num_steps())
            self._process_group.stop.check()
        self._global_step.assign(start + window)
        self._steps_per_second = window / max(time.monotonic() - began, 1e-9)

    def _run_one(self, iterator: WorkerStreams, function: Any) -> Any:
        """Runs one step by `function(iterator)`, traced, on any worker; returns what that returns, in NumPy's types."""
        start = int(self._global_step.numpy())
        self._streams.begin_step(tf.constant(start, tf.int64))
        with self._coordinator.strategy.scope():
            concrete = function.get_concrete_function(iterator.iterator_spec)
        returned: list[Any] = []

        def run(stream: Any) -> Any:
            values, last = _here(concrete(stream))
            returned[:] = [tf.nest.map_structure(lambda tensor: tensor.numpy(), values)]
            return 1, last

        self._run(iterator, [()], run)
        self._global_step.assign(start + len(returned))
        if not returned:
            self._process_group.stop.check()
        return returned[0]

    def _run(self, iterator: WorkerStreams, closures: Sequence[tuple[Any, ...]], run: Callable[..., Any]) -> None:
        """Has workers run closures, and returns when all are done; or, once asked to stop, when no worker is busy.

        `run` gets the worker's iterator and a closure's arguments; it returns the steps, and the last batch's number.
        """
        self._is_left, shares = False, self.activity.begin_window()

        def on_worker(stream: tuple[int, Any], *arguments: Any) -> None:
            worker, own_iterator = stream
            if self._is_left:
                return
            with self.activity.closure(shares, worker):
                try:
                    ran, last = run(own_iterator, *arguments)
                    self.activity.record_success(shares, iterator, worker, int(ran), int(last))
                except tf.errors.OpError as error:
                    if not self._is_left:
                        self.activity.record_error(error, worker)
                        raise

        try:
            for arguments in closures:
                # The public call takes no Python function, and only one can leave a closure out, and record it.
                self._coordinator._cluster.schedule(on_worker, (iterator, *arguments), None)
            self._wait()
        except tf.errors.OutOfRangeError as error:
            num_workers = self.activity.num_workers
            raise DataError(
                f"the training data of a worker ended after step {int(self._global_step.numpy())}: each of the "
                f"{num_workers} workers reads every {num_workers}. batch, at its own speed. Set "
                "trainer.on_data_end=repeat, or repeat the dataset"
            ) from error
        except tf.errors.OpError as error:
            if (lost := explain_loss(error, self.activity.addresses)) is None:
                raise
            raise lost from error

    def _wait(self) -> None:
        waits = self._coordinator._cluster.closure_queue.wait  # `join` with a limit; it has no public name
        asked_seconds: float | None = None
        has_warned, activity = False, self.activity
        while not waits(timeout=_POLL_SECONDS):
            now = time.monotonic()
            if self._process_group.stop.reason is not None:
                self._is_left = True  # closures that did not begin yet will do nothing
                asked_seconds = asked_seconds or now
                if not activity.is_any_busy:
                    return
                # A closure waits for data, or for a worker that is gone.
                if now - asked_seconds > _FINISH_SECONDS and self._closures is not None:
                    self._closures.cancel()
            elif activity.idle_seconds() > _SLOW_SECONDS and not has_warned:
                has_warned = True
                _logger.warning("%s", activity.wait_problem())
            if not activity.is_any_busy and activity.idle_seconds() > self._patience_seconds:
                raise PeerLostError(
                    f"{activity.wait_problem()}: longer than "
                    f"runtime.rendezvous_timeout_seconds={self._patience_seconds:g}. "
                    "Start the missing workers, and the same command continues from the last checkpoint"
                )


def _here(tensors: Any) -> Any:
    """Copies what a worker has computed to this process; Python's other threads run meanwhile."""
    with tf.device("/job:chief/replica:0/task:0/device:CPU:0"):
        return tf.nest.map_structure(tf.identity, tensors)
