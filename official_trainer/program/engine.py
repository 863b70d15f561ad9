"""A compiled model on the engine: one Trainer for calls that come one after the other, and the loop for each.

Owns: the config that a call amounts to, and where calls begin: at the step of the one before, or where the run
directory stands. Does not own: what the arguments of a call mean (`program.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from official_trainer.actions.schedule import ActionError, Schedule
from official_trainer.engine.hooks import Hooks
from official_trainer.engine.loop import Loop
from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import keras, tf
from official_trainer.program.callbacks import CallbacksAction, Epochs
from official_trainer.program.checkpoint import watch_all
from official_trainer.program.data import Own, Source
from official_trainer.program.prediction import Prediction
from official_trainer.program.settings import Settings, check_micro_batches, task_config
from official_trainer.program.task import ProgramTask
from official_trainer.program.trainer import NoStore, ProgramTrainer
from official_trainer.runs import train
from official_trainer.runs.build import best_checkpoint
from official_trainer.runs.job import Given, Job
from official_trainer.stopping import StopRequest
from official_trainer.tasks.autograph import do_not_convert
from official_trainer.tracking import Tracker

Method = TypeVar("Method", bound=Callable[..., Any])


class BusyError(UserError, RuntimeError):
    """A program is trained or evaluated by another thread."""

    exit_code = ExitCode.CONFIG

    def __init__(self) -> None:
        super().__init__("the program is training or evaluating in another thread; await that first")


def _one_at_a_time(method: Method) -> Method:
    """Has a method of the engine run in one thread at a time."""

    @functools.wraps(method)
    def run(self: Engine, *arguments: Any, **keywords: Any) -> Any:
        with self.running():
            return method(self, *arguments, **keywords)

    return cast(Method, run)


class Engine:
    """Trains and evaluates one compiled model."""

    def __init__(self, model: keras.Model, settings: Settings, data: Any = None) -> None:
        """Takes the model, and what was said beside Keras's arguments.

        Args:
          model: the model.
          settings: what was said.
          data: has `training` and `validation`, the data of a call; None makes a task that has.
        """
        self._model, self._settings, self._model_dir = model, settings, settings.model_dir
        self._data: Any = data or ProgramTask(task_config(), model)
        self._trainer: ProgramTrainer | None = None
        self._compiled: Any = None  # what the trainer was built for; another for each `compile`
        self._prediction: Prediction | None = None
        self._num_fits = 0
        self._first_step = 0  # of a trainer that is not built yet
        self._one_thread = threading.RLock()  # held by a call while it runs
        self._stop: StopRequest | None = None  # of the call that runs
        self._asked_to_stop = ""

    @property
    def seed(self) -> int:
        """Seed of the order of examples in the next call; another for each, or all would shuffle alike."""
        return self._settings.runtime.seed + self._num_fits

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the scope of the strategy that the model was built under."""
        scope: contextlib.AbstractContextManager[Any] = self._model.distribute_strategy.scope()
        return scope

    @_one_at_a_time
    def fit(
        self, data: Source, validation: Source | None, epochs: Epochs, callbacks: Any, validation_steps: int | None
    ) -> None:
        """Runs the loop over the epochs of a call; with a run directory, over those that are left of it.

        Args:
          data: to train on.
          validation: to evaluate on; None for no evaluations.
          epochs: the epochs, as if the call began at step 0.
          callbacks: a `keras.callbacks.CallbackList`.
          validation_steps: batches of an evaluation; None for all.
        """
        self._settings.check_validation(validation is not None)
        self._data.training, self._data.validation = data, validation
        self._check_batches(data)
        trainer = self._ready(data)
        if not self._model_dir:  # else the checkpoint says where all stands
            epochs = dataclasses.replace(epochs, first_step=int(trainer.global_step.numpy()))
        if validation is not None:
            validation_steps = validation_steps or validation.batches_per_epoch
        config = self._config(epochs, validation_steps)
        trainer.use_config(config)
        trainer.restart_data()
        watch_all(callbacks, trainer, epochs)
        action = CallbacksAction(callbacks, epochs, every=self._every)
        hooks: dict[str, Any] = {"summarizes_at": epochs.ends_at, "evaluates_at": action.wants_validation}
        with self._told(trainer, callbacks):
            try:
                if self._model_dir:
                    self._run_in_directory(action, self._job(config, Given(trainer=trainer, hooks=hooks)))
                else:
                    self._run_in_memory(trainer, action, hooks)
            except ActionError as error:
                raise error.__cause__ or error from None  # a callback's own error is for its user

    def _run_in_directory(self, action: CallbacksAction, job: Job) -> None:
        assert job.given is not None
        action.begin()
        job.given.trainer.actions[:] = [action]
        runtime = job.config.runtime
        with self._new_stop() as stop, job.given.trainer.evaluation.keeping_best(best_checkpoint(job)):
            stop.set_limits(grace_seconds=runtime.stop_grace_seconds, max_wall_seconds=runtime.max_wall_seconds)
            train.train(job, stop, is_alone=False)

    def _run_in_memory(self, trainer: ProgramTrainer, action: CallbacksAction, hooks: Mapping[str, Any]) -> None:
        if not isinstance(self._data.training, Own):  # which goes on where it was
            trainer.train_iterator.begin_next_epoch()
        self._num_fits += 1
        trainer.global_step.assign(action.begin())
        # Signals stay the caller's: there is nothing to save, and the process may be a notebook's.
        called = Hooks(actions=Schedule([action]), **hooks)
        Loop(trainer, NoStore(), Tracker(), evaluate="interval", hooks=called, stop=self._new_stop()).run()

    def ask_to_stop(self, reason: str) -> None:
        """Ends the call of `fit` that runs, or is about to, at its next window; any thread may ask."""
        self._asked_to_stop = reason
        if self._stop is not None:
            self._stop.reason = self._stop.reason or reason

    def _new_stop(self) -> StopRequest:
        self._stop = StopRequest()
        if self._asked_to_stop:
            self._stop.reason = self._asked_to_stop
        return self._stop

    def begin_at(self, step: int) -> None:
        """Has what is trained next begin at a global step: that of values which somebody has loaded."""
        if self._has_trainer:
            assert self._trainer is not None
            self._trainer.begin_at(step)
        else:
            self._first_step = step

    @_one_at_a_time
    def train_batch(self, batch: Source, *, reset_metrics: bool) -> dict[str, Any]:
        """Runs one step on the only batch of a source; returns what the metrics say then."""
        self._data.training = batch
        self._check_batches(batch)
        trainer = self._ready(batch)
        trainer.restart_data()
        trainer.train_iterator.begin_next_epoch()
        if reset_metrics:
            trainer.numbers.reset_training()
        with self.scope():
            trainer.run_steps(1)
        return trainer.numbers.current(training=True)

    @_one_at_a_time
    def evaluate(
        self, data: Source, steps: int | None, callbacks: Any = None, *, reset_metrics: bool = True
    ) -> dict[str, Any]:
        """Evaluates a source, or `steps` batches of it; returns what the metrics say then."""
        self._data.validation = data
        trainer = self._ready(data)
        trainer.restart_data()
        with self._told(trainer, callbacks, adds_up=not reset_metrics):
            logs = trainer.evaluate(steps or data.batches_per_epoch or -1)
        return trainer.numbers.evaluated(logs)

    @_one_at_a_time
    def predict(self, data: Source, steps: int | None, callbacks: Any) -> Any:
        """Returns the outputs for a source, or `steps` batches of it; see `Prediction.run`."""
        if self._prediction is None or self._prediction.is_traced is self._model.run_eagerly:
            with self.scope():
                self._prediction = Prediction(self._model, self._infer, seed=self._settings.runtime.seed)
        with self.scope(), self.weights_averaged():
            return self._prediction.run(data, steps, callbacks, every=self._every)

    def _infer(self, batch: Any) -> Any:
        """Returns the model's outputs for a batch; traced."""
        if type(self._model).predict_step is not keras.Model.predict_step:
            return self._model.predict_step(batch)
        return self._model(keras.utils.unpack_x_y_sample_weight(batch)[0], training=False)

    def weights_averaged(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which the model holds its averaged weights, if it was trained with averages."""
        return self._trainer.weights_averaged() if self._trainer is not None else contextlib.nullcontext()

    # Parts.

    @property
    def _every(self) -> int:
        """Steps from one call of callbacks for batches to the next."""
        steps = self._model._steps_per_execution  # of a model that is not compiled, None
        return 1 if steps is None else int(steps.numpy())

    @property
    def _has_trainer(self) -> bool:
        """Whether there is one, of what is compiled now."""
        return self._trainer is not None and self._compiled is self._model.compiled_loss

    def _ready(self, data: Source) -> ProgramTrainer:
        """Returns the trainer; the first call after `compile` has the data that the model is built with."""
        if not self._has_trainer:
            self._compiled = self._model.compiled_loss
            with self.scope():
                self._trainer = self._build_trainer(data, keeps_record=bool(self._model_dir))
            self._trainer.global_step.assign(self._first_step)
            self._first_step = 0
        assert self._trainer is not None
        return self._trainer

    def _build_trainer(self, data: Source, *, keeps_record: bool) -> ProgramTrainer:
        self._create_metrics(data.one_pass().element_spec)
        parts = (self._config(), self._data, self._model, self._model.optimizer)
        return ProgramTrainer(*parts, keeps_record=keeps_record)

    def _create_metrics(self, spec: Any) -> None:
        """Creates weights and metrics that wait for a first call, by tracing a step that never runs."""
        strategy = tf.distribute.get_strategy()

        @do_not_convert
        def step(batch: Any) -> None:
            strategy.run(self._data.validation_step, args=(batch, self._model))

        tf.function(step).get_concrete_function(spec)
        self._model.reset_metrics()

    def _check_batches(self, data: Source) -> None:
        """Refuses batches that the micro-batches of a step cannot share, as far as their sizes are known."""
        if (count := self._settings.trainer.gradient_accumulation_steps) > 1:
            compiles = self._settings.runtime.enable_xla or bool(self._model.jit_compile)
            with self.scope():
                replicas = tf.distribute.get_strategy().num_replicas_in_sync
                check_micro_batches(count * replicas, data.batch_sizes(), compiles=compiles)

    def _config(self, epochs: Epochs | None = None, validation_steps: int | None = None) -> Any:
        call = self._settings.call(
            end_step=0 if epochs is None else epochs.end_step,
            epoch_steps=None if epochs is None else epochs.steps,
            validation_steps=validation_steps,
            is_traced=not self._model.run_eagerly,
        )
        return self._settings.config(call, enable_xla=bool(self._model.jit_compile))

    def _job(self, config: Any, given: Given) -> Job:
        return Job(
            experiment=self._settings.experiment,
            resolved=self._settings.resolved(config),
            model_dir=self._model_dir,
            mode="train" if self._data.validation is None else "train_and_eval",
            quiet=True,  # Keras's progress bar says it
            argv=tuple(sys.argv),
            given=given,
        )

    @contextlib.contextmanager
    def _told(self, trainer: ProgramTrainer, callbacks: Any, *, adds_up: bool = False) -> Iterator[None]:
        """For a call: in the strategy's scope, evaluations call callbacks."""
        with trainer.in_call(callbacks, every=self._every, adds_up=adds_up), self.scope():
            yield

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """For a call that trains or evaluates: no other thread does meanwhile.

        Raises:
          BusyError: one does.
        """
        if not self._one_thread.acquire(blocking=False):
            raise BusyError
        try:
            if self._trainer is not None:
                self._trainer.process_group.use_stop(StopRequest())  # belongs to the thread that made it
            yield
        finally:
            self._stop, self._asked_to_stop = None, ""
            self._one_thread.release()
