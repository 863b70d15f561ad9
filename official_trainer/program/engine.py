"""The calls of a program on the engine: each of them runs the loop of experiments, or a step of its Trainer.

Owns: running one call at a time, and where each begins: at the step of the one before, or at the step of the run
directory. Does not own: the Trainer (`compiled_model.py`), or what the arguments of a call mean (`program.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from official_trainer.actions.schedule import ActionError, Schedule
from official_trainer.config.modes import TRAINING_MODES, Evaluates
from official_trainer.engine.loop import Loop
from official_trainer.engine.loop_parts import DueSteps, LoopParts
from official_trainer.program.callbacks import CallbacksAction
from official_trainer.program.calls import RunningCall
from official_trainer.program.checkpoint import watch_all
from official_trainer.program.compiled_model import CompiledModel
from official_trainer.program.data import Own, Source
from official_trainer.program.epochs import Epochs
from official_trainer.program.prediction import Prediction
from official_trainer.program.trainer import NoStore, ProgramTrainer
from official_trainer.runs import train
from official_trainer.runs.build import best_checkpoint
from official_trainer.runs.job import Job, Prebuilt
from official_trainer.stopping import StopRequest
from official_trainer.tracking import Tracker

Method = TypeVar("Method", bound=Callable[..., Any])


def _one_at_a_time(method: Method) -> Method:
    """Makes a method of the engine run in one thread at a time."""

    @functools.wraps(method)
    def run(self: Engine, *arguments: Any, **keywords: Any) -> Any:
        with self._call.running():
            if (trainer := self._compiled.trainer) is not None:
                trainer.process_group.use_stop(StopRequest())  # belongs to the thread that made it
            return method(self, *arguments, **keywords)

    return cast(Method, run)


class _EpochSteps(DueSteps):
    """Summaries at the end of each epoch, and evaluations where Keras's callbacks want them."""

    def __init__(self, config: Any, evaluate: Evaluates, epochs: Epochs, action: CallbacksAction) -> None:
        super().__init__(config, evaluate)
        self._epochs, self._action = epochs, action

    def is_summary_due(self, step: int) -> bool:
        return self._epochs.ends_at(step)

    def is_evaluation_due(self, step: int, *, is_last: bool) -> bool:
        return self._action.wants_validation(step)


class Engine:
    """Trains, evaluates and predicts with one compiled model."""

    def __init__(self, compiled: CompiledModel) -> None:
        self._compiled, self._call = compiled, RunningCall()
        self._prediction: Prediction | None = None
        self._num_fits = 0

    @property
    def seed(self) -> int:
        """Seed of the order of examples in the next call; each call has another, so that orders differ."""
        return self._compiled.settings.base.runtime.seed + self._num_fits

    def ask_to_stop(self, reason: str) -> None:
        """Ends the `fit` that runs, or is about to run, after its current window; for any thread."""
        self._call.ask_to_stop(reason)

    @_one_at_a_time
    def fit(
        self, data: Source, validation: Source | None, epochs: Epochs, callbacks: Any, validation_steps: int | None
    ) -> None:
        """Runs the loop over the epochs of a call; with a run directory, over those that remain.

        Args:
          data: to train on.
          validation: to evaluate on; None for no evaluations.
          epochs: the epochs, as if the call began at step 0.
          callbacks: a `keras.callbacks.CallbackList`.
          validation_steps: batches of an evaluation; None for all.
        """
        compiled, settings = self._compiled, self._compiled.settings
        compiled.record_training(data)
        settings.check_validation(validation is not None)
        compiled.data.use_for_training(data)
        compiled.data.use_for_validation(validation)
        compiled.check_batches(data)
        trainer = compiled.prepare_trainer(data)
        if not settings.model_dir:  # else the checkpoint has the step
            epochs = dataclasses.replace(epochs, first_step=int(trainer.global_step.numpy()))
        if validation is not None:
            validation_steps = validation_steps or validation.batches_per_epoch
        config = settings.config(compiled.model, epochs, validation_steps)
        trainer.use_config(config)
        trainer.restart_data()
        watch_all(callbacks, trainer, epochs)
        action = CallbacksAction(callbacks, epochs, every=compiled.every)
        with self._in_call(trainer, callbacks):
            try:
                if settings.model_dir:
                    due = _EpochSteps(config.trainer, TRAINING_MODES[self._mode], epochs, action)
                    self._run_in_directory(action, self._job(config, Prebuilt(trainer=trainer, due=due)))
                else:
                    self._run_in_memory(trainer, action, _EpochSteps(config.trainer, "interval", epochs, action))
            except ActionError as error:
                raise error.__cause__ or error from None  # the error of a callback, as Keras raises it

    def _run_in_directory(self, action: CallbacksAction, job: Job) -> None:
        assert job.prebuilt is not None
        action.begin()
        job.prebuilt.trainer.actions[:] = [action]
        runtime = job.config.runtime
        with self._call.new_stop() as stop, job.prebuilt.trainer.evaluation.keeping_best(best_checkpoint(job)):
            stop.set_limits(grace_seconds=runtime.stop_grace_seconds, max_wall_seconds=runtime.max_wall_seconds)
            train.train(job, stop, is_whole_command=False)

    def _run_in_memory(self, trainer: ProgramTrainer, action: CallbacksAction, due: DueSteps) -> None:
        if not isinstance(self._compiled.data.training, Own):  # an experiment's data continues where it was
            trainer.train_iterator.begin_next_epoch()
        self._num_fits += 1
        trainer.global_step.assign(action.begin())
        # The caller keeps handling signals: there is nothing to save, and the process may be a notebook's.
        parts = LoopParts(
            trainer=trainer,
            store=NoStore(),
            metric_writer=Tracker(),
            due=due,
            actions=Schedule([action]),
            stop=self._call.new_stop(),
        )
        Loop(parts).run()

    @property
    def _mode(self) -> str:
        return "train" if self._compiled.data.validation is None else "train_and_eval"

    def _job(self, config: Any, prebuilt: Prebuilt) -> Job:
        settings = self._compiled.settings
        return Job(
            experiment=settings.experiment,
            resolved=settings.resolved(config),
            model_dir=settings.model_dir,
            mode=self._mode,
            quiet=True,  # Keras's progress bar shows it
            argv=tuple(sys.argv),
            prebuilt=prebuilt,
        )

    @_one_at_a_time
    def train_batch(self, batch: Source, *, reset_metrics: bool) -> dict[str, Any]:
        """Runs one step on the only batch of a source; returns the metrics after it."""
        compiled = self._compiled
        compiled.record_training(batch)
        compiled.data.use_for_training(batch)
        compiled.check_batches(batch)
        trainer = compiled.prepare_trainer(batch)
        trainer.restart_data()
        trainer.train_iterator.begin_next_epoch()
        if reset_metrics:
            trainer.numbers.reset_training()
        with compiled.scope():
            trainer.run_steps(1)
        return trainer.numbers.current(training=True)

    @_one_at_a_time
    def evaluate(
        self, data: Source, steps: int | None, callbacks: Any = None, *, reset_metrics: bool = True
    ) -> dict[str, Any]:
        """Evaluates a source, or `steps` batches of it; returns the metrics after it."""
        self._compiled.data.use_for_validation(data)
        trainer = self._compiled.prepare_trainer(data)
        trainer.restart_data()
        with self._in_call(trainer, callbacks, adds_up=not reset_metrics):
            logs = trainer.evaluate(steps or data.batches_per_epoch or -1)
        return trainer.numbers.evaluated(logs)

    @_one_at_a_time
    def predict(self, data: Source, steps: int | None, callbacks: Any) -> Any:
        """Returns the outputs for a source, or `steps` batches of it; see `Prediction.run`."""
        compiled = self._compiled
        with compiled.scope():
            if self._prediction is None or self._prediction.is_traced is compiled.model.run_eagerly:
                self._prediction = Prediction(compiled.model, compiled.infer, seed=compiled.settings.base.runtime.seed)
            with compiled.weights_averaged():
                return self._prediction.run(data, steps, callbacks, every=compiled.every)

    @contextlib.contextmanager
    def _in_call(self, trainer: ProgramTrainer, callbacks: Any, *, adds_up: bool = False) -> Iterator[None]:
        """For a call, in the strategy's scope: evaluations call callbacks."""
        with trainer.in_call(callbacks, every=self._compiled.every, adds_up=adds_up), self._compiled.scope():
            yield
