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

from official_trainer import training
from official_trainer.autograph import as_written
from official_trainer.config import (
    DataConfig,
    ExperimentConfig,
    ExportConfig,
    Resolved,
    RuntimeConfig,
    TaskConfig,
    TrainerConfig,
    provenance,
)
from official_trainer.errors import ExitCode, UserError
from official_trainer.hooks import Hooks
from official_trainer.job import Given, Job
from official_trainer.lazy import keras, tf
from official_trainer.loop import Loop
from official_trainer.program.callbacks import CallbacksAction, Epochs
from official_trainer.program.checkpoint import watch_all
from official_trainer.program.data import Source
from official_trainer.program.task import ProgramTask
from official_trainer.program.trainer import NoStore, ProgramTrainer
from official_trainer.schedule import ActionError, Schedule
from official_trainer.stopping import StopRequest
from official_trainer.tracking import Tracker

Method = TypeVar("Method", bound=Callable[..., Any])

_EXPERIMENT = "Program"
_NEVER = 2**62  # an interval that no run gets to


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

    def __init__(self, model: keras.Model, model_dir: str, seed: int) -> None:
        """Takes the model, the run directory (empty for none) and the seed of the order of examples."""
        self._model, self._model_dir, self._seed = model, model_dir, seed
        self._task = ProgramTask(_task_config(), model)
        self._trainer: ProgramTrainer | None = None
        self._compiled: Any = None  # what the trainer was built for; another for each `compile`
        self._num_fits = 0
        self._first_step = 0  # of a trainer that is not built yet
        self._one_thread = threading.RLock()  # held by a call while it runs
        self._stop: StopRequest | None = None  # of the call that runs
        self._asked_to_stop = ""

    @property
    def seed(self) -> int:
        """Seed of the order of examples in the next call; another for each, or all would shuffle alike."""
        return self._seed + self._num_fits

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
        self._task.training, self._task.validation = data, validation
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
        with self._new_stop() as stop:
            training.train(job, stop, is_alone=False)

    def _run_in_memory(self, trainer: ProgramTrainer, action: CallbacksAction, hooks: Mapping[str, Any]) -> None:
        trainer.feed.begin_next_epoch()
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
            self._trainer.global_step.assign(step)
        else:
            self._first_step = step

    @_one_at_a_time
    def train_batch(self, batch: Source, *, reset_metrics: bool) -> dict[str, Any]:
        """Runs one step on the only batch of a source; returns what the metrics say then."""
        self._task.training = batch
        trainer = self._ready(batch)
        trainer.restart_data()
        trainer.feed.begin_next_epoch()
        if reset_metrics:
            self._model.reset_metrics()
        with self.scope():
            trainer.run_steps(1)
        return self._task.live_logs("train")

    @_one_at_a_time
    def evaluate(
        self, data: Source, steps: int | None, callbacks: Any = None, *, reset_metrics: bool = True
    ) -> dict[str, Any]:
        """Evaluates a source, or `steps` batches of it; returns what the metrics say then."""
        self._task.validation = data
        trainer = self._ready(data)
        trainer.restart_data()
        with self._told(trainer, callbacks):
            trainer.adds_up = not reset_metrics
            trainer.evaluate(steps or data.batches_per_epoch or -1)
        return self._task.live_logs("eval")

    # Parts.

    @property
    def _every(self) -> int:
        """Steps from one call of callbacks for batches to the next."""
        return int(self._model._steps_per_execution.numpy())

    @property
    def _has_trainer(self) -> bool:
        """Whether there is one, of what is compiled now."""
        return self._trainer is not None and self._compiled is self._model.compiled_loss

    def _ready(self, data: Source) -> ProgramTrainer:
        """Returns the trainer; the first call after `compile` has the data that the model is built with."""
        if not self._has_trainer:
            self._compiled = self._model.compiled_loss
            with self.scope():
                self._create_metrics(data.one_pass(1).element_spec)
                self._trainer = ProgramTrainer(self._config(), self._task, self._model, self._model.optimizer)
                self._trainer.checks_finite = bool(self._model_dir)  # there are checkpoints to keep whole
            self._trainer.global_step.assign(self._first_step)
            self._first_step = 0
        assert self._trainer is not None
        return self._trainer

    def _create_metrics(self, spec: Any) -> None:
        """Creates weights and metrics that wait for a first call, by tracing a step that never runs."""
        strategy = tf.distribute.get_strategy()

        @as_written
        def step(batch: Any) -> None:
            strategy.run(self._task.validation_step, args=(batch, self._model))

        tf.function(step).get_concrete_function(spec)
        self._model.reset_metrics()

    def _config(self, epochs: Epochs | None = None, validation_steps: int | None = None) -> ExperimentConfig:
        is_traced = not self._model.run_eagerly
        trainer = TrainerConfig(
            train_steps=0 if epochs is None else epochs.end_step,
            steps_per_loop=_NEVER,
            summary_interval=_NEVER,
            validation_interval=_NEVER,
            checkpoint_interval=_NEVER if epochs is None else epochs.steps,
            validation_steps=validation_steps or -1,
            train_tf_function=is_traced,
            train_tf_while_loop=is_traced,
            eval_tf_function=is_traced,
            eval_tf_while_loop=is_traced,
            on_data_end="stop",  # as Keras, which warns
            export=ExportConfig(at_end=False),
        )
        return ExperimentConfig(task=_task_config(), trainer=trainer, runtime=RuntimeConfig(seed=self._seed))

    def _job(self, config: ExperimentConfig, given: Given) -> Job:
        return Job(
            experiment=_EXPERIMENT,
            resolved=Resolved(config, _EXPERIMENT, provenance.Trail(config, _EXPERIMENT)),
            model_dir=self._model_dir,
            mode="train" if self._task.validation is None else "train_and_eval",
            quiet=True,  # Keras's progress bar says it
            argv=tuple(sys.argv),
            given=given,
        )

    @contextlib.contextmanager
    def _told(self, trainer: ProgramTrainer, callbacks: Any) -> Iterator[None]:
        """For a call: in the strategy's scope, callbacks hear of evaluations."""
        trainer.callbacks, trainer.every = callbacks, self._every
        try:
            with self.scope():
                yield
        finally:
            trainer.callbacks, trainer.adds_up = None, False

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
                self._trainer.stop = StopRequest()  # belongs to the thread that made it
            yield
        finally:
            self._stop, self._asked_to_stop = None, ""
            self._one_thread.release()


def _task_config() -> TaskConfig:
    return TaskConfig(train_data=DataConfig(is_training=True), validation_data=DataConfig(is_training=False))
