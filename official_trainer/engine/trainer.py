"""Trainer: Model Garden's `base_trainer.Trainer`, built from parts that have one task each.

Owns: Model Garden's contract (constructor, properties, override points), and building the parts. Does not own: the
parts (`train_steps.py`, `evaluation.py`, `checkpoint_state.py`, …), the order of events (`loop.py`), files
(`checkpoints/store.py`, `tracking/`), devices (`distributed/strategy.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import orbit

from official_trainer.checkpoints.matching import RestoreReport
from official_trainer.distributed.collective import ProcessGroup, collective
from official_trainer.distributed.parameter_server import CoordinatorError
from official_trainer.distributed.strategy import needs_xla
from official_trainer.engine import windows
from official_trainer.engine.async_steps import AsyncWorkers
from official_trainer.engine.checkpoint_state import CheckpointState, OptimizerSettings
from official_trainer.engine.evaluation import EvalStep, Evaluation
from official_trainer.engine.input_wait import InputWait, is_waiting
from official_trainer.engine.replica_state import ReplicaState
from official_trainer.engine.step_context import StepContext, TrainerOptions
from official_trainer.engine.traces import Traces
from official_trainer.engine.train_iterator import DatasetBuilder, TrainIterator
from official_trainer.engine.train_steps import TrainMetrics, TrainStep, WindowRunner
from official_trainer.engine.validation_sets import ValidationSet
from official_trainer.lazy import keras, tf
from official_trainer.stopping import StopRequest
from official_trainer.tasks import optimization, variables
from official_trainer.tasks.accumulation import accumulator_of
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tasks.multi_task.task import (
    MultiTask,
    Part,
    check_sections,
    is_built,
    parts_in,
    sub_model,
    train_section,
)
from official_trainer.tasks.random_streams import RandomStreams

_MAX_TRACES = 20  # for configs without the field


class Trainer(orbit.StandardTrainer, orbit.StandardEvaluator):
    """Trains and evaluates one task under the strategy in scope.

    Override points, in order of use: `train_loop_begin`, `next_train_inputs`, `train_step`, `train_loop_end`;
    `eval_begin`, `next_eval_inputs`, `eval_step`, `eval_reduce`, `eval_end`. Begin, reduce and end run eagerly on the
    host; the rest is traced.

    Attributes:
      actions: actions to run at steps, added to those of the config by code that builds the run in Python.
      process_group: the processes of the run.
      context: what the parts below share.
      train_iterator: the training batches.
      windows: runs windows of training steps.
      evaluation: runs evaluations.
      replica_state: the values of variables on every replica.
      checkpoint_state: what checkpoints hold.
      optimizer_settings: what the config sets of the optimizer, and the scale of the learning rate.
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
        """
        check_sections(config, task, train and train_dataset is None, evaluate and validation_dataset is None)
        options = options or TrainerOptions()
        self._config = config
        self.actions: list[Any] = []
        self.process_group = ProcessGroup(tf.distribute.get_strategy(), options.stop)
        self._workers: AsyncWorkers | None = None
        self.init_async()
        if not isinstance(task, MultiTask):
            dataset = train_dataset if train_dataset is not None else validation_dataset
            variables.build_all_layers(model, task, lambda: _batch_spec(config, task, dataset, trains=train))
        self.context = self._create_context(task, model, optimization.without_averaging(optimizer), options)
        is_scaled = getattr(config.trainer, "recovery_learning_rate_scale", 1.0) != 1
        self.optimizer_settings = OptimizerSettings(self.context, is_scaled=is_scaled)
        self._build_training(train_dataset, trains=train, measures_loss=options.measures_loss)
        self.replica_state = ReplicaState(self.context, self._metrics)
        self._build_evaluation(validation_dataset, checkpoint_exporter, options, evaluates=evaluate)
        self.checkpoint_state = CheckpointState(self.context, self._metrics, self.train_iterator, self.replica_state)
        self.process_group.register(self)

    def _create_context(self, task: Any, model: keras.Model, optimizer: Any, options: TrainerOptions) -> StepContext:
        config, strategy = self._config, tf.distribute.get_strategy()
        ema = getattr(getattr(config.trainer, "optimizer_config", None), "ema", None)
        context = StepContext(
            strategy=strategy,
            task=task,
            model=model,
            optimizer=optimizer,
            global_step=orbit.utils.create_global_step(),
            streams=RandomStreams(model, _runtime(config, "seed", 0)),
            average=None if ema is None else optimization.WeightAverage(model, ema),
            process_group=self.process_group,
            traces=Traces(getattr(config.trainer, "max_traces", _MAX_TRACES)),
            input_wait=InputWait(counts=options.counts_input_wait and self._workers is None),
            workers=self._workers,
            enables_xla=needs_xla(strategy, _runtime(config, "enable_xla", False)),
        )
        if optimizer is not None and is_built(model):
            optimization.build_slots(optimizer, model.trainable_variables)
        return context

    def _build_training(self, dataset: Any, *, trains: bool, measures_loss: bool) -> None:
        trainer, context = self._config.trainer, self.context
        builder = _builder(self._config, context.task, train_section(context.task, self._config), trains=True)
        self._metrics = TrainMetrics(context.task, context.model, trains=trains, measures_loss=measures_loss)
        accumulator = accumulator_of(trainer, context.optimizer, context.model)
        options = orbit.StandardTrainerOptions(
            use_tf_function=trainer.train_tf_function, use_tf_while_loop=trainer.train_tf_while_loop
        )
        orbit.StandardTrainer.__init__(self, None, options)
        compiles = context.enables_xla and options.use_tf_while_loop and _can_compile_windows(self)
        window_options = windows.WindowOptions(
            traces_steps=options.use_tf_function, traces_loops=options.use_tf_while_loop, compiles_windows=compiles
        )
        self.train_iterator = TrainIterator(
            builder,
            context.global_step,
            on_data_end=_on_data_end(trainer),
            window_steps=min(trainer.steps_per_loop, windows.MAX_BLOCK_STEPS) if compiles else None,
            dataset=dataset,
            worker_datasets=self._worker_datasets(dataset),
        )
        step = TrainStep(context, self._metrics, accumulator, window_options)
        self.windows = WindowRunner(context, self, step, self.train_iterator, window_options)

    def _worker_datasets(self, dataset: Any) -> Callable[[DatasetBuilder, int], Any] | None:
        """Returns what builds the data of workers; None without workers.

        Raises:
          CoordinatorError: a dataset was passed, which cannot be sent to workers.
        """
        workers, trainer = self._workers, self._config.trainer
        if workers is None:
            return None
        if dataset is not None:
            raise CoordinatorError(
                "train_dataset: a dataset that was built in this process cannot be sent to workers; have the task's "
                "build_inputs build it, and pass no train_dataset"
            )
        counts_epochs = getattr(trainer, "train_epochs", None) is not None
        repeats = counts_epochs or getattr(trainer, "on_data_end", "error") == "repeat"
        return lambda builder, start_step: workers.datasets(builder, start_step, repeats=repeats)

    def _build_evaluation(self, dataset: Any, exporter: Any, options: TrainerOptions, *, evaluates: bool) -> None:
        config, context = self._config, self.context
        own = ValidationSet(
            context.task,
            context.model,
            _builder(config, context.task, getattr(config.task, "validation_data", None)),
        )
        own.dataset = dataset
        named = [_named_set(config, context.model, part) for part in (*parts_in(context.task), *options.eval_tasks)]
        for each in (*named, own) if evaluates else ():
            if each.name or each.has_data:
                each.build_metrics()
        is_overridden = type(self).eval_step is not Trainer.eval_step
        step = EvalStep(context, skips_idle_replicas=options.skips_idle_replicas, is_overridden=is_overridden)
        self.evaluation = Evaluation(context, self, [own, *named], step, self.replica_state, exporter)
        trainer = config.trainer
        eval_options = orbit.StandardEvaluatorOptions(
            use_tf_function=trainer.eval_tf_function, use_tf_while_loop=trainer.eval_tf_while_loop
        )
        orbit.StandardEvaluator.__init__(self, None, eval_options)

    # Model Garden's properties.

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The strategy that was in scope at construction."""
        return self.context.strategy

    @property
    def config(self) -> Any:
        """The experiment's config."""
        return self._config

    @property
    def task(self) -> Any:
        """The task."""
        return self.context.task

    @property
    def model(self) -> keras.Model:
        """The model."""
        return self.context.model

    @property
    def optimizer(self) -> keras.optimizers.Optimizer:
        """The optimizer."""
        return self.context.optimizer

    @property
    def global_step(self) -> tf.Variable:
        """Updates done, int64."""
        return self.context.global_step

    @property
    def train_loss(self) -> keras.metrics.Metric:
        """Mean loss since the last `train_loop_end`."""
        return self._metrics.loss

    @property
    def train_metrics(self) -> list[keras.metrics.Metric]:
        """The task's and the model's training metrics."""
        return self._metrics.metrics

    @property
    def validation_loss(self) -> keras.metrics.Metric:
        """Mean loss over the examples of the last evaluation of the task's own set."""
        return self.evaluation.own_set.loss

    @property
    def validation_metrics(self) -> list[keras.metrics.Metric]:
        """The task's and the model's evaluation metrics."""
        return self.evaluation.own_set.metrics

    @property
    def checkpoint(self) -> tf.train.Checkpoint:
        """The whole training state."""
        return self.checkpoint_state.checkpoint

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
        self.train_iterator.replace(dataset)

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
            patience_seconds = _runtime(self._config, "rendezvous_timeout_seconds", 600.0)
            self._workers = AsyncWorkers(strategy, patience_seconds=patience_seconds)

    def coordinator_for_async(self) -> Any:
        """Returns TensorFlow's `ClusterCoordinator` of this trainer.

        Raises:
          ValueError: the trainer has none.
        """
        if self._workers is None:
            raise ValueError("there is no coordinator: call init_async() first, under a ParameterServerStrategy")
        return self._workers.coordinator

    def join(self) -> None:
        """Returns when no worker has anything left to do."""
        if self._workers is not None:
            self._workers.coordinator.join()

    def distribute_dataset(self, dataset_or_fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns a distributed dataset; under a coordinator, one with the same data for each worker.

        Args:
          dataset_or_fn: a `tf.data.Dataset` of global batches, or a function that returns one of per-replica batches
            and may take `input_context`.
          *args: passed to the function.
          **kwargs: passed to the function; `input_options` goes to the strategy.
        """
        if self._workers is not None:
            return self._workers.distribute_dataset(dataset_or_fn, *args, **kwargs)
        return orbit.utils.make_distributed_dataset(self.context.strategy, dataset_or_fn, *args, **kwargs)

    # Model Garden's training.

    @collective
    def initialize(self) -> None:
        """Sets the first weights of a fresh run; called only when `model_dir` holds no checkpoint."""
        self.context.task.initialize(self.context.model)
        if self.context.average is not None:
            self.context.average.reset()

    def train(self, num_steps: tf.Tensor | int) -> dict[str, Any]:
        """Runs `num_steps` steps between `train_loop_begin` and `train_loop_end`; returns the latter's logs."""
        self.train_loop_begin()
        self.run_steps(int(num_steps))
        return self.train_loop_end()

    @collective
    def train_loop_begin(self) -> None:
        """Called eagerly before the first step after a summary. Does nothing by default."""

    @do_not_convert
    def next_train_inputs(self, iterator: Any) -> Any:
        """Returns the inputs of the next training step; runs on the host, traced."""
        return next(iterator)

    @do_not_convert
    def train_step(self, iterator: Any) -> None:
        """Runs one step in cross-replica context, traced."""
        next_inputs = convert(self.next_train_inputs)
        self.windows.step.run(self.context.input_wait.next(lambda: next_inputs(iterator)))

    @collective
    def train_loop_end(self) -> dict[str, Any]:
        """Returns and resets the metrics of the steps since the last call; called eagerly."""

        def others() -> dict[str, Any]:
            return {**self.loss_trace, "learning_rate": self.optimizer_settings.learning_rate}

        return self._metrics.take(self.process_group, others)

    def create_train_loop_fn(self) -> windows.WindowLoop:
        """Returns `loop(iterator, num_steps)` over `train_step`; compiled by XLA, or run by workers, if configured."""
        return self.windows.create_loop()

    # Model Garden's evaluation.

    @collective
    def evaluate(self, num_steps: tf.Tensor | int) -> dict[str, Any]:
        """Evaluates `num_steps` batches (-1: all), with averaged weights if there are any; returns `eval_end`'s logs.

        If a named validation set has its own number of steps, that is used instead of `num_steps`.

        Raises:
          DataError: the validation data holds no batch, or cannot be read.
          PreemptedError: the run was asked to stop; the evaluation has no result.
          RetraceError: batches keep having new shapes.
        """
        return self.evaluation.run(int(num_steps))

    def create_eval_loop_fn(self, has_state: bool) -> Callable[[Any, int, Any], Any]:
        """Returns `loop(iterator, num_steps, state) -> state`; -1 steps means until the iterator ends."""
        is_reduced = type(self).eval_reduce is not Trainer.eval_reduce
        combines_logs = has_state or is_reduced or self.evaluation.task_folds
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
        return self.evaluation.step_logs(inputs, passthrough_logs)

    def eval_reduce(self, state: Any = None, step_outputs: Any = None) -> Any:
        """Folds one step's logs into the state of the evaluation; called eagerly on the host."""
        return self.evaluation.current_set.task.aggregate_logs(state, step_outputs)

    def eval_end(self, aggregated_logs: Any = None) -> dict[str, Any]:
        """Returns the results of the evaluation; called eagerly, while averaged weights are still in the model."""
        return self.evaluation.results(aggregated_logs)

    # For the loop, actions and the modes of a run.

    @property
    def stop(self) -> StopRequest:
        """The requests to stop this run."""
        return self.process_group.stop

    @property
    def is_async(self) -> bool:
        """Whether workers run the training steps, each at its own speed."""
        return self._workers is not None

    @property
    def traces(self) -> Traces:
        """The traces of training and evaluation steps in this process."""
        return self.context.traces

    @property
    def published(self) -> Any:
        """What was published from inside the last step, by name; None if the window was not to publish."""
        return self.windows.published

    @property
    def mean_loss(self) -> float:
        """Mean training loss since the last `train_loop_end`; not finite if any step's loss was not."""
        return self.windows.mean_loss

    @property
    def loss_trace(self) -> dict[str, float]:
        """`batch_loss` of the last step, and `smoothed_loss`, its moving average."""
        return self._metrics.trace.results(self.context.step)

    def use_config(self, config: Any) -> None:
        """Replaces the config; only settings that are used between windows change: lengths, intervals, retention."""
        self._config = config

    def run_steps(self, num_steps: int, *, publish: bool = False) -> int:
        """Runs `num_steps` steps in one window and returns how many ran.

        Fewer run only when the training data ends and `trainer.on_data_end` is `stop`.

        Args:
          num_steps: how many; one, if it is to publish.
          publish: whether `published` has to hold afterwards what was published from inside the step.

        Raises:
          DataError: the data ended (and `on_data_end` is `error`), holds nothing, or cannot be read.
          RetraceError: batches keep having new shapes; the steps were run.
          PreemptedError: the run was asked to stop; `global_step` has the number of steps that ran completely.
        """
        return self.windows.run(num_steps, publish=publish)

    def synchronize(self) -> None:
        """Makes the values that replicas keep separately agree; see `ReplicaState.synchronize`."""
        self.replica_state.synchronize()

    def before_save(self) -> None:
        """Updates what is saved; see `ReplicaState.before_save`."""
        self.replica_state.before_save()

    def after_restore(self, report: RestoreReport) -> None:
        """Continues from a restored checkpoint; see `CheckpointState.after_restore`."""
        self.checkpoint_state.after_restore(report)

    def weights_averaged(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which the model holds its averaged weights, if the run averages."""
        average = self.context.average
        return contextlib.nullcontext() if average is None else average.swapped_in()

    def non_finite_weights(self) -> list[str]:
        """Returns the names of trainable weights that hold a value that is not finite."""
        floating = [weight for weight in self.model.trainable_variables if weight.dtype.is_floating]
        return [weight.name for weight in floating if not tf.reduce_all(tf.math.is_finite(weight))]

    def examples_of(self, num_steps: int) -> int:
        """Returns the number of examples in the last `num_steps` steps."""
        task = self.context.task
        if not isinstance(task, MultiTask):
            data = getattr(self._config.task, "train_data", None)  # None where the caller passed a dataset
            return num_steps * getattr(data, "global_batch_size", 0)
        stop = self.train_iterator.position.start_step(self.context.step)
        return task.examples_of_steps(stop, num_steps, _runtime(self._config, "seed", 0))

    def progress(self) -> dict[str, Any]:
        """Returns what changes while steps run, by the names of a watchdog's `Reading`; any thread may call it."""
        count = self.context.input_wait.count
        return {
            "step": self.context.step,
            "waiting_for_input": is_waiting(count),
            "waiting_for_peers": self.process_group.is_waiting,
            "detail": (count, self.evaluation.num_examples),
        }


def _runtime(config: Any, name: str, default: Any) -> Any:
    """Returns a field of the runtime section, which configs built by hand may lack."""
    return getattr(getattr(config, "runtime", None), name, default)


def _can_compile_windows(trainer: Trainer) -> bool:
    """Whether XLA can compile windows: there is one replica, and `train_step` is not overridden."""
    return (
        trainer.context.strategy.num_replicas_in_sync == 1
        and not trainer.context.dispatches  # batches of different tasks have different shapes
        and type(trainer).train_step is Trainer.train_step
        and type(trainer).next_train_inputs is Trainer.next_train_inputs
    )


def _on_data_end(trainer: Any) -> str:
    """Returns what the end of the data means: `stop` where the loop counts epochs."""
    counts_epochs = getattr(trainer, "train_epochs", None) is not None
    return "stop" if counts_epochs else getattr(trainer, "on_data_end", "error")


def _builder(config: Any, task: Any, params: Any, *, trains: bool = False) -> DatasetBuilder:
    seed = _runtime(config, "seed", 0)
    timeout = _runtime(config, "rendezvous_timeout_seconds", 600.0)  # Model Garden's config has none
    return DatasetBuilder(task, params, training=trains, seed=seed, service_timeout_seconds=timeout)


def _batch_spec(config: Any, task: Any, dataset: Any, *, trains: bool) -> Any:
    """Returns the shapes and dtypes of a batch, of the dataset that the caller passed or of the task's."""
    params = getattr(config.task, "train_data" if trains else "validation_data", None)
    found = None if dataset is None else dataset.element_spec
    return found or _builder(config, task, params, trains=trains).element_spec()


def _named_set(config: Any, model: keras.Model, part: Part) -> ValidationSet:
    builder = _builder(config, part.task, part.task.task_config.validation_data)
    return ValidationSet(part.task, sub_model(model, part.name), builder, name=part.name, steps=part.eval_steps)
