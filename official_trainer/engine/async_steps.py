"""Training under a coordinator, in Model Garden's words; the part of the Trainer that does nothing without one.

Owns: `init_async`, `coordinator_for_async`, `join`, and what `create_train_loop_fn` and `distribute_dataset` are where
workers do the steps. Does not own: how a window is shared out (`coordinator.py`).

Evaluations stay with the coordinator's process: each example once, in order, whoever dies. An evaluator beside the run
leaves the workers to train.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import orbit

from official_trainer.distributed.cluster import PS, WORKER
from official_trainer.distributed.parameter_server import CoordinatorError, addresses_of
from official_trainer.distributed.strategy import described
from official_trainer.engine import windows
from official_trainer.engine.coordinator import CoordinatedLoop, NumberedBatches, Shares
from official_trainer.engine.input_wait import NoInputMark
from official_trainer.engine.train_iterator import DatasetBuilder
from official_trainer.engine.train_steps import Stepper
from official_trainer.engine.worker_streams import WorkerDatasets
from official_trainer.lazy import tf
from official_trainer.tasks import publish


class AsyncStepper(Stepper):
    """A `Stepper` whose steps are done by workers, if the strategy in scope is ParameterServerStrategy."""

    _is_async = False
    _coordinator: Any = None
    _batches: NumberedBatches | None = None

    def init_async(self) -> None:
        """Makes the coordinator of the strategy in scope, if it needs one."""
        self._is_async = isinstance(self._strategy, tf.distribute.ParameterServerStrategy)
        if self._is_async:
            self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
            self._input_mark = NoInputMark()

    def coordinator_for_async(self) -> Any:
        """Returns TensorFlow's `ClusterCoordinator` of this trainer.

        Raises:
          ValueError: the trainer has none.
        """
        if self._coordinator is None:
            raise ValueError("there is no coordinator: call init_async() first, under a ParameterServerStrategy")
        return self._coordinator

    def join(self) -> None:
        """Returns when no worker has anything left to do."""
        if self._is_async:
            self.coordinator_for_async().join()

    @property
    def is_async(self) -> bool:
        """Whether workers do the steps, each at its own speed."""
        return self._is_async

    @property
    def where(self) -> str:
        """What the steps run on, in words."""
        if self._is_async:
            addresses = addresses_of(self._strategy)
            return f"{len(addresses[WORKER])} workers and {len(addresses[PS])} ps"
        return described(self._strategy)

    @property
    def shares(self) -> Shares | None:
        """Which worker did how much of the last window; None where there are none."""
        return self._train_loop_fn.shares if isinstance(self._train_loop_fn, CoordinatedLoop) else None

    def use_workers(self) -> None:
        """Has the builder give each worker a stream of its own; called once there is a builder.

        Raises:
          CoordinatorError: a dataset was given, which cannot be sent to workers.
        """
        if not self._is_async:
            return
        if self._train_iterator.given is not None:
            raise CoordinatorError(
                "train_dataset: a dataset that was built here cannot be sent to workers; have the task's build_inputs "
                "build it, and give none"
            )
        trainer = self._config.trainer
        counts_epochs = getattr(trainer, "train_epochs", None) is not None
        repeats = counts_epochs or getattr(trainer, "on_data_end", "error") == "repeat"

        def of_workers(builder: DatasetBuilder, start_step: int) -> WorkerDatasets:
            return WorkerDatasets(self.coordinator_for_async(), builder, start_step, repeats=repeats)

        self._train_iterator.of_workers = of_workers

    def distribute_dataset(self, dataset_or_fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns a distributed dataset; under a coordinator, one with the same data for each worker.

        Args:
          dataset_or_fn: a `tf.data.Dataset` of global batches, or a function that returns one of per-replica batches
            and may take `input_context`.
          *args: passed to the function.
          **kwargs: passed to the function; `input_options` goes to the strategy.
        """
        distribute = orbit.utils.make_distributed_dataset
        if not self._is_async:
            return distribute(self._strategy, dataset_or_fn, *args, **kwargs)
        per_worker = functools.partial(distribute, self._strategy, dataset_or_fn, *args, **kwargs)
        return self.coordinator_for_async().create_per_worker_dataset(tf.function(per_worker))

    def create_train_loop_fn(self) -> windows.WindowLoop:
        """Returns `loop(iterator, num_steps)`; under a coordinator, one that returns when the workers have done it."""
        if not self._is_async:
            return super().create_train_loop_fn()
        loop = CoordinatedLoop(
            self.coordinator_for_async(),
            self._step_of_worker,
            self._global_step,
            addresses_of(self._strategy),
            functools.partial(self._traces.watched, "train"),
        )
        loop.stop = self.stop
        loop.before_window = lambda step: self._streams.begin_step(tf.constant(step, tf.int64))
        loop.patience_seconds = getattr(getattr(self._config, "runtime", None), "rendezvous_timeout_seconds", 600.0)
        return loop

    def _step_of_worker(self, iterator: Any) -> tf.Tensor:
        """Runs one step on a worker's next batch, traced; returns the number of the batch, scalar int64."""
        self._batches = batches = NumberedBatches(iterator)
        self.train_step(batches)
        return batches.number

    def _create_publishing_step_fn(self) -> Callable[[Any], publish.Tensors]:
        if not self._is_async:
            return super()._create_publishing_step_fn()
        loop = self._train_loop_fn
        assert isinstance(loop, CoordinatedLoop)

        def step(iterator: Any) -> tuple[publish.Tensors, tf.Tensor]:
            self._batches = batches = NumberedBatches(iterator)
            return publish.returning(self.train_step)(batches), batches.number

        return functools.partial(loop.run_one, function=tf.function(self._traces.watched("train", step)))

    def _may_be_left(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for a window; under a coordinator the window itself looks whether it is to be left."""
        return super()._may_be_left() if not self._is_async else contextlib.nullcontext()

    def _begin_streams(self) -> None:
        """Does nothing under a coordinator: all workers share the generators, which are set before a window."""
        if not self._is_async:
            super()._begin_streams()

    def _place_in_data(self) -> Any:
        """Returns what tells this step's random numbers apart: its batch, where several workers have the same step."""
        return self._batches if self._is_async else super()._place_in_data()
