"""What the parts of a trainer share: the strategy, the task, its variables, and what counts and names each step.

Owns: `StepContext`, built once by the Trainer and passed to the constructor of every part, and the options of a trainer
that Model Garden's constructor does not have. Does not own: the parts.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import orbit

from official_trainer.distributed.collective import ProcessGroup
from official_trainer.distributed.strategy import described, needs_xla
from official_trainer.engine.changed_state import ChangedState
from official_trainer.engine.coordinator import AsyncWorkers
from official_trainer.engine.step_clock import StepClock
from official_trainer.engine.traces import Traces
from official_trainer.lazy import tf
from official_trainer.stopping import StopRequest
from official_trainer.tasks import attached, optimization
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.multi_task.task import MultiTask, Part, is_built, parts_in
from official_trainer.tasks.random_streams import RandomStreams, required_by

_MAX_TRACES = 20  # for configs without the field


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """Options of a trainer beyond Model Garden's.

    Attributes:
      eval_tasks: named validation sets, which are evaluated with the same weights.
      stop: asks the run to stop; None for one that never does.
      measures_loss: whether steps add to `training_loss` and the loss trace, and losses and weights that are not
        finite end the run.
      as_fit: whether steps do what those of Keras's `fit` do: losses are shares of replicas, else they are whole; the
        model's metrics, with those of `compile`, go on from one summary to the next, until the caller resets them; and
        no replica skips an evaluation step, because one without examples may communicate with all of them.
    """

    eval_tasks: Sequence[Part] = ()
    stop: StopRequest | None = None
    measures_loss: bool = True
    as_fit: bool = False


class StepContext:
    """What the parts of a trainer share.

    Size: each attribute is read by several of them.

    Attributes:
      strategy: the strategy that was in scope at construction.
      task: the task, ours or Model Garden's.
      model: the model.
      optimizer: the optimizer; None when only evaluating.
      average: the moving average of the weights, if the run averages.
      trainable: ids of the weights for which the optimizer has slots; None if not all are created yet.
      global_step: updates done, int64.
      attached: state beside the weights, of the task and the model.
      streams: the random numbers of steps.
      changed_state: refuses a step that changes what no checkpoint holds.
      process_group: the processes of the run.
      traces: the traces of training and evaluation steps in this process.
      clock: how long training steps wait for data.
      workers: run the training steps, each at its own speed; None without a coordinator.
      train_options: whether training steps, and the loop over those of a window, are traced.
      eval_options: the same of evaluation steps.
      enables_xla: whether XLA compiles the training step.
      options: those beyond Model Garden's.
    """

    def __init__(
        self,
        config: Any,
        task: Any,
        model: Any,
        optimizer: Any,
        options: TrainerOptions | None,
        coordinator: Any,
    ) -> None:
        """Creates what is shared, and the slots of the optimizer; called under the strategy's scope.

        All arguments are those of `Trainer`; `coordinator` is TensorFlow's, of a strategy that needs one.

        Raises:
          DeviceError: XLA cannot compile a step of this strategy.
        """
        trainer, self.strategy = config.trainer, tf.distribute.get_strategy()
        self.task, self.model = task, model
        self.options = options = options or TrainerOptions()
        self.optimizer = optimization.without_averaging(optimizer)
        self.process_group = ProcessGroup(self.strategy, options.stop)
        kerases.of(model).prepare(model)
        self.global_step = orbit.utils.create_global_step()
        tasks = [task, *(part.task for part in (*parts_in(task), *options.eval_tasks))]
        roots = attached.roots_of(task, parts_in(task), model)
        self.attached = attached.Attached(roots)
        seed, generators = runtime_field(config, "seed", 0), self.attached.generators
        self.streams = RandomStreams(model, seed, required_by(*tasks), generators)
        self.changed_state = ChangedState(task, lambda: attached.Attached(roots).all_values())
        ema = getattr(getattr(trainer, "optimizer_config", None), "ema", None)
        self.average = None if ema is None else optimization.WeightAverage(model, ema, self.optimizer)
        self.traces = Traces(getattr(trainer, "max_traces", _MAX_TRACES))
        self.workers: AsyncWorkers | None = None
        if coordinator is not None:
            shared = self.global_step, self.streams, self.traces
            patience_seconds = runtime_field(config, "rendezvous_timeout_seconds", 600.0)
            self.workers = AsyncWorkers(coordinator, *shared, patience_seconds=patience_seconds)
        self.clock = StepClock(is_used=coordinator is None)
        self.train_options = orbit.StandardTrainerOptions(
            use_tf_function=trainer.train_tf_function, use_tf_while_loop=trainer.train_tf_while_loop
        )
        self.eval_options = orbit.StandardEvaluatorOptions(
            use_tf_function=trainer.eval_tf_function, use_tf_while_loop=trainer.eval_tf_while_loop
        )
        self.enables_xla = needs_xla(self.strategy, bool(runtime_field(config, "enable_xla", False)))
        self.trainable: set[int] | None = None
        if self.optimizer is not None and is_built(model):
            self.trainable = {id(variable) for variable in kerases.of(model).variables(model, trainable=True)}
            kerases.of(self.optimizer).build_slots(self.optimizer, model.trainable_variables)
        for other in self.other_optimizers.values():
            if kerases.is_3(other) and other.built:  # tf_keras's add up gradients before they use them anyway
                kerases.of(other).build_slots(other, ())

    def whole_losses(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context for steps in which losses of Keras are those of a replica, unless a step divides them."""
        return contextlib.nullcontext() if self.options.as_fit else kerases.of(self.model).whole_losses()

    @property
    def model_variables(self) -> list[tf.Variable]:
        """The values of the model."""
        return kerases.of(self.model).variables(self.model)

    @property
    def other_optimizers(self) -> dict[str, Any]:
        """The optimizers of the task and the model beside `optimizer`, by the attributes that lead to them."""
        inner = kerases.inner(self.optimizer)
        held = self.attached.optimizers.items()
        return {path.partition("/")[2]: other for path, other in held if kerases.inner(other) is not inner}

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


def check_logs(task: Any, method: str, logs: Any, *, needed: str = "") -> None:
    """Refuses what a step returned if it is no dictionary of logs, or one without what is needed.

    Raises:
      TypeError: it is none, or has a tensor that stands between the layers of a model.
      ValueError: it lacks the key.
    """
    name = f"{type(task).__name__}.{method}"
    if not isinstance(logs, Mapping):
        raise TypeError(f"{name} must return a dictionary of logs, got {type(logs).__name__}")
    for key in (key for key, value in logs.items() if type(value).__name__ == "KerasTensor"):
        raise TypeError(f"{name} returned a KerasTensor as {key!r}")
    if needed and needed not in logs:
        raise ValueError(f"{name} must return {needed!r}, got {list(logs)}")


def runtime_field(config: Any, name: str, default: Any) -> Any:
    """Returns a field of the runtime section, which configs built by hand may lack."""
    return getattr(getattr(config, "runtime", None), name, default)
