"""Trainer: Model Garden's `base_trainer.Trainer`, built from parts that have one task each.

Owns: Model Garden's contract (constructor, properties, override points), and building the parts. Does not own: the
parts (`train_steps.py`, `evaluation.py`, `checkpoint_state.py`, …), the order of events (`loop.py`), files
(`checkpoints/store.py`, `tracking/`), devices (`distributed/strategy.py`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import orbit

from official_trainer.distributed.collective import collective
from official_trainer.distributed.parameter_server import CoordinatorError
from official_trainer.engine import first_weights, windows
from official_trainer.engine.checkpoint_state import CheckpointState
from official_trainer.engine.coordinator import create_streams
from official_trainer.engine.evaluation import Evaluation, ValidationSet
from official_trainer.engine.first_trace import build_all_layers, build_all_metrics
from official_trainer.engine.measures import TrainMeasures
from official_trainer.engine.recovery import LossBound
from official_trainer.engine.step_context import StepContext, TrainerOptions, runtime_field
from official_trainer.engine.train_iterator import Data, DatasetBuilder, GivenData, Stacking, TrainData, opened
from official_trainer.engine.train_steps import TrainStep, WindowRunner
from official_trainer.inputs import DataError, in_hand
from official_trainer.lazy import keras, tf
from official_trainer.tasks import vocabularies
from official_trainer.tasks.accumulation import accumulator_of
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tasks.multi_task.task import MultiTask, check_sections, parts_in, sub_model, train_section
from official_trainer.user_code import during

_logger = logging.getLogger(__name__)


class Trainer(orbit.StandardTrainer, orbit.StandardEvaluator):
    """Trains and evaluates one task under the strategy in scope.

    Override points, in order of use: `train_loop_begin`, `next_train_inputs`, `train_step`, `train_loop_end`;
    `eval_begin`, `next_eval_inputs`, `eval_step`, `eval_reduce`, `eval_end`. Begin, reduce and end run eagerly on the
    host; the rest is traced.

    Size: the attributes include Model Garden's, and the parts that the modes of a run call.

    Attributes:
      config: the experiment's config.
      strategy: the strategy that was in scope at construction.
      task: the task.
      model: the model.
      optimizer: the optimizer.
      global_step: updates done, int64.
      train_metrics: the task's and the model's training metrics.
      validation_metrics: the task's and the model's evaluation metrics.
      train_loss: mean loss since the last `train_loop_end`.
      validation_loss: mean loss over the examples of the last evaluation of the task's own set.
      checkpoint: the whole training state.
      actions: actions to run at steps, added to those of the config by code that builds the run in Python.
      restored: what the first weights came from, if `init_checkpoint` is set and the run began in this process.
      process_group: the processes of the run.
      context: what the parts below share.
      train_iterator: the training batches.
      windows: runs windows of training steps.
      evaluation: runs evaluations.
      checkpoint_state: what checkpoints hold, and the values of variables on every replica.

    Example:
      >>> import numpy as np
      >>> from official_trainer import Task, inputs
      >>> from official_trainer.config import DataConfig, ExperimentConfig, TaskConfig
      >>> from official_trainer.engine import Trainer
      >>> from official_trainer.lazy import keras
      >>> class Line(Task):
      ...     def build_model(self):
      ...         return keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
      ...
      ...     def build_inputs(self, params, input_context=None):
      ...         x = np.linspace(-1, 1, 64, dtype="float32")[:, None]
      ...         return inputs.from_arrays((x, 3 * x + 1), params, input_context)
      ...
      ...     def build_losses(self, labels, model_outputs, aux_losses=None):
      ...         return keras.losses.mean_squared_error(labels, model_outputs)
      >>> data = DataConfig(global_batch_size=16)
      >>> config = ExperimentConfig(task=TaskConfig(train_data=data, validation_data=data))
      >>> task = Line(config.task)
      >>> trainer = Trainer(config, task, task.build_model(), keras.optimizers.SGD(0.3))
      >>> logs = trainer.train(100)
      >>> int(trainer.global_step), float(logs["training_loss"]) < 1
      (100, True)
      >>> f"{trainer.evaluate(num_steps=-1)['validation_loss']:.3f}"
      '0.000'
    """

    def __init__(  # noqa: PLR0913 - the signature is Model Garden's
        self,
        config: Any,
        task: Any,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        train: bool = True,
        evaluate: bool = True,
        train_dataset: Any = None,
        validation_dataset: Any = None,
        checkpoint_exporter: Any = None,
        options: TrainerOptions | None = None,
    ) -> None:
        """Builds metrics, slots and the checkpoint; data is read at the first step.

        Args:
          config: an experiment config with `trainer`, `task` and `runtime`, ours or Model Garden's.
          task: the task, ours or Model Garden's.
          model: built under the strategy in scope, like the optimizer.
          optimizer: may be None when only evaluating.
          train: whether this trainer will train.
          evaluate: whether this trainer will evaluate.
          train_dataset: used instead of `task.build_inputs(config.task.train_data)`.
          validation_dataset: used instead of `task.build_inputs(config.task.validation_data)`.
          checkpoint_exporter: has `maybe_export_checkpoint(checkpoint, logs, global_step)` and `best_ckpt_logs`;
            called after each evaluation, while averaged weights are in the model.
          options: what Model Garden's constructor does not have.

        Raises:
          AttributeError: the config lacks a section that is needed.
          ValueError: two metrics share a name.
          SubTasksError: the model has no part for one of several tasks.
          DeviceError: XLA cannot compile a step of this strategy.
          CoordinatorError: `train_dataset` was passed, which cannot be sent to workers.
        """
        check_sections(config, task, train and train_dataset is None, evaluate and validation_dataset is None)
        self.config = config
        self.actions: list[Any] = []
        self.restored: tuple[first_weights.Restored, ...] = ()
        self._coordinator: Any = None
        self.init_async()
        builder = _builder(config, task, train_section(task, config), "task.train_data", trains=True)
        data = _data_of(builder, train_dataset, "train_dataset")
        if not isinstance(task, MultiTask):
            compiled = options is not None and options.as_fit
            validation = _builder(config, task, getattr(config.task, "validation_data", None), "task.validation_data")
            first = data if train else _data_of(validation, validation_dataset, "validation_dataset")
            build_all_layers(model, task, optimizer if train else None, first, compiled=compiled)
        self.context = context = StepContext(config, task, model, optimizer, options, self._coordinator)
        self.strategy, self.task, self.model = context.strategy, task, model
        self.optimizer, self.global_step = context.optimizer, context.global_step
        self.process_group = context.process_group
        stacking = _stacking_of(config, context, type(self))
        self._measures = measures = TrainMeasures(context, trains=train, bound=LossBound.of(config.trainer))
        self._step = TrainStep(
            context,
            measures,
            accumulator_of(config.trainer, context.optimizer, model),
            compiles_windows=stacking is not None and context.enables_xla,
        )
        _build_train_metrics(config, context, measures.metrics, data)
        orbit.StandardTrainer.__init__(self, None, context.train_options)
        self.train_iterator = _train_data_of(config.trainer, context, builder, data, stacking, self._coordinator)
        self.windows = WindowRunner(context, self, self._step, measures, self.train_iterator)
        sets = _validation_sets_of(config, context, validation_dataset, evaluates=evaluate)
        self.checkpoint_state = CheckpointState(context, measures, self.train_iterator, sets)
        if self.optimizer is not None and getattr(config.trainer, "recovery_learning_rate_scale", 1.0) != 1:
            self.checkpoint_state.scale_learning_rate(1.0)  # prepares it, before a step is traced
        self.evaluation = Evaluation(
            context,
            self,
            sets,
            self.checkpoint_state,
            checkpoint_exporter,
            counts_examples=type(self).eval_step is Trainer.eval_step,
        )
        orbit.StandardEvaluator.__init__(self, None, context.eval_options)
        self.train_metrics, self.validation_metrics = measures.metrics, self.evaluation.own_set.metrics
        self.train_loss, self.validation_loss = measures.numbers.training_loss, self.evaluation.own_set.loss
        self.checkpoint = self.checkpoint_state.checkpoint
        for part in (self, self.windows, self.evaluation, self.checkpoint_state):
            self.process_group.register(part)

    # Model Garden's properties.

    @property
    def checkpoint_exporter(self) -> Any:
        """The object that keeps the best checkpoint, or None."""
        return self.evaluation.exporter

    @property
    def train_dataset(self) -> Any:
        """The dataset passed by the caller, or None when the task builds its own."""
        return self.train_iterator.dataset

    @train_dataset.setter
    def train_dataset(self, dataset: Any) -> None:
        """Trains on `dataset` from the next window on."""
        iterator = self.train_iterator
        iterator.use(iterator.builder if dataset is None else GivenData(dataset, "train_dataset"))

    @property
    def eval_dataset(self) -> Any:
        """The dataset of the task's own set; None until it is built."""
        return self.evaluation.own_set.dataset

    @eval_dataset.setter
    def eval_dataset(self, dataset: Any) -> None:
        """Evaluates on `dataset` from the next evaluation on."""
        self.evaluation.own_set.dataset = dataset

    # Model Garden's methods for asynchronous training.

    def init_async(self) -> None:
        """Creates the coordinator of the strategy in scope, if it needs one; called by the constructor."""
        strategy = tf.distribute.get_strategy()
        if isinstance(strategy, tf.distribute.ParameterServerStrategy):
            self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

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
        if self._coordinator is not None:
            self._coordinator.join()

    def distribute_dataset(self, dataset_or_fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns a distributed dataset; under a coordinator, one that each worker reads from its start.

        Args:
          dataset_or_fn: a `tf.data.Dataset` of global batches, or a function that returns one of per-replica batches
            and may take `input_context`. A dataset that is distributed already is returned as it is.
          *args: passed to the function.
          **kwargs: passed to the function; `input_options` goes to the strategy.
        """
        if isinstance(dataset_or_fn, tf.distribute.DistributedDataset):
            return dataset_or_fn
        distribute = orbit.utils.make_distributed_dataset
        if self._coordinator is None:
            return distribute(self.strategy, dataset_or_fn, *args, **kwargs)
        if isinstance(dataset_or_fn, tf.data.Dataset):  # the coordinator sends each worker its definition
            return self._coordinator.create_per_worker_dataset(distribute(self.strategy, dataset_or_fn, **kwargs))
        per_worker = functools.partial(distribute, self.strategy, dataset_or_fn, *args, **kwargs)
        return self._coordinator.create_per_worker_dataset(tf.function(per_worker))

    # Model Garden's training.

    @collective
    def initialize(self) -> None:
        """Sets the first weights of a fresh run; called only when `model_dir` holds no checkpoint."""
        with during("initializing the weights", task=self.task, method="initialize"):
            self.restored = first_weights.initialize(self.task, self.model, self.strategy)
            vocabularies.check_finite(self.model)
        if self.context.average is not None:
            self.context.average.reset()

    def train(self, num_steps: tf.Tensor | int) -> dict[str, Any]:
        """Runs steps between `train_loop_begin` and `train_loop_end`.

        Args:
          num_steps: how many.

        Returns:
          What `train_loop_end` returned about these steps, scalars by name.
        """
        self.train_loop_begin()
        self.run_steps(int(num_steps))
        return self.train_loop_end()

    @do_not_convert
    def next_train_inputs(self, iterator: Any) -> Any:
        """Returns the inputs of the next training step; runs on the host, traced.

        Args:
          iterator: over distributed batches.
        """
        return next(iterator)

    @do_not_convert
    def train_step(self, iterator: Any) -> None:
        """Runs one step in cross-replica context, traced.

        Args:
          iterator: for `next_train_inputs`.
        """
        with self.context.clock.waiting() as received:
            inputs = convert(self.next_train_inputs)(iterator)
            received(inputs)
        self._step.run(inputs)

    @collective
    def train_loop_end(self) -> dict[str, Any]:
        """Returns and resets the metrics of the steps since the last call; called eagerly.

        Returns:
          The task's metrics by name, `training_loss` (mean over the steps), `batch_loss` (of the last step),
          `smoothed_loss` (moving average) and `learning_rate`; scalars.
        """
        with self.process_group.reading(self._measures.variables):
            logs = self._measures.results()
            self._measures.reset()
        return logs

    def create_train_loop_fn(self) -> windows.WindowLoop:
        """Returns `loop(iterator, num_steps)` over `train_step`; run by workers, if configured.

        Windows over blocks of batches do not use it: those compiled by XLA, and those on data of `from_arrays`. There
        are none in a class that overrides this method, `train_step` or `next_train_inputs`.
        """
        return self.windows.create_loop()

    # Model Garden's evaluation.

    @collective
    def evaluate(self, num_steps: tf.Tensor | int) -> dict[str, Any]:
        """Evaluates, with averaged weights if there are any.

        Args:
          num_steps: batches, -1 for all. If a named validation set has its own number, that is used for the set.

        Returns:
          What `eval_end` returned, scalars by name, with `validation_loss` and the task's metrics; those of a named set
          in a dictionary under its name.

        Raises:
          DataError: the validation data holds no batch, or cannot be read.
          PreemptedError: the run was asked to stop; the evaluation has no result.
          RetraceError: batches keep having new shapes.
        """
        return self.evaluation.run(int(num_steps))

    def create_eval_loop_fn(self, has_state: bool) -> Callable[[Any, int, Any], Any]:
        """Returns `loop(iterator, num_steps, state) -> state`; -1 steps means until the iterator ends."""
        is_reduced = type(self).eval_reduce is not Trainer.eval_reduce
        combines_logs = has_state or is_reduced or self.evaluation.current_set.folds
        return self.evaluation.create_loop(self._eval_options, folds=combines_logs)

    def eval_begin(self) -> Any:
        """Resets the metrics; returns the first state of `eval_reduce`. Called eagerly."""
        self.evaluation.reset()
        return None

    @do_not_convert
    def next_eval_inputs(self, iterator: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the inputs of the next evaluation step, and logs that stay on the host; traced."""
        return next(iterator), {}

    @do_not_convert
    def eval_step(self, iterator: Any) -> dict[str, Any]:
        """Evaluates one batch in cross-replica context, traced; returns logs, each a tuple with a value per replica."""
        inputs, passthrough_logs = convert(self.next_eval_inputs)(iterator)
        logs = self.evaluation.current_set.run(inputs)
        if clash := sorted(set(logs) & set(passthrough_logs)):
            _logger.warning("next_eval_inputs and the model both log %s; the model's value is kept", ", ".join(clash))
        return {**passthrough_logs, **logs}

    def eval_reduce(self, state: Any = None, step_outputs: Any = None) -> Any:
        """Folds one step's logs into the state of the evaluation; called eagerly on the host.

        Args:
          state: what the last call returned, at first what `eval_begin` returned.
          step_outputs: what `eval_step` returned.
        """
        return self.evaluation.current_set.task.aggregate_logs(state, step_outputs)

    def eval_end(self, aggregated_logs: Any = None) -> dict[str, Any]:
        """Returns the results of the evaluation; called eagerly, while averaged weights are still in the model.

        Args:
          aggregated_logs: what `eval_reduce` returned last.
        """
        return self.evaluation.results(aggregated_logs)

    # One batch, or one dataset, in hand.

    def train_on(self, batch: Any, *, name: str = "batch") -> dict[str, Any]:
        """Runs one training step on a batch in hand; the training data stays where it is.

        Args:
          batch: a global batch, as `train_step` of the task takes it: nested tensors or arrays `[batch, …]`.
          name: of the batch, for messages.

        Returns:
          The logs that `train_loop_end` would return, which resets the metrics; this does not.

        Raises:
          DataError: it is no batch, or there are other processes.
        """
        _check_in_hand(self, name)
        dataset = in_hand.one_batch(batch, name, num_replicas=self.strategy.num_replicas_in_sync)
        with self.strategy.scope(), self.train_iterator.instead(GivenData(dataset, name, self.distribute_dataset)):
            self.run_steps(1)
        return self.windows.results()

    def eval_on(self, batch: Any, *, name: str = "batch") -> dict[str, Any]:
        """Evaluates a batch in hand, and it alone; see `evaluate_on`.

        Args:
          batch: a global batch, as `validation_step` of the task takes it: nested tensors or arrays `[batch, …]`.
          name: of the batch, for messages.
        """
        return self.evaluate_on(in_hand.one_batch(batch, name), name=name)

    def evaluate_on(self, dataset: Any, *, name: str = "dataset") -> dict[str, Any]:
        """Evaluates a dataset in hand like the task's own set: each example once, with averaged weights.

        The validation sets, the best checkpoint and the state of training stay as they are.

        Args:
          dataset: a `tf.data.Dataset` of global batches; the last one may be smaller.
          name: of the dataset, for messages.

        Returns:
          What `evaluate` would return for the task's own set.

        Raises:
          DataError: it is no dataset, has no end or no example, or there are other processes.
        """
        _check_in_hand(self, name)
        dataset = self.distribute_dataset(in_hand.checked(dataset, name, needs_end=True))
        return self.evaluation.run_on(GivenData(dataset, name))

    # For the loop, actions and the modes of a run.

    def use_config(self, config: Any) -> None:
        """Replaces the config; only settings that are used between windows change: lengths, intervals, retention."""
        self.config = config

    def run_steps(self, num_steps: int, *, publish: bool = False, position: Sequence[int] | None = None) -> int:
        """Runs `num_steps` steps in one window, on all processes, and returns how many ran.

        Fewer run only when the training data ends and `trainer.on_data_end` is `stop`.

        Args:
          num_steps: how many; one, if it is to publish.
          publish: whether `windows.published` has to hold afterwards what was published from inside the step.
          position: of the chief in the data, which the other processes get; see `DataPosition.values`.

        Raises:
          DataError: the data ended (and `on_data_end` is `error`), holds nothing, or cannot be read.
          RetraceError: batches keep having new shapes; the steps were run.
          PreemptedError: the run was asked to stop; `global_step` has the number of steps that ran completely.
        """
        assert num_steps == 1 or not publish
        if position is None and not self.process_group.is_alone:
            position = self.train_iterator.position.values()
        # A collective call, which this makes by itself, as it calls the loop: a step's traceback has fewer lines.
        options = {"publish": publish, "position": position}
        with self.process_group.calling(self, "run_steps", (num_steps,), options):
            first = self.windows.begin(position)
            while self.windows.goes_on(first + num_steps):
                with self.windows.reading(first + num_steps, publishes=publish) as (loop, iterator, steps):
                    loop(iterator, steps)
            return self.windows.end(first)

    def weights_averaged(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which the model holds its averaged weights, if the run averages."""
        average = self.context.average
        return contextlib.nullcontext() if average is None else average.swapped_in()

    def examples_of(self, num_steps: int) -> int:
        """Returns the number of examples in the last `num_steps` steps."""
        if not isinstance(self.task, MultiTask):
            data = getattr(self.config.task, "train_data", None)  # None where the caller passed a dataset
            return num_steps * getattr(data, "global_batch_size", 0)
        stop = self.train_iterator.position.start_step(self.context.step)
        return self.task.examples_of_steps(stop, num_steps, runtime_field(self.config, "seed", 0))


def _stacking_of(config: Any, context: StepContext, cls: type[Trainer]) -> Stacking | None:
    """Returns which data windows get in blocks of batches; None if the class, or the strategy, needs single ones."""
    options = context.train_options
    takes_blocks = (
        options.use_tf_function
        and options.use_tf_while_loop
        and context.workers is None
        and context.strategy.num_replicas_in_sync == 1
        and not isinstance(context.strategy, tf.distribute.TPUStrategy)
        and not context.dispatches  # batches of different tasks have different shapes
        and cls.train_step is Trainer.train_step
        and cls.next_train_inputs is Trainer.next_train_inputs
        and cls.create_train_loop_fn is Trainer.create_train_loop_fn
    )
    if not takes_blocks:
        return None
    num_steps = min(config.trainer.steps_per_loop, windows.MAX_BLOCK_STEPS) if context.enables_xla else None
    return Stacking(clock=context.clock, num_steps=num_steps)


def _train_data_of(
    trainer: Any, context: StepContext, builder: DatasetBuilder, data: Data, stacking: Stacking | None, coordinator: Any
) -> TrainData:
    counts_epochs = getattr(trainer, "train_epochs", None) is not None  # then the loop handles the end of the data
    policy = "stop" if counts_epochs else getattr(trainer, "on_data_end", "error")
    opens: Callable[[Any, int], Any] = functools.partial(opened, stacking=stacking)
    if coordinator is not None:
        if data is not builder:
            raise CoordinatorError(
                "train_dataset: a dataset that was built in this process cannot be sent to workers; have the "
                "task's build_inputs build it, and pass no train_dataset"
            )
        opens = functools.partial(create_streams, coordinator, repeats=counts_epochs or policy == "repeat")
    return TrainData(builder, context.global_step, on_data_end=policy, opens=opens, data=data)


def _validation_sets_of(config: Any, context: StepContext, dataset: Any, *, evaluates: bool) -> list[ValidationSet]:
    """Returns the task's own set, and those that have names; with metrics where they will be evaluated."""
    section = "task.validation_data"
    builder = _builder(config, context.task, getattr(config.task, "validation_data", None), section)
    own_set = ValidationSet(context, context.task, context.model, builder)
    own_set.dataset = dataset
    named = []
    routines = [(f"task.task_routines[{i}]", part) for i, part in enumerate(parts_in(context.task))]
    routines += [(f"eval_tasks[{i}]", part) for i, part in enumerate(context.options.eval_tasks)]
    for path, part in routines:
        section = f"{path}.task_config.validation_data"
        builder = _builder(config, part.task, part.task.task_config.validation_data, section)
        model = sub_model(context.model, part.name)
        named.append(ValidationSet(context, part.task, model, builder, name=part.name, steps=part.eval_steps))
    for validation_set in (*named, own_set) if evaluates else ():
        if validation_set.name or validation_set.has_data:
            validation_set.build_metrics()
            data = _data_of(validation_set.builder, validation_set.dataset, "validation_dataset")
            build_all_metrics(validation_set.metrics, validation_set.model, validation_set.task, None, data)
    return [own_set, *named]


def _build_train_metrics(config: Any, context: StepContext, metrics: Sequence[Any], data: Data) -> None:
    """Creates the variables of training metrics, of several tasks those of each, before anything is restored."""
    task_parts = parts_in(context.task)
    if not task_parts:
        build_all_metrics(metrics, context.model, context.task, context.optimizer, data)
    of_parts = {metric.name: metric.metrics for metric in metrics if hasattr(metric, "by_flat_name")}
    for part in task_parts:
        of_part = _builder(config, part.task, part.task.task_config.train_data, "", trains=True)
        model = sub_model(context.model, part.name)
        build_all_metrics(of_parts.get(part.name, ()), model, part.task, context.optimizer, of_part)


def _data_of(builder: Data, dataset: Any, name: str) -> Data:
    """Returns what is read: what the builder builds, or the dataset that the caller has given."""
    return builder if dataset is None else GivenData(dataset, name)


def _check_in_hand(trainer: Trainer, name: str) -> None:
    """Refuses data that the other processes do not have."""
    if trainer.context.workers is not None or not trainer.process_group.is_alone:
        raise DataError(
            f"{name}: data in hand is in this process alone, and the run is on {trainer.context.devices}; build it "
            "in the task's build_inputs"
        )


def _builder(config: Any, task: Any, params: Any, section: str, *, trains: bool = False) -> DatasetBuilder:
    seed = runtime_field(config, "seed", 0)
    timeout = runtime_field(config, "rendezvous_timeout_seconds", 600.0)  # Model Garden's config has none
    return DatasetBuilder(task, params, training=trains, seed=seed, section=section, service_timeout_seconds=timeout)
