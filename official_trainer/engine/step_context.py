"""What the parts of a trainer share: the strategy, the task, its variables, and what counts and names each step.

Owns: `StepContext`, built once by the Trainer and passed to the constructor of every part, and the options of a trainer
that Model Garden's constructor does not have. Does not own: the parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from official_trainer.distributed.collective import ProcessGroup
from official_trainer.distributed.strategy import described
from official_trainer.engine.coordinator import AsyncWorkers
from official_trainer.engine.input_wait import InputWait
from official_trainer.engine.traces import Traces
from official_trainer.engine.windows import WindowOptions
from official_trainer.lazy import keras, tf
from official_trainer.stopping import StopRequest
from official_trainer.tasks.multi_task.task import MultiTask, Part
from official_trainer.tasks.optimization import WeightAverage
from official_trainer.tasks.random_streams import RandomStreams


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """Options of a trainer beyond Model Garden's.

    Attributes:
      eval_tasks: named validation sets, which are evaluated with the same weights.
      stop: asks the run to stop; None for one that never does.
      counts_input_wait: whether steps count when they wait for data, so that a state can be saved meanwhile.
      measures_loss: whether steps add to `training_loss` and the loss trace.
      skips_idle_replicas: whether a replica without examples skips an evaluation step; then the step must not
        communicate with all replicas.
    """

    eval_tasks: Sequence[Part] = ()
    stop: StopRequest | None = None
    counts_input_wait: bool = True
    measures_loss: bool = True
    skips_idle_replicas: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepContext:
    """What the parts of a trainer share.

    Attributes:
      strategy: the strategy that was in scope at construction.
      task: the task, ours or Model Garden's.
      model: the model.
      optimizer: the optimizer; None when only evaluating.
      average: the moving average of the weights, if the run averages.
      global_step: updates done, int64.
      streams: the random numbers of steps.
      process_group: the processes of the run.
      traces: the traces of training and evaluation steps in this process.
      input_wait: whether a training step waits for data.
      workers: run the training steps, each at its own speed; None without a coordinator.
      windows: how training steps are traced and compiled.
    """

    strategy: tf.distribute.Strategy
    task: Any
    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    average: WeightAverage | None
    global_step: tf.Variable
    streams: RandomStreams
    process_group: ProcessGroup
    traces: Traces
    input_wait: InputWait
    workers: AsyncWorkers | None
    windows: WindowOptions

    @property
    def step(self) -> int:
        """The value of `global_step`."""
        return int(self.global_step.numpy())

    @property
    def devices(self) -> str:
        """What the training steps run on, in words."""
        return described(self.strategy) if self.workers is None else self.workers.devices

    @property
    def dispatches(self) -> bool:
        """Whether each step trains one of several tasks, chosen by the batch."""
        return isinstance(self.task, MultiTask) and self.task.dispatches
