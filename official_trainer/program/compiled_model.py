"""A compiled model on the engine: one Trainer for each `compile`, and calls that run the loop of experiments.

Owns: building the Trainer and the variables that need data; where each call begins: at the step of the one before, or
at the step of the run directory; the outputs for all examples, in Keras's structure. Does not own: the config of a call
(`settings.py`), what its arguments mean (`program.py`), running the loop (`running.py`), or the inference step
(`engine/inference.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from official_trainer.actions.schedule import ActionError, Schedule
from official_trainer.config.modes import TRAINING_MODES, Evaluates
from official_trainer.engine.events import DueSteps
from official_trainer.engine.inference import Columns, Inference
from official_trainer.engine.traces import batch_signature
from official_trainer.engine.train_iterator import DatasetBuilder
from official_trainer.inputs import DataError, InputContext
from official_trainer.lazy import keras, tf
from official_trainer.program import keras_fit
from official_trainer.program.callbacks import CallbacksAction
from official_trainer.program.data import ArgumentError, Batches, CallData, unpacked
from official_trainer.program.epochs import Epochs
from official_trainer.program.running import run_in_directory, run_in_memory
from official_trainer.program.settings import Settings
from official_trainer.program.trainer import ProgramTrainer
from official_trainer.runs.build import best_checkpoint
from official_trainer.runs.job import Job, Prebuilt
from official_trainer.runs.mistakes import report
from official_trainer.runs.recorded import PROGRAM
from official_trainer.stopping import StopRequest
from official_trainer.tasks import vocabularies
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tasks.variables import has_unbuilt_layers
from official_trainer.user_code import during


class _EpochSteps(DueSteps):
    """Summaries at the end of each epoch, and evaluations where Keras's callbacks want them."""

    def __init__(self, config: Any, evaluate: Evaluates, epochs: Epochs, action: CallbacksAction) -> None:
        super().__init__(config, evaluate)
        self._epochs, self._action = epochs, action

    def is_summary_due(self, step: int) -> bool:
        return self._epochs.ends_at(step)

    def is_evaluation_due(self, step: int, *, is_last: bool) -> bool:
        return self._action.wants_validation(step)


class PredictionData:
    """The batches of one call of `predict`, which a `DatasetBuilder` takes as it takes a task's."""

    def __init__(self, data: Batches, steps: int | None) -> None:
        """Takes the data of the call, and its number of batches; None for all."""
        self._data, self._steps = data, steps

    def build_inputs(self, params: Any, input_context: InputContext) -> tf.data.Dataset:
        """Returns the batches, in dictionaries: of a tuple the inference step would take the labels away."""
        batches = self._data.build_inputs(params, input_context)
        if self._steps is not None:
            batches = batches.take(self._steps * input_context.elements_per_step)
        unpacked(batches.element_spec)  # refuses other batches here, and not where AutoGraph hides why
        return batches.map(lambda *batch: {"batch": batch})


class Prediction:
    """Predicts with one model, under the strategy in scope at construction."""

    def __init__(self, model: keras.Model, infer: Callable[[Any], Any], *, seed: int) -> None:
        """Takes the model, a function that returns its outputs for a batch (traced), and the seed of random numbers."""
        self._model, self._infer, self._seed = model, infer, seed
        self.is_traced = not model.run_eagerly
        self._inference = Inference(self, model, seed=seed, use_tf_function=self.is_traced)
        self._dtypes: Any = None  # NumPy's, in the structure that the model returns

    def run(self, data: Batches, steps: int | None, callbacks: Any) -> Any:
        """Returns the outputs for each example: arrays `[examples, …]` in the structure that the model returns.

        One batch at a time is on the device; its outputs are on the host before the next batch is read.

        Args:
          data: batches; only x is used.
          steps: number of batches; None for all.
          callbacks: a `keras.callbacks.CallbackList`.

        Raises:
          DataError: there is no batch.
          OutputError: an output has no row for each example.
        """
        model, fit = self._model, keras_fit.of(self._model)
        num_batches = steps or data.batches_per_epoch
        every = fit.steps_between_calls(model)
        callbacks.on_predict_begin()
        data.begin_epoch()
        builder = DatasetBuilder(PredictionData(data, steps), data.section, training=False, seed=self._seed)
        if self.is_traced and has_unbuilt_layers(model):
            _create_variables(convert(self.inference_step), model, builder.element_spec())
        batches = self._inference.batches(builder.build())
        outputs: list[list[Any]] = []  # from one call of callbacks to the next
        done = 0
        while num_batches is None or done < num_batches:
            callbacks.on_predict_batch_begin(done)
            most = every if num_batches is None else min(every, num_batches - done)
            predicted = [_in_order(columns) for _, columns in itertools.islice(batches, most)]
            if not predicted:
                break
            done += len(predicted)
            outputs.append(_joined(predicted))
            callbacks.on_predict_batch_end(fit.last_batch(model, done - 1), {"outputs": self._packed(outputs[-1])})
        if not outputs:
            raise DataError("there is nothing to predict: the data has no batch")
        data.end_epoch()
        callbacks.on_predict_end()
        return self._packed(_joined(outputs))

    def inference_step(self, inputs: Any, model: Any) -> dict[str, Any]:  # AutoGraph evaluates what annotations name
        """Returns the model's outputs, named by their positions; traced."""
        outputs = self._infer(inputs["batch"])
        self._dtypes = tf.nest.map_structure(lambda output: output.dtype.as_numpy_dtype, outputs)
        return {str(position): output for position, output in enumerate(tf.nest.flatten(outputs))}

    def _packed(self, outputs: list[Any]) -> Any:
        """Returns outputs in the structure and with the dtypes that the model returns; bfloat16 comes as float32."""
        dtypes = tf.nest.flatten(self._dtypes)
        typed = [output.astype(dtype, copy=False) for output, dtype in zip(outputs, dtypes, strict=True)]
        return tf.nest.pack_sequence_as(self._dtypes, typed)


class CompiledModel:
    """Trains, evaluates and predicts with a model that is compiled, or will be.

    Attributes:
      model: the Keras model.
      settings: what all its calls have in common.
    """

    def __init__(self, model: keras.Model, settings: Settings, task: Any, data: CallData) -> None:
        """Takes the model, a Task for it, and where the Task finds the data of a call."""
        self.model, self.settings = model, settings
        self._fit = keras_fit.of(model)
        self._calling = threading.RLock()
        self._task, self._data = task, data
        self._trainer: ProgramTrainer | None = None
        self._trained: Any = None  # what the trainer is for; each `compile` makes another
        self._first_step = 0  # of a trainer that is not built yet
        self._prediction: Prediction | None = None
        self._num_fits = 0

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the scope of the strategy that the model was built under."""
        scope: contextlib.AbstractContextManager[Any] = self.model.distribute_strategy.scope()
        return scope

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """For a block that loads weights, in that scope; where other vocabularies come, steps are traced again."""
        before = vocabularies.texts(self.model)
        with self.scope():
            yield
        if vocabularies.texts(self.model) != before:
            self._first_step = 0 if self._trainer is None else int(self._trainer.global_step.numpy())
            self._trainer = self._prediction = None

    @property
    def seed(self) -> int:
        """Seed of the order of examples in the next call; each call has another, so that orders differ."""
        return self.settings.base.runtime.seed + self._num_fits

    def begin_at(self, step: int) -> None:
        """Makes training begin at the global step of weights that were loaded."""
        if self._trainer is not None and self._is_current:
            self._trainer.begin_at(step)
        else:
            self._first_step = step

    def weights_averaged(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which the model has its averaged weights, if it was trained with averages."""
        return self._trainer.weights_averaged() if self._trainer is not None else contextlib.nullcontext()

    # Building the Trainer.

    def _infer(self, batch: Any) -> Any:
        """Returns the model's outputs for a batch; traced."""
        if keras_fit.overrides(self.model, "predict_step"):
            return self.model.predict_step(batch)
        return self.model(unpacked(batch)[0], training=False)

    def _build_trainer(self, data: Batches) -> ProgramTrainer:
        """Builds the trainer, and the model's variables from `data`; in the strategy's scope."""
        model, spec, step = self.model, data.element_spec, self._task.validation_step
        evaluates = self._data.validation is not None or not keras_fit.overrides(model, "train_step")
        if not evaluates:  # it may be impossible, without a loss or without `call`
            step = lambda batch, model: (self._infer if model.run_eagerly else convert(model.train_step))(batch)  # noqa: E731
        try:
            with during("tracing the first step", task=self._task, batch=lambda: batch_signature(spec)):
                self._fit.build(model, spec)
                if not model.run_eagerly:
                    _create_variables(step, model, spec)
                elif evaluates or keras_fit.overrides(model, "call"):  # it may look at values, and cannot be traced
                    for batch in data.first_batch():
                        tf.distribute.get_strategy().run(step, args=(batch, model))
        except (AttributeError, TypeError, ValueError) as error:
            if model.loss is None or unpacked(spec)[1] is not None:
                raise
            raise ArgumentError(
                "y is missing: the data has no targets to compute the loss of; give y, or data with batches (x, y)"
            ) from error
        self._fit.check_outputs(model)
        model.reset_metrics()
        config, keeps_record = self.settings.config(model), bool(self.settings.model_dir)
        return ProgramTrainer(config, self._task, model, model.optimizer, keeps_record=keeps_record)

    # The Trainer.

    @property
    def _is_current(self) -> bool:
        """Whether the trainer is for the last `compile`."""
        return self._trained is self._fit.compiled(self.model)

    def _prepare_trainer(self, data: Batches) -> ProgramTrainer:
        """Returns the trainer, which reads the data of this call; the first call after `compile` builds it."""
        if self._trainer is None or not self._is_current:
            self._trained = self._fit.compiled(self.model)
            with self.scope():
                self._trainer = self._build_trainer(data)
            self._trainer.global_step.assign(self._first_step)
            self._first_step = 0
        self._trainer.train_iterator.reset()
        self._trainer.eval_dataset = None
        return self._trainer

    # Calls.

    @contextlib.contextmanager
    def _in_call(self) -> Iterator[None]:
        """For a block that trains or evaluates; in it layers are trainable as they were at `compile`, as in Keras."""
        if not self._calling.acquire(blocking=False):  # of this thread it is free: a callback may evaluate
            raise ArgumentError("this Program trains or evaluates in another thread; await that call before the next")
        try:
            if self._trainer is not None:
                self._trainer.process_group.use_stop(StopRequest())
            with report.noted(), self._fit.as_compiled(self.model):
                yield
        finally:
            self._calling.release()

    def fit(
        self, data: Batches, validation: Batches | None, epochs: Epochs, callbacks: Any, validation_steps: int | None
    ) -> None:
        """Runs the loop over the epochs of a call; with a run directory, over those that remain.

        Args:
          data: to train on.
          validation: to evaluate on; None for no evaluations.
          epochs: the epochs, as if the call began at step 0.
          callbacks: a `keras.callbacks.CallbackList`.
          validation_steps: batches of an evaluation; None for all.
        """
        with self._in_call():
            settings = self.settings
            metric = settings.base.trainer.best_checkpoint_eval_metric
            if metric and validation is None:
                raise ArgumentError(
                    f"trainer.best_checkpoint_eval_metric={metric!r}: there is no evaluation with this metric; give "
                    "fit(validation_data=…)"
                )
            self._data.training, self._data.validation = data, validation
            trainer = self._prepare_trainer(data)
            if not settings.model_dir:  # else the checkpoint has the step
                epochs = dataclasses.replace(epochs, first_step=int(trainer.global_step.numpy()))
            if validation is not None:
                validation_steps = validation_steps or validation.batches_per_epoch
                if validation_steps is None and not validation.has_end:
                    raise ArgumentError("the validation data has no end; give validation_steps, the number of batches")
            trainer.use_config(settings.config(self.model, epochs, validation_steps))
            with trainer.in_call(callbacks, epochs, validation=validation):
                try:
                    self._run(trainer, epochs, CallbacksAction(callbacks, epochs, data))
                except ActionError as error:
                    raise error.__cause__ or error from None  # the error of a callback, as Keras raises it

    def _run(self, trainer: ProgramTrainer, epochs: Epochs, action: CallbacksAction) -> None:
        config, settings = trainer.config, self.settings
        mode = "train" if self._data.validation is None else "train_and_eval"
        due = _EpochSteps(config.trainer, TRAINING_MODES[mode], epochs, action)
        if not settings.model_dir:
            trainer.train_iterator.begin_next_epoch()
            self._num_fits += 1
            trainer.global_step.assign(action.begin(trainer))
            run_in_memory(trainer, due, Schedule([action]))
            return
        job = Job(
            experiment=PROGRAM,
            resolved=settings.resolved(config),
            model_dir=settings.model_dir,
            mode=mode,
            quiet=True,  # Keras's progress bar shows it
            argv=tuple(sys.argv),
            prebuilt=Prebuilt(trainer=trainer, due=due, actions=[action]),
        )
        action.begin(trainer)
        with trainer.evaluation.keeping_best(best_checkpoint(job)):
            run_in_directory(job)

    def train_batch(self, batch: Batches, *, reset_metrics: bool) -> dict[str, Any]:
        """Runs one step on the only batch of some data; returns the metrics after it."""
        with self._in_call():
            self._data.training = batch
            trainer = self._prepare_trainer(batch)
            trainer.train_iterator.begin_next_epoch()
            if reset_metrics:
                self.model.reset_metrics()
            with self.scope():
                trainer.run_steps(1)
            return trainer.task.current(training=True)

    def evaluate(
        self, data: Batches, steps: int | None, callbacks: Any = None, *, reset_metrics: bool = True
    ) -> dict[str, Any]:
        """Evaluates data, or `steps` batches of them; returns the metrics after it."""
        with self._in_call():
            self._data.validation = data
            trainer = self._prepare_trainer(data)
            with trainer.in_call(callbacks, validation=data, adds_up=not reset_metrics):
                trainer.evaluate(steps or data.batches_per_epoch or -1)
            return trainer.task.current(training=False)

    def predict(self, data: Batches, steps: int | None, callbacks: Any) -> Any:
        """Returns the outputs for data, or `steps` batches of them; see `Prediction.run`."""
        with report.noted(), self.scope():
            if self._prediction is None or self._prediction.is_traced is self.model.run_eagerly:
                self._prediction = Prediction(self.model, self._infer, seed=self.settings.base.runtime.seed)
            with self.weights_averaged():
                return self._prediction.run(data, steps, callbacks)


def _create_variables(step: Callable[[Any, Any], Any], model: keras.Model, spec: Any) -> None:
    """Creates weights and metrics that need a first call, by tracing `step(batch, model)`, which never runs."""
    strategy = tf.distribute.get_strategy()

    @do_not_convert
    def traced(batch: Any) -> None:
        strategy.run(step, args=(batch, model))

    tf.function(traced).get_concrete_function(spec)


def _in_order(columns: Columns) -> list[Any]:
    """Returns the outputs of `Prediction.inference_step` in the order of their positions."""
    return [columns[str(position)] for position in range(len(columns))]


def _joined(batches: list[list[Any]]) -> list[Any]:
    """Returns the concatenated rows of several batches, for each output."""
    return batches[0] if len(batches) == 1 else [np.concatenate(rows) for rows in zip(*batches, strict=True)]
