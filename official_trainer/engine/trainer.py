"""Trainer: windows of traced steps, evaluations; numbers in, numbers out.

Owns: Model Garden's `base_trainer.Trainer` contract (constructor, properties), built from its two halves
(`train_steps.py`, `evaluation.py`), and what a checkpoint holds. Does not own: the order of events (`loop.py`), files
(`checkpoints/store.py`, `tracking/`), devices (`distributed/strategy.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orbit

from official_trainer.checkpoints import manifest, restore
from official_trainer.checkpoints.matching import RestoreReport
from official_trainer.distributed import replicas
from official_trainer.distributed.collective import ProcessGroup, collective
from official_trainer.distributed.replicas import ReplicaValues, ValueBackup, local_sum, synchronize_replicas
from official_trainer.distributed.strategy import needs_xla
from official_trainer.engine import consistency, windows
from official_trainer.engine.async_steps import AsyncStepper
from official_trainer.engine.evaluation import Evaluator
from official_trainer.engine.input_wait import InputMark, is_waiting
from official_trainer.engine.traces import Traces
from official_trainer.engine.train_iterator import DatasetBuilder, TrainIterator
from official_trainer.engine.validation_sets import ValidationSet
from official_trainer.lazy import keras, tf
from official_trainer.stopping import StopRequest
from official_trainer.tasks import metrics, optimization, variables
from official_trainer.tasks.accumulation import accumulator_of
from official_trainer.tasks.multi_task.model import is_built, sub_model
from official_trainer.tasks.multi_task.task import MultiTask, Part, check_sections, parts_in, train_section
from official_trainer.tasks.random_streams import RandomStreams

_MAX_TRACES = 20  # for configs without the field


class Trainer(AsyncStepper, Evaluator):
    """Trains and evaluates one task under the strategy in scope.

    Override points, in order of use: `train_loop_begin`, `next_train_inputs`, `train_step`, `train_loop_end`;
    `eval_begin`, `next_eval_inputs`, `eval_step`, `eval_reduce`, `eval_end`. Begin, reduce and end run eagerly on the
    host; the rest is traced.
    """

    _held_for_save: ValueBackup | None = None

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
        eval_tasks: Sequence[Part] = (),
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
            asked after each evaluation, while averaged weights are in the model.
          eval_tasks: named validation sets, which are evaluated with the same weights.

        Raises:
          AttributeError: the config lacks a section that is needed.
          ValueError: two metrics share a name.
          SubTasksError: the model has no part for one of several tasks.
          DeviceError: XLA cannot compile a step of this strategy.
        """
        check_sections(config, task, train and train_dataset is None, evaluate and validation_dataset is None)
        self._strategy = tf.distribute.get_strategy()
        self._config, self._task, self._model = config, task, model
        self._optimizer = optimization.without_averaging(optimizer)
        self._checkpoint_exporter = checkpoint_exporter
        self._enable_xla = needs_xla(self._strategy, _runtime(config, "enable_xla", False))
        self.process_group = ProcessGroup(self._strategy, on_call=self._give_back_after_save)
        self.actions: list[Any] = []
        """What else happens at a step, for whoever builds the run in Python."""
        self._input_mark = InputMark()
        self._traces = Traces(getattr(config.trainer, "max_traces", _MAX_TRACES))
        self._global_step = orbit.utils.create_global_step()
        self._create_waiting_variables(train, train_dataset, validation_dataset)
        self._streams = RandomStreams(model, _runtime(config, "seed", 0))
        ema = getattr(getattr(config.trainer, "optimizer_config", None), "ema", None)
        self._average = None if ema is None else optimization.WeightAverage(model, ema)
        if optimizer is not None and is_built(model):
            optimization.build_slots(self._optimizer, model.trainable_variables)
        self._configured = [(value, value.numpy()) for value in optimization.hyperparameters(self._optimizer)]
        self._rate_scale: optimization.RateScale | None = None
        if self._optimizer is not None and getattr(config.trainer, "recovery_learning_rate_scale", 1.0) != 1:
            self.scale_learning_rate(1.0)  # before anything is traced
        self._init_training(train_dataset, train=train)
        self._init_sets(validation_dataset, [*parts_in(task), *eval_tasks], evaluate=evaluate)
        self._checkpoint = self._build_checkpoint()

    def _init_sets(self, validation_dataset: Any, parts: Sequence[Part], *, evaluate: bool) -> None:
        params = getattr(self._config.task, "validation_data", None)
        own = ValidationSet(self._task, self._model, self._builder_of(self._task, params))
        own.dataset = validation_dataset
        self._init_evaluation(own, [self._named_set(part) for part in parts], evaluate=evaluate)

    def _create_waiting_variables(self, training: bool, *given: Any) -> None:
        if not isinstance(self._task, MultiTask):
            variables.build_all_layers(self._model, self._task, lambda: self._spec_of_batch(training, *given))

    def _spec_of_batch(self, training: bool, *given: Any) -> Any:
        """Returns what a batch looks like, of the data given by the caller or of the task's."""
        found = next((dataset.element_spec for dataset in given if dataset is not None), None)
        params = getattr(self._config.task, "train_data" if training else "validation_data", None)
        return found or self._builder_of(self._task, params, training=training).element_spec()

    def _builder_of(self, task: Any, params: Any, *, training: bool = False) -> DatasetBuilder:
        seed = _runtime(self._config, "seed", 0)
        timeout = _runtime(self._config, "rendezvous_timeout_seconds", 600.0)  # Model Garden's config has none
        return DatasetBuilder(task, params, training=training, seed=seed, service_timeout_seconds=timeout)

    def _named_set(self, part: Part) -> ValidationSet:
        builder = self._builder_of(part.task, part.task.task_config.validation_data)
        model = sub_model(self._model, part.name)
        return ValidationSet(part.task, model, builder, name=part.name, steps=part.eval_steps)

    def _init_training(self, train_dataset: Any, *, train: bool) -> None:
        trainer = self._config.trainer
        builder = self._builder_of(self._task, train_section(self._task, self._config), training=True)
        self.init_async()
        self._train_loss = keras.metrics.Mean("training_loss", dtype=tf.float32)
        of_model = list(getattr(self._model, "metrics", []))
        self._train_metrics = [*self._task.build_metrics(training=True), *of_model] if train else []
        self._loss_trace = metrics.LossTrace()
        self._accumulator = accumulator_of(trainer, self._optimizer, self._model)
        metrics.check_names([*self._train_metrics, self._train_loss], "training")
        orbit.StandardTrainer.__init__(
            self,
            None,
            orbit.StandardTrainerOptions(
                use_tf_function=trainer.train_tf_function, use_tf_while_loop=trainer.train_tf_while_loop
            ),
        )
        counts_epochs = getattr(trainer, "train_epochs", None) is not None  # then the loop deals with their ends
        self._train_iterator = TrainIterator(
            builder,
            self._global_step,
            on_data_end="stop" if counts_epochs else getattr(trainer, "on_data_end", "error"),
            window_steps=min(trainer.steps_per_loop, windows.MAX_BLOCK_STEPS) if self._compiles_windows else None,
            given=train_dataset,
        )
        self.use_workers()

    def _build_checkpoint(self) -> tf.train.Checkpoint:
        """Returns Model Garden's checkpoint (global_step, model, optimizer) with the rest of the state beside it."""
        items = dict(getattr(self._model, "checkpoint_items", {}))
        if self._optimizer is not None:
            items["optimizer"] = self._optimizer
        if self._average is not None:
            items["average"] = self._average.state
        self._replica_values = ReplicaValues(self._kept_per_replica(), self.process_group.peers)
        training = tf.train.Checkpoint(
            loss=self._train_loss,
            loss_trace=self._loss_trace,
            position=self._train_iterator.position,
            metrics=list(self._train_metrics),
        )
        if self._replica_values.state is not None:
            training.replicas = self._replica_values.state
        return tf.train.Checkpoint(
            global_step=self._global_step,
            model=self._model,
            training=training,
            **items,
        )

    @property
    def stop(self) -> StopRequest:
        """Who tells when to stop."""
        return self.process_group.stop

    @stop.setter
    def stop(self, stop: StopRequest) -> None:
        """Takes somebody else's, in place of one that nobody asks."""
        self.process_group.stop = stop

    # Properties, named as in Model Garden.

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The strategy that was in scope at construction."""
        return self._strategy

    @property
    def config(self) -> Any:
        """The experiment's config."""
        return self._config

    def use_config(self, config: Any) -> None:
        """Takes another config for what is done between windows: how long, how often, what is kept."""
        self._config = config

    @property
    def task(self) -> Any:
        """The task."""
        return self._task

    @property
    def model(self) -> keras.Model:
        """The model."""
        return self._model

    @property
    def optimizer(self) -> keras.optimizers.Optimizer:
        """The optimizer."""
        return self._optimizer

    @property
    def global_step(self) -> tf.Variable:
        """Updates done, int64."""
        return self._global_step

    @property
    def train_loss(self) -> keras.metrics.Metric:
        """Mean loss since the last `train_loop_end`."""
        return self._train_loss

    @property
    def train_metrics(self) -> list[keras.metrics.Metric]:
        """The task's and the model's training metrics."""
        return self._train_metrics

    @property
    def checkpoint(self) -> tf.train.Checkpoint:
        """The whole training state."""
        return self._checkpoint

    @property
    def checkpoint_exporter(self) -> Any:
        """The object that keeps the best checkpoint, or None."""
        return self._checkpoint_exporter

    @property
    def train_dataset(self) -> Any:
        """The dataset given by the caller, or None when the task builds its own."""
        return self._train_iterator.given

    @train_dataset.setter
    def train_dataset(self, dataset: Any) -> None:
        """Trains on `dataset` from the next window on."""
        self._train_iterator.replace(dataset)

    @property
    def train_iterator(self) -> TrainIterator:
        """Where training batches come from."""
        return self._train_iterator

    @property
    def traces(self) -> Traces:
        """The traces of training and evaluation steps in this process."""
        return self._traces

    # Setting up.

    @collective
    def initialize(self) -> None:
        """Gives a fresh run its first weights; called only when `model_dir` holds no checkpoint."""
        self._task.initialize(self._model)
        if self._average is not None:
            self._average.reset()

    @collective
    def before_save(self) -> None:
        """Brings what is saved up to date; called before values are taken for a checkpoint.

        With other processes, replicas have common values from here to the next call that all make: what is written
        between is read by the chief alone.
        """
        self._replica_values.take()
        if not self.process_group.is_alone:
            apart = self._kept_per_replica()
            self._held_for_save = ValueBackup(apart)
            with self.process_group.reading(apart):
                synchronize_replicas(apart, self.process_group.peers)

    def _give_back_after_save(self) -> None:
        if self._held_for_save is not None:
            held, self._held_for_save = self._held_for_save, None
            held.give_back()

    @collective
    def read_checkpoint(self, prefix: str, step: int, allow_mismatch: Sequence[str] = ()) -> RestoreReport:
        """Restores all that a checkpoint of this trainer holds; see `restore.read_exactly`."""
        consistency.check(self.process_group.peers, lambda: consistency.of_checkpoint(prefix, step))
        return restore.read_into(self._checkpoint, prefix, step, allow_mismatch)

    @collective
    def load_weights(self, directory: str, step: int) -> None:
        """Takes the step, the weights and the averages of a checkpoint.

        A best checkpoint holds weights that are averages already, so there the average is the weights.
        """
        saved = manifest.read(directory, step).variables
        items = {"global_step": self._global_step, "model": self._model}
        if self._average is not None and any(key.startswith("average/") for key in saved):
            items["average"] = self._average.state
        restore.read_items(manifest.prefix(directory, step), items)
        if self._average is not None and "average" not in items:
            self._average.reset()

    @collective
    def after_restore(self, report: RestoreReport) -> None:
        """Continues what a restored checkpoint holds: the data, and what each replica had if there are as many."""
        self._train_iterator.reset()
        lacking = [*report.missing, *(mismatch.live for mismatch in report.wrong_shape)]
        if not any(spec.key.startswith(restore.REPLICA_VALUES) for spec in lacking):
            self._replica_values.give()

    @collective
    def use_configured_optimizer(self) -> None:
        """Gives the optimizer the settings of the config again, in place of those that a checkpoint has brought."""
        for variable, value in self._configured:
            variable.assign(value)
        if self._rate_scale is not None:
            self._rate_scale.set(self._scale)

    @collective
    def scale_learning_rate(self, scale: float) -> None:
        """Makes the learning rate `scale` times what is configured, from the next step on.

        Raises:
          FixedRateError: the optimizer's cannot be scaled.
        """
        if self._rate_scale is None:
            with self._strategy.scope():
                self._rate_scale = optimization.RateScale(self._optimizer)
        self._scale = scale
        self._rate_scale.set(scale)

    # Looking at it.

    def examples_of(self, num_steps: int) -> int:
        """Returns how many examples the last `num_steps` steps were for."""
        if not isinstance(self._task, MultiTask):
            data = getattr(self._config.task, "train_data", None)  # None where the caller gave a dataset
            return num_steps * getattr(data, "global_batch_size", 0)
        stop = self._train_iterator.position.start_step(int(self._global_step.numpy()))
        return self._task.examples_of_steps(stop, num_steps, _runtime(self._config, "seed", 0))

    def progress(self) -> dict[str, Any]:
        """Returns what changes while steps run, by the names that a watchdog's `Reading` has; any thread may ask."""
        count = self._input_mark.count
        return {
            "step": int(self._global_step.numpy()),
            "waiting_for_input": is_waiting(count),
            "waiting_for_peers": self.process_group.waits,
            "detail": (count, int(local_sum(self._examples_evaluated))),
        }

    def waits_for_input(self) -> bool | None:
        """Whether a training step waits for data now; None if none runs or nobody can tell. Any thread may ask."""
        return self._input_mark.waits()

    def non_finite_weights(self) -> list[str]:
        """Returns the names of trainable weights that hold a value that is not finite."""
        floating = [weight for weight in self._model.trainable_variables if weight.dtype.is_floating]
        return [weight.name for weight in floating if not tf.reduce_all(tf.math.is_finite(weight))]

    def mirrored_variables(self) -> Sequence[tf.Variable]:
        """Returns the variables that exist once on every replica and are to be the same there."""
        of_optimizer = [] if self._optimizer is None else self._optimizer.variables
        average = [] if self._average is None else self._average.values
        kept = [*self._model.variables, *(of_optimizer() if callable(of_optimizer) else of_optimizer)]
        return replicas.mirrored([*kept, *average, self._global_step], self.process_group.peers)

    @collective
    def checksums_of_replicas(self) -> list[list[str]]:
        """Returns, for each of `mirrored_variables`, a checksum of its value on every replica."""
        return replicas.checksums(self.mirrored_variables(), self.process_group.peers)

    @collective
    def values_of_replicas(self, number: int) -> list[tuple[str, Any]]:
        """Returns device and value, on every replica, of one of `mirrored_variables`."""
        return replicas.values(self.mirrored_variables()[number], self.process_group.peers)

    def _kept_per_replica(self) -> Sequence[tf.Variable]:
        of_metrics = metrics.variables_of([*self._train_metrics, self._train_loss])
        return [*super()._kept_per_replica(), *self._loss_trace.variables, *of_metrics]


def _runtime(config: Any, name: str, default: Any) -> Any:
    """Returns a field of the runtime section, which configs built by hand may lack."""
    return getattr(getattr(config, "runtime", None), name, default)
