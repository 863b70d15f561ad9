"""Training under a coordinator: the workers that run the steps, and the data that each of them reads.

Owns: the coordinator, distributing data to workers, and the functions that they run. Does not own: how a window is
divided over workers (`coordinator.py`).

Evaluations stay in the coordinator's process: each example once, in order, whichever worker ends. An evaluator that
runs beside leaves the workers to train.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import orbit

from official_trainer.distributed.cluster import PS, WORKER
from official_trainer.distributed.parameter_server import addresses_of
from official_trainer.engine.coordinator import Closures, CoordinatedLoop
from official_trainer.engine.train_iterator import DatasetBuilder
from official_trainer.engine.worker_streams import NumberedBatches, WorkerDatasets
from official_trainer.lazy import tf
from official_trainer.stopping import StopRequest
from official_trainer.tasks import publish

Step = Callable[[Any], Any]


class AsyncWorkers:
    """The workers of a ParameterServerStrategy, each of which runs steps at its own speed.

    Attributes:
      coordinator: TensorFlow's `ClusterCoordinator`.
      loop: runs windows on the workers; None before the first window.
    """

    def __init__(self, strategy: tf.distribute.Strategy, *, patience_seconds: float) -> None:
        """Takes the strategy, and how long training waits when all workers are gone."""
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self.loop: CoordinatedLoop | None = None
        self._strategy, self._patience_seconds = strategy, patience_seconds
        self._batches: NumberedBatches | None = None

    @property
    def devices(self) -> str:
        """What the training steps run on, in words."""
        addresses = addresses_of(self._strategy)
        return f"{len(addresses[WORKER])} workers and {len(addresses[PS])} ps"

    @property
    def batches(self) -> Any:
        """The batches of the step that is traced; `read_value()` returns the number of the last one, int64."""
        return self._batches

    def datasets(self, builder: DatasetBuilder, start_step: int, *, repeats: bool) -> WorkerDatasets:
        """Returns the data of all workers from a batch on; `repeats` is whether data that ends begins again."""
        return WorkerDatasets(self.coordinator, builder, start_step, repeats=repeats)

    def distribute_dataset(self, dataset_or_fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the same dataset for each worker; see `Trainer.distribute_dataset`."""
        distribute = orbit.utils.make_distributed_dataset
        per_worker = functools.partial(distribute, self._strategy, dataset_or_fn, *args, **kwargs)
        return self.coordinator.create_per_worker_dataset(tf.function(per_worker))

    def create_loop(
        self,
        train_step: Step,
        global_step: tf.Variable,
        *,
        watched: Callable[[Step], Step],
        before_window: Callable[[int], None],
        stop: StopRequest,
    ) -> CoordinatedLoop:
        """Returns the loop over `train_step` on the workers; see `CoordinatedLoop` for its arguments."""

        def step(iterator: Any) -> tf.Tensor:
            self._batches = batches = NumberedBatches(iterator)
            train_step(batches)
            return batches.number

        self.loop = CoordinatedLoop(
            self.coordinator,
            Closures(self._strategy, step, watched),
            global_step,
            before_window=before_window,
            stop=stop,
            patience_seconds=self._patience_seconds,
        )
        return self.loop

    def create_publishing_step(self, train_step: Step, watched: Callable[[Step], Step]) -> Step:
        """Returns `step(iterator)`: runs `train_step` once, on any worker, and returns what it publishes."""
        assert self.loop is not None, "the loop is created first"

        def step(iterator: Any) -> tuple[publish.Tensors, tf.Tensor]:
            self._batches = batches = NumberedBatches(iterator)
            return publish.returning(train_step)(batches), batches.number

        return functools.partial(self.loop.run_one, function=tf.function(watched(step)))
