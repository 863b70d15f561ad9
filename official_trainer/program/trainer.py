"""What a Program brings to the loop: its Task and its Trainer.

Owns: a training step and an evaluation step made of Keras's own pieces (`compute_loss`, `compute_metrics`), so that
their numbers are Keras's; a model's own `train_step` and `test_step` are called in their place; the numbers that
callbacks get; evaluations that call callbacks; no checks for values that are not finite where no checkpoints are kept.
Does not own: data (`data.py`), rewards (`rewards.py`), calling callbacks while training (`callbacks.py`), or the loop.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from official_trainer.engine import windows
from official_trainer.engine.inference import num_examples_of
from official_trainer.engine.step_context import TrainerOptions
from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import keras, tf
from official_trainer.program import keras_fit
from official_trainer.program.data import Batches, CallData, unpacked
from official_trainer.program.epochs import Epochs
from official_trainer.program.rows import share_of
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tasks.task import Task
from official_trainer.tracking import numbers_in

BESIDE_METRICS = ("batch_loss", "smoothed_loss", "learning_rate")
"""Logs of training that the engine adds to the loss and the metrics; Keras has none of them."""

_trains: contextvars.ContextVar[bool] = contextvars.ContextVar("trains", default=False)


def in_training_step() -> bool:
    """Whether a training step is traced, or runs, in this thread."""
    return _trains.get()


class ProgramTask(Task):
    """Trains a compiled model on the data of the call that runs."""

    unsaved_state = ("task/_step_logs/*",)  # each step sets them

    def __init__(
        self,
        params: Any,
        model: keras.Model,
        data: CallData,
        *,
        compute_loss: Callable[..., tf.Tensor],
        compute_metrics: Callable[..., Mapping[str, Any]] | None,
    ) -> None:
        """Takes methods of the Program, which a user's class may override.

        Args:
          params: the section of the config.
          model: compiled before the first step.
          data: of the call that runs.
          compute_loss: returns what is minimised.
          compute_metrics: if it is overridden, also in the model; None for Keras's, which is not called then.
        """
        super().__init__(params)
        self._fit = keras_fit.of(model)
        self._model, self._data = model, data
        self._compute_loss, self._compute_metrics = compute_loss, compute_metrics
        self._step_logs: dict[bool, dict[str, tf.Variable]] = {True: {}, False: {}}  # of training, and of evaluations

    @property
    def metric_directions(self) -> Mapping[str, str]:  # type: ignore[override]
        """Those of the losses, of which Keras's means declare none."""
        outputs = getattr(self._model, "output_names", None) or ()
        return dict.fromkeys(["loss", *(f"{output}_loss" for output in outputs)], "min")

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        """Returns the batches of the call that runs: endless to train on, one pass to evaluate on."""
        batches = self._data.training if params.is_training else self._data.validation
        # Metrics of evaluations are built before there are any, with batches of the same structure.
        batches = batches or self._data.training or self._data.validation
        assert batches is not None
        return batches.build_inputs(params, input_context, weighted=params.is_training)

    @do_not_convert
    def train_step(
        self, inputs: Any, model: keras.Model, optimizer: keras.optimizers.Optimizer, metrics: Any = None
    ) -> dict[str, Any]:
        """Runs Keras's training step, or the model's own."""
        inputs, share = share_of(inputs)
        if self._has_own_step:
            logs = self._keep(True, convert(model.train_step)(inputs))
        else:
            x, y, weight = unpacked(inputs)
            with tf.GradientTape() as tape:
                outputs = model(x, training=True)
                trains = _trains.set(True)
                try:
                    loss = self._loss(x, y, outputs, weight)
                finally:
                    _trains.reset(trains)
                updated = loss if share is None or keras_fit.adds_up(model) else loss * share
            self._fit.minimize(optimizer, updated, model, tape)
            self._update_metrics(True, (x, y, outputs, weight))
            logs = {self.loss: loss}
        return logs

    @do_not_convert
    def validation_step(self, inputs: Any, model: keras.Model, metrics: Any = None) -> dict[str, Any]:
        """Runs Keras's evaluation step, or the model's own."""
        if keras_fit.overrides(model, "test_step"):
            return self._keep(False, convert(model.test_step)(inputs))
        x, y, weight = unpacked(inputs)
        outputs = model(x, training=False)
        loss = self._loss(x, y, outputs, weight)
        self._update_metrics(False, (x, y, outputs, weight))
        return {self.loss: loss}

    def _loss(self, x: Any, y: Any, outputs: Any, weight: Any) -> tf.Tensor:
        """Returns what the step minimises: Keras's loss, minus the reward."""
        loss = convert(self._compute_loss)(x, y, outputs, weight)
        self._fit.measure_loss(self._model, loss, x)
        return loss

    def _update_metrics(self, training: bool, batch: tuple[Any, Any, Any, Any]) -> None:
        if self._compute_metrics is not None:
            self._keep(training, convert(self._compute_metrics)(*batch))
        else:
            self._fit.update_metrics(self._model, batch)

    def _keep(self, training: bool, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Keeps the results of a model's own step; returns the loss for the engine."""
        for name, value in logs.items():
            value = tf.convert_to_tensor(value)
            if name not in self._step_logs[training]:
                # Results of metrics are equal on all replicas; other numbers differ.
                aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
                if value.dtype.is_floating:
                    aggregation = tf.VariableAggregation.MEAN
                with tf.init_scope():
                    self._step_logs[training][name] = tf.Variable(
                        tf.zeros(value.shape, value.dtype),
                        trainable=False,
                        synchronization=tf.VariableSynchronization.ON_READ,
                        aggregation=aggregation,
                    )
            self._step_logs[training][name].assign(value)
        return {self.loss: tf.cast(logs.get(self.loss, 0.0), tf.float32)}

    @property
    def _has_own_step(self) -> bool:
        return keras_fit.overrides(self._model, "train_step")

    # The numbers that callbacks and the history get, under Keras's names.

    def reported(self, logs: Mapping[str, Any], *, training: bool) -> dict[str, Any]:
        """Returns the entries of flat logs for callbacks and the history, in Keras's order."""
        if step_logs := self._step_logs[training]:
            return {name: logs[name] for name in step_logs if name in logs}
        if training and self._has_own_step:  # its names are unknown until it runs after a restart
            return {name: value for name, value in logs.items() if name not in ("training_loss", *BESIDE_METRICS)}
        reported: dict[str, Any] = {}
        for metric in self._model.metrics:
            reported |= {name: logs[key] for name, key in keras_fit.names(metric).items() if key in logs}
            inner = {name.removeprefix(f"{metric.name}/"): name for name in logs if name.startswith(f"{metric.name}/")}
            reported |= {name: logs[key] for name, key in inner.items()}  # of a metric with several numbers
        return reported

    def current(self, *, training: bool) -> dict[str, Any]:
        """Returns the current results of the metrics: numbers of Python, or arrays."""
        results = keras_fit.results(self._model)
        step_logs = self.step_logs(training=training)
        return step_logs or {name: _of_python(value) for name, value in results.items()}

    def step_logs(self, *, training: bool) -> dict[str, Any]:
        """Returns the last results of a model's own step; empty for Keras's steps, which return all metrics."""
        return {name: _of_python(variable) for name, variable in self._step_logs[training].items()}


def _of_python(value: Any) -> Any:
    value = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    return value.item() if value.ndim == 0 else value


class ProgramTrainer(Trainer):
    """A Trainer whose evaluations call callbacks.

    Size: it inherits the methods and fields of a Trainer, which the loop and actions use.

    Attributes:
      keeps_record: whether there is a run directory. Without one nothing is measured that Keras does not measure, and
        losses and weights are not checked for values that are not finite: Keras trains on.
    """

    def __init__(self, *args: Any, keeps_record: bool) -> None:
        """Takes the config, a `ProgramTask`, the model and the optimizer; and whether there is a run directory."""
        options = TrainerOptions(measures_loss=keeps_record, as_fit=True)
        super().__init__(*args, options=options)  # type: ignore[misc]
        self.keeps_record = keeps_record
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self._num_examples = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=first)
        self._num_reported = 0
        self._callbacks: Any = None
        self._epochs: Epochs | None = None
        self._validation = Batches()
        self._adds_up = False

    @contextlib.contextmanager
    def in_call(
        self, callbacks: Any, epochs: Epochs | None = None, *, validation: Batches | None, adds_up: bool = False
    ) -> Iterator[None]:
        """For a call of a Program, in the strategy's scope.

        Args:
          callbacks: a `keras.callbacks.CallbackList`, or None.
          epochs: of a call that trains; its metrics start anew with each.
          validation: what is evaluated; None for nothing.
          adds_up: whether an evaluation adds to the current values of its metrics, instead of resetting them.
        """
        self._callbacks, self._epochs = callbacks, epochs
        self._adds_up, self._validation = adds_up, validation or Batches()
        try:
            with self.strategy.scope():
                yield
        finally:
            self._callbacks, self._epochs = None, None
            self._adds_up, self._validation = False, Batches()

    # Callbacks of Keras read its counters. Not in a task's step: one that a replica may skip cannot count.

    @do_not_convert
    def next_train_inputs(self, iterator: Any) -> Any:
        inputs = super().next_train_inputs(iterator)
        with tf.control_dependencies(tf.nest.flatten(inputs, expand_composites=True)[:1]):
            keras_fit.of(self.model).count(self.model, training=True)
            if self.keeps_record:
                sizes = [num_examples_of(replica) for replica in self.strategy.experimental_local_results(inputs)]
                self._num_examples.assign_add(tf.cast(tf.add_n(sizes), tf.int64))
        return inputs

    @do_not_convert
    def next_eval_inputs(self, iterator: Any) -> tuple[Any, dict[str, Any]]:
        inputs, logs = super().next_eval_inputs(iterator)
        with tf.control_dependencies(tf.nest.flatten(inputs, expand_composites=True)[:1]):
            keras_fit.of(self.model).count(self.model, training=False)
        return inputs, logs

    def examples_of(self, num_steps: int) -> int:
        """Returns the number of examples since the last call."""
        before, self._num_reported = self._num_reported, int(self._num_examples.numpy())
        return self._num_reported - before

    def initialize(self) -> None:
        """Starts averages from the weights, the first time; a second call of `fit` continues with them."""
        if int(self.global_step.numpy()) == 0:
            super().initialize()

    def begin_at(self, step: int) -> None:
        """Continues from a step with weights that the caller has loaded; averages begin with these."""
        self.global_step.assign(step)
        super().initialize()

    def weights_averaged(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context with averaged weights; before the first step these are the weights as they are."""
        is_trained = int(self.global_step.numpy()) > 0
        return super().weights_averaged() if is_trained else contextlib.nullcontext()

    def run_steps(self, num_steps: int, *, publish: bool = False, position: Sequence[int] | None = None) -> int:
        if self._epochs is not None and self._epochs.epoch_and_batch(self.context.step)[1] == 0:
            self.model.reset_metrics()  # here too, because steps that are repeated after a rollback call no callbacks
        return super().run_steps(num_steps, publish=publish, position=position)

    def train_loop_end(self) -> dict[str, Any]:
        return {**super().train_loop_end(), **self.task.step_logs(training=True)}

    def eval_begin(self) -> Any:
        self._validation.rewind()
        state = None if self._adds_up else super().eval_begin()
        keras_fit.of(self.model).reset_count(self.model, training=False)  # callbacks of Keras read it
        if self._callbacks is not None:
            self._callbacks.on_test_begin()
        self._validation.begin_epoch()
        return state

    def create_eval_loop_fn(self, has_state: bool) -> Callable[[Any, int, Any], Any]:
        """Returns the loop of an evaluation, which stops for callbacks where some of them look at its batches."""
        run_all = super().create_eval_loop_fn(has_state)
        is_traced, traces = not self.model.run_eagerly, self.context.traces
        run_steps = windows.stepping_loop(self.eval_step, traces, "eval", traced_step=is_traced, traced_loop=is_traced)

        def loop(iterator: Any, num_steps: int, state: Any) -> Any:
            callbacks, fit = self._callbacks, keras_fit.of(self.model)
            every = fit.steps_between_calls(self.model)
            listed = [] if callbacks is None else callbacks.callbacks
            if not any(fit.looks_at_batches(callback, training=False) for callback in listed):
                return run_all(iterator, num_steps, state)
            done = 0
            with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
                while num_steps < 0 or done < num_steps:
                    count = every if num_steps < 0 else min(every, num_steps - done)
                    callbacks.on_test_batch_begin(done)
                    run_steps(iterator, tf.constant(count))
                    done += count
                    last = fit.last_batch(self.model, done - 1)
                    callbacks.on_test_batch_end(last, self.task.current(training=False))
            return state

        return loop

    def eval_end(self, aggregated_logs: Any = None) -> dict[str, Any]:
        logs = super().eval_end(aggregated_logs)
        self._validation.end_epoch()
        if self._callbacks is not None:
            self._callbacks.on_test_end(numbers_in(self.task.current(training=False)))
        return {**logs, **self.task.step_logs(training=False)}
