"""Windows of training steps that several workers share.

Owns: cutting a window into closures, so that every worker has work and none waits long at its end; that `global_step`
moves by exactly the steps of the window, whoever dies in it; who did how much. Does not own: what a step is
(`train_steps.py`), the workers' data (`worker_streams.py`).

A closure is a traced loop of steps. It counts each step on the parameter server, in a slot of its own, after all that
the step changes. TensorFlow runs the closure of a worker that died once more, on another worker: that one does what the
slot says is left. When no closure is left, `global_step` is set to what the window had to reach, because a worker may
have died between its update of that and its count.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.distributed.cluster import WORKER, process_name
from official_trainer.distributed.peers import PeerLostError, answers, explain_loss, is_loss, named
from official_trainer.engine.worker_streams import WorkerStreams
from official_trainer.inputs import DataError
from official_trainer.lazy import load, tf
from official_trainer.stopping import StopRequest

_logger = logging.getLogger(__name__)

LEAST_SECONDS = 0.02
"""Closures take about this long, or longer: to send one takes some thousandths of a second."""

_AT_MOST_FIRST = 0.9
_POLL_SECONDS = 0.1
_SLOW_SECONDS = 5.0
_FINISH_SECONDS = 5.0
_SLOTS_PER_WORKER = 64
_READS = frozenset({"ReadVariableOp", "ResourceGather", "VarHandleOp", "Placeholder"})


def closure_lengths(num_steps: int, num_workers: int, least: int, first_part: float = 0.5) -> list[int]:
    """Returns the steps of each closure of a window, longest first.

    Half of what is left is dealt out to all workers in equal parts, again and again (factoring: Hummel, Schonberg and
    Flynn, 1992). So few closures are sent, and at the end the workers wait for a short one at most.

    Args:
      num_steps: of the window.
      num_workers: who shares them; each gets a closure if there are as many steps.
      least: steps that are worth sending.
      first_part: of the window, dealt out first: more than half where workers are about as fast as each other.
    """
    lengths: list[int] = []
    left, part = num_steps, first_part
    while left:
        dealt = min(left, max(least * num_workers, math.ceil(left * part)))
        equal, rest = divmod(dealt, num_workers)
        lengths += [length for worker in range(num_workers) if (length := equal + (worker < rest))]
        left, part = left - dealt, 0.5
    return lengths


@dataclasses.dataclass
class Shares:
    """Who did what in a window.

    Attributes:
      steps: done by each worker.
      closures: done by each worker.
      seconds: that each worker was busy with them.
      at_once: the most workers that had one in flight at the same time.
    """

    steps: list[int]
    closures: list[int]
    seconds: list[float]
    at_once: int = 0

    @property
    def first_part(self) -> float:
        """The part of a window like this that can be dealt out at first, so that the slowest worker is not the last."""
        speeds = [steps / max(seconds, 1e-9) for steps, seconds in zip(self.steps, self.seconds, strict=True)]
        evenness = len(speeds) * min(speeds) / max(sum(speeds), 1e-9)
        return max(0.5, _AT_MOST_FIRST * evenness)


class CoordinatedLoop:
    """`loop(iterator, num_steps)`: runs a window of steps on the workers and returns when all are done.

    Attributes:
      shares: who did what in the last window; None before the first.
      before_window: called with the step at which a window begins.
      stop: looked at while a window runs.
      patience_seconds: how long all work may rest because workers are gone.
    """

    def __init__(
        self,
        coordinator: Any,
        step: Callable[[Any], Any],
        global_step: tf.Variable,
        addresses: Mapping[str, Sequence[str]],
        watched: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        """Takes what is done.

        Args:
          coordinator: TensorFlow's `ClusterCoordinator`.
          step: `step(iterator)`, traced: one step on the next batch, returns the number of the batch.
          global_step: counts steps.
          addresses: `host:port` of workers and parameter servers, by role.
          watched: takes note of traces.
        """
        self.shares: Shares | None = None
        self.before_window: Callable[[int], None] = lambda step: None
        self.stop = StopRequest()
        self.patience_seconds = 600.0
        self._coordinator, self._step, self._global_step = coordinator, step, global_step
        self._addresses, self._watched = addresses, watched
        self._num_workers = len(addresses[WORKER])
        with tf.init_scope(), tf.device("/job:ps/task:0/device:CPU:0"):
            self._counts = tf.Variable(tf.zeros([_SLOTS_PER_WORKER * self._num_workers], tf.int64), trainable=False)
        self._traced: tuple[Any, Any] | None = None
        self._lock = threading.Lock()
        self._in_flight: set[int] = set()  # workers, which have one closure at a time
        self._lost: set[int] = set()
        self._last_event_seconds = 0.0
        self._is_left = False
        self._cancellation = load("tensorflow.python.eager.cancellation").CancellationManager()
        self._steps_per_second: float | None = None

    def __call__(self, iterator: WorkerStreams, num_steps: tf.Tensor) -> None:
        """Runs `num_steps` steps on the batches of `iterator`.

        Raises:
          PeerLostError: a parameter server is gone, or all workers for too long.
          DataError: the data of a worker ended.
          PreemptedError: the run was asked to stop; `global_step` tells how many steps ran.
        """
        window, start = int(num_steps), int(self._global_step.numpy())
        rate = self._steps_per_second
        least = 1 if rate is None else max(1, round(LEAST_SECONDS * rate / self._num_workers))
        first_part = 0.5 if self.shares is None else self.shares.first_part
        lengths = closure_lengths(window, self._num_workers, least, first_part)
        function = self._function(iterator)
        self._counts.assign(tf.zeros_like(self._counts))
        self.before_window(start)
        began = time.monotonic()

        def run(stream: Any, slot: tf.Tensor, length: tf.Tensor) -> None:
            ran, last = _here(function(stream, slot, length))
            self._took_part(iterator, int(ran), int(last))

        # Numbers become tensors here: in a worker's thread that would hold up all of Python while the worker hangs.
        numbers = [(tf.constant(slot), tf.constant(length, tf.int64)) for slot, length in enumerate(lengths)]
        self._run([(iterator, *pair) for pair in numbers], run)
        if self._is_left:
            self._global_step.assign(start + int(tf.reduce_sum(self._counts)))
            self.stop.check()
        self._global_step.assign(start + window)
        self._steps_per_second = window / max(time.monotonic() - began, 1e-9)

    def run_one(self, iterator: WorkerStreams, function: Any) -> Any:
        """Runs one step by `function(iterator)`, traced, on any worker; returns what that returns, in NumPy's types."""
        start = int(self._global_step.numpy())
        self.before_window(start)
        with self._coordinator.strategy.scope():
            concrete = function.get_concrete_function(iterator.iterator_spec)
        returned: list[Any] = []

        def run(stream: Any) -> None:
            values, last = _here(concrete(stream))
            returned[:] = [tf.nest.map_structure(lambda tensor: tensor.numpy(), values)]
            self._took_part(iterator, 1, int(last))

        self._run([(iterator,)], run)
        self._global_step.assign(start + len(returned))
        if not returned:
            self.stop.check()
        return returned[0]

    def _function(self, iterator: WorkerStreams) -> Any:
        """Returns the loop of a closure, traced for these streams; in this thread, before workers ask for it."""
        spec = iterator.iterator_spec
        if self._traced is None or self._traced[0] != spec:
            number = tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int64)
            loop = tf.function(self._watched(self._closure))
            with self._coordinator.strategy.scope():  # an optimizer may make its variables only now
                self._traced = spec, loop.get_concrete_function(spec, *number)
        return self._cancellation.get_cancelable_function(self._traced[1])

    def _closure(self, iterator: Any, slot: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Runs the steps of a closure that are not done yet; returns how many, and the number of the last batch."""
        left = length - tf.gather(self._counts, slot)

        def body(last: tf.Tensor) -> list[tf.Tensor]:
            graph = tf.compat.v1.get_default_graph()
            with tf.name_scope(""):
                number = self._step(iterator)
            changes = [op for op in graph.get_operations() if op.op_def.is_stateful and op.type not in _READS]
            with tf.control_dependencies(changes):
                self._counts.scatter_add(tf.IndexedSlices(tf.constant(1, tf.int64), slot))
            return [number]

        before = [tf.constant(-1, tf.int64)]
        (last,) = tf.while_loop(lambda last: True, body, before, maximum_iterations=tf.cast(left, tf.int32))
        return left, last

    # In the main thread.

    def _run(self, closures: Sequence[tuple[Any, ...]], run: Callable[..., None]) -> None:
        """Has workers run closures, and returns when all are done; or, once asked to stop, when none is in flight."""
        num_workers = self._num_workers
        self.shares = Shares([0] * num_workers, [0] * num_workers, [0.0] * num_workers)
        self._is_left, self._last_event_seconds = False, time.monotonic()

        def on_worker(*args: Any) -> None:
            self._on_worker(run, args)

        try:
            for arguments in closures:
                # The public call takes no Python function, and only in one can be told which worker runs it.
                self._coordinator._cluster.schedule(on_worker, arguments, None)
            self._wait()
        except tf.errors.OutOfRangeError as error:
            raise DataError(
                f"the training data of a worker ended after step {int(self._global_step.numpy())}: each of the "
                f"{self._num_workers} workers reads every {self._num_workers}. batch, at its own speed. Set "
                "trainer.on_data_end=repeat, or repeat the dataset"
            ) from error
        except tf.errors.OpError as error:
            if (lost := explain_loss(error, self._addresses)) is None:
                raise
            raise lost from error

    def _wait(self) -> None:
        waits = self._coordinator._cluster.closure_queue.wait  # `join` with a limit; it has no public name
        asked_seconds: float | None = None
        has_said = False
        while not waits(timeout=_POLL_SECONDS):
            now = time.monotonic()
            if self.stop.reason is not None:
                self._is_left = True  # what is not begun yet will do nothing
                asked_seconds = asked_seconds or now
                if not self._in_flight:
                    return
                if now - asked_seconds > _FINISH_SECONDS:  # it waits for data, or for a worker that is gone
                    self._cancellation.start_cancel()
            elif now - self._last_event_seconds > _SLOW_SECONDS and not has_said:
                has_said = True
                _logger.warning("%s", self._resting(now))
            if not self._in_flight and now - self._last_event_seconds > self.patience_seconds:
                raise PeerLostError(
                    f"{self._resting(now)}: longer than runtime.rendezvous_timeout_seconds={self.patience_seconds:g}. "
                    "Start the missing workers, and the same command continues from the last checkpoint"
                )

    def _resting(self, now: float) -> str:
        """Says which workers keep a window from its end."""
        workers = {process_name(WORKER, index): address for index, address in enumerate(self._addresses[WORKER])}
        with self._lock:
            busy = [process_name(WORKER, index) for index in self._in_flight]
        silent = {name: address for name, address in workers.items() if not answers(address)}
        slow = {name: workers[name] for name in busy if name not in silent}
        seconds = now - self._last_event_seconds
        parts = [f"no answer from {named(silent)}"] if silent else []
        parts += [f"unfinished work at {named(slow)}"] if slow else []
        return f"no worker has finished anything for {seconds:.0f} seconds: {'; '.join(parts) or 'nobody knows why'}"

    # In the threads of the workers.

    def _on_worker(self, run: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._is_left:
            return
        worker, shares = _this_worker(), self.shares
        assert shares is not None
        with self._lock:
            self._in_flight.add(worker)
            shares.at_once = max(shares.at_once, len(self._in_flight))
            self._last_event_seconds = began = time.monotonic()
        try:
            run(*args)
            self._note_back(worker)
        except tf.errors.OpError as error:
            if not self._is_left:
                self._note_lost(worker, error)
                raise
        finally:
            with self._lock:
                self._in_flight.discard(worker)
                self._last_event_seconds = ended = time.monotonic()
                shares.seconds[worker] += ended - began

    def _note_lost(self, worker: int, error: tf.errors.OpError) -> None:
        address = self._addresses[WORKER][worker]
        if worker not in self._lost and is_loss(error) and not answers(address):
            self._lost.add(worker)
            left = self._num_workers - len(self._lost)
            goes_on = "the others take over its steps" if left else "training waits for a worker"
            _logger.warning("lost %s (%s): %s; it may come back", process_name(WORKER, worker), address, goes_on)

    def _note_back(self, worker: int) -> None:
        if worker in self._lost:
            self._lost.discard(worker)
            _logger.info("%s is back", process_name(WORKER, worker))

    def _took_part(self, streams: WorkerStreams, ran: int, last: int) -> None:
        worker, shares = _this_worker(), self.shares
        assert shares is not None
        shares.closures[worker] += 1
        if ran > 0:
            shares.steps[worker] += ran
            streams.reached(worker, last)


def _here(tensors: Any) -> Any:
    """Returns what a worker has computed, in this process; Python's other threads go on meanwhile."""
    with tf.device("/job:chief/replica:0/task:0/device:CPU:0"):
        return tf.nest.map_structure(tf.identity, tensors)


def _this_worker() -> int:
    context = load("tensorflow.python.distribute.coordinator.coordinator_context")
    return context.get_current_dispatch_context().worker_index


class NumberedBatches:
    """A worker's iterator as a step sees it: without the numbers of the batches. Made in the function that is traced.

    Attributes:
      number: of the batch that was taken last, scalar int64.
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
        """Returns the number; a variable is read alike."""
        return self.number
