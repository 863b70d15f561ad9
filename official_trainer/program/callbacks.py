"""Keras callbacks in the engine's loop: each called in Keras's order, with Keras's logs.

Owns: calling callbacks at the steps of a call of `fit`, and what they keep across restarts. Does not own: what a
callback does, or stopping (`engine/loop.py`, as the action requests).

Callbacks that do not look at batches cost nothing between epochs: a window ends only where one of them is called.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from official_trainer.actions.action import Action, Run, Stop
from official_trainer.config import When
from official_trainer.lazy import keras
from official_trainer.program import keras_fit
from official_trainer.program.checkpoint import ProgramCheckpoint
from official_trainer.program.data import ArgumentError, Batches, check_kerases
from official_trainer.program.epochs import UNKNOWN_STEPS, Epochs, InEpochs
from official_trainer.user_code import during

_logger = logging.getLogger(__name__)

_BAR_SECONDS = 0.1


class CallbacksAction(Action):
    """Calls the callbacks of a call of `fit`.

    Size: where the loop is in the epochs and batches that callbacks see.
    """

    name = "keras_callbacks"

    def __init__(self, callbacks: Any, epochs: Epochs, data: Batches) -> None:
        """Takes a `keras.callbacks.CallbackList` with its model, the epochs of the call, and the data of training."""
        self._callbacks, self._epochs, self._data = callbacks, epochs, data
        self._model = callbacks.model
        self._fit = keras_fit.of(self._model)
        self._every = min(self._fit.steps_between_calls(self._model), epochs.steps)
        looks_at_batches = functools.partial(self._fit.looks_at_batches, training=True)
        for_batches = list(filter(looks_at_batches, callbacks.callbacks))
        # A progress bar needs some batches, not each.
        bar_class = self._fit.MODULE.callbacks.ProgbarLogger
        self._sees_batches = any(not isinstance(callback, bar_class) for callback in for_batches)
        self._kept = _CallbackState(callbacks)
        self._restored: Mapping[str, Any] = {}  # the state from the last checkpoint; empty for a run that begins
        self._checkpoints = [callback for callback in callbacks.callbacks if isinstance(callback, ProgramCheckpoint)]
        # Keras runs one more batch where `stop_training` is set before it.
        is_watched = lambda: self._sees_batches or bool(self._model.stop_training)  # noqa: E731
        others = [When(every=callback.every_steps) for callback in self._checkpoints if callback.every_steps]
        bar = [When(every_seconds=_BAR_SECONDS)] if for_batches and not self._sees_batches else []
        self.when = InEpochs(epochs=epochs, steps=self._every, is_watched=is_watched, any=(*bar, *others))
        self._epoch, self._is_open = epochs.first, False  # the epoch that runs, or ran last; whether it has not ended
        self._last_ended: int | None = None  # the last epoch that has ended, before a restart too
        self._logs: dict[str, Any] | None = None  # of that epoch, if it has ended in this process
        self._is_ending = False
        self._is_rolled_back = False
        self._run: Run | None = None
        self._first_step = 0

    def begin(self, trainer: Any) -> int:
        """Begins the call for each `ProgramCheckpoint`, and calls `on_train_begin` of the callbacks.

        To be called before the loop runs. Returns the step at which training begins, which callbacks may change.

        Raises:
          ArgumentError: two have the same names, and each would delete the other's checkpoints.
        """
        paths = set()
        for checkpoint in self._checkpoints:
            if checkpoint.directory_and_names in paths:
                what = f"two have filepath={checkpoint.filepath!r}; give one of them another"
                raise ArgumentError(f"ProgramCheckpoint: {what}")
            paths.add(checkpoint.directory_and_names)
        for checkpoint in self._checkpoints:
            checkpoint.watch(trainer, self._epochs)
        model, epochs = self._model, self._epochs
        self._data.rewind()
        model.stop_training = False
        self._fit.reset_count(model, training=True)  # callbacks look at it
        with during("calling on_train_begin of the callbacks", task=self):
            self._callbacks.on_train_begin()
        self._first_step = epochs.step_of(*self._fit.first_epoch_and_batch(model, epochs.steps, epochs.first))
        return self._first_step

    def on_start(self, run: Run) -> Stop | None:
        self._run, restored = run, self._restored
        self._kept.begin(restored)
        self._last_ended = restored.get("ended")
        data_ended = run.step > 0 and restored.get("data_ended") == run.step
        last = self._epochs.epoch_and_batch(run.step - 1)[0]
        ends = bool(restored) and self._epochs.ends_at(run.step)
        if (data_ended or ends) and self._last_ended != last:
            self._is_ending = True  # its evaluation has not run yet
            self._begin_epoch(last)
        elif not data_ended and run.step < self._epochs.end_step:
            self._begin(run.step)
        return Stop(reason=f"the data ended at step {run.step}") if data_ended else None

    def on_step(self, run: Run) -> Stop | None:
        if run.step == self._first_step and not self._restored:
            return None  # of a backup of Keras's, whose callbacks were called for this step before
        self._follow_rollback(run.step)
        _, batch = self._epochs.epoch_and_batch(run.step - 1)
        ends = self._epochs.ends_at(run.step)
        is_called = ends or (batch + 1) % self._every == 0
        logs = (
            run.trainer.task.reported(run.train_logs, training=True)
            if ends
            else run.trainer.task.current(training=True)
        )
        if is_called and self._sees_batches:
            self._callbacks.on_train_batch_end(self._fit.last_batch(self._model, batch), logs)
        elif not (ends or self._sees_batches):
            self._callbacks.on_train_batch_end(batch, logs)
        for checkpoint in self._checkpoints:
            checkpoint.on_step(run.step, logs)
        stop = self._stop()
        self._is_ending = stop is not None or ends
        if ends and stop is None and self._data.ends_before_validation:
            self._data.end_epoch(self._epoch - self._epochs.first)
        if not self._is_ending:
            if is_called:
                self._begin_batch(run.step)
        elif stop is None and not self._epochs.is_validated(self._epoch):
            stop = self._end_epoch(run, {})
        return stop  # the epoch ends after its summary

    def on_eval(self, run: Run, logs: Mapping[str, float]) -> Stop | None:
        reported = run.trainer.task.reported(logs, training=False)
        return self._end_epoch(run, {f"val_{name}": value for name, value in reported.items()})

    def on_end(self, run: Run, failure: BaseException | None) -> None:
        if failure is not None:
            return  # as Keras, which calls nothing then
        if self._is_open:
            self._end_epoch(run, {})
        if self._data_ended is not None:
            epochs = self._epochs
            has_length = epochs.steps != UNKNOWN_STEPS
            if has_length or epochs.end - epochs.first > 1:  # else a single epoch of all the data was meant
                _logger.warning(
                    "the input ran out of data at step %d%s, in epoch %d of %d, and training ends; give %s",
                    run.step,
                    f" of {epochs.end_step}" if has_length else "",
                    self._epoch + 1,
                    epochs.end,
                    "steps_per_epoch * epochs batches, or repeat() the dataset" if has_length else "steps_per_epoch",
                )
        if isinstance(optimizer := self._model.optimizer, self._fit.MODULE.optimizers.Optimizer):
            optimizer.finalize_variable_values(self._model.trainable_variables)  # its own averages, if it has any
        self._callbacks.on_train_end(self._logs)

    def wants_validation(self, step: int) -> bool:
        """Whether the loop has to evaluate now, at the planned or early end of an epoch."""
        ends = self._is_ending or (self._is_open and self._data_ended == step)
        return ends and self._epochs.is_validated(self._epoch)

    @property
    def _data_ended(self) -> int | None:
        """The step at which the data ended before the planned end; None if it did not."""
        assert self._run is not None
        state = self._run.state
        is_early = state.end_step is not None and state.end_step < self._epochs.end_step
        return state.end_step if is_early and not self._model.stop_training else None

    def _stop(self) -> Stop | None:
        if not self._model.stop_training:
            return None
        return Stop(reason=f"a callback has stopped training in epoch {self._epoch + 1}")

    # Where epochs and batches begin and end.

    def _begin(self, step: int) -> None:
        """Begins, or continues, the epoch of the next step."""
        epoch, batch = self._epochs.epoch_and_batch(step)
        if batch == 0:
            self._model.reset_metrics()
        self._begin_epoch(epoch)
        self._begin_batch(step)

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch, self._is_open = epoch, True
        self._callbacks.on_epoch_begin(epoch)
        self._data.begin_epoch(epoch - self._epochs.first)

    def _begin_batch(self, step: int) -> None:
        """Begins the batch of the next step."""
        if self._sees_batches:
            self._callbacks.on_train_batch_begin(self._epochs.epoch_and_batch(step)[1])

    def _end_epoch(self, run: Run, of_validation: Mapping[str, Any]) -> Stop | None:
        """Ends the epoch and begins the next; returns the end of training if a callback has set it."""
        self._is_ending = self._is_open = False
        self._last_ended = self._epoch
        self._logs = {**run.trainer.task.reported(run.train_logs, training=True), **of_validation}
        self._callbacks.on_epoch_end(self._epoch, self._logs)
        if (stop := self._stop()) is None:
            self._data.end_epoch(self._epoch - self._epochs.first)
        if stop is None and run.step < self._epochs.end_step and self._data_ended != run.step:
            self._begin(run.step)
        return stop

    # What survives a restart.

    def state(self) -> Mapping[str, Any]:
        """Returns the history, and plain attributes of callbacks that changed since the start (`wait`, `best`)."""
        data_ended = {} if self._data_ended is None else {"data_ended": self._data_ended}
        return {"ended": self._last_ended, **self._kept.values(), **data_ended}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._restored = state
        self._is_rolled_back = self._run is not None

    def _follow_rollback(self, step: int) -> None:
        """After a rollback, removes the epochs that run again from the history; callbacks keep what they counted."""
        if not self._is_rolled_back:
            return
        self._is_rolled_back = False
        epoch, _ = self._epochs.epoch_and_batch(step - 1)
        self._last_ended = self._kept.truncate_history(epoch, self._epochs)
        if epoch != self._epoch:
            self._begin_epoch(epoch)


class _CallbackState:
    """What callbacks keep across restarts: the history, and their plain attributes that changed."""

    def __init__(self, callbacks: Any) -> None:
        self._callbacks = callbacks.callbacks
        self._model = callbacks.model
        self._at_start: list[dict[str, Any]] = []

    @property
    def _history(self) -> keras.callbacks.History:
        return self._model.history

    def begin(self, restored: Mapping[str, Any]) -> None:
        """Puts back what a checkpoint has, if anything, after `on_train_begin`, which resets callbacks."""
        self._at_start = [_plain(callback) for callback in self._callbacks]
        if not restored:
            return
        self._history.epoch = list(restored["epochs"])
        self._history.history = dict(restored["history"])
        for callback, changed in zip(self._callbacks, restored["callbacks"], strict=False):
            vars(callback).update(changed)
            keras_fit.of(self._model).take_up(callback)

    def values(self) -> dict[str, Any]:
        """Returns the state, as JSON takes it."""
        changed = []
        for callback, before in zip(self._callbacks, self._at_start, strict=True):
            now = _plain(callback)
            changed.append({name: value for name, value in now.items() if before.get(name, callback) != value})
        history = {name: [_of_json(value) for value in values] for name, values in self._history.history.items()}
        return {"epochs": self._history.epoch, "history": history, "callbacks": changed}

    def truncate_history(self, epoch: int, epochs: Epochs) -> int | None:
        """Removes an epoch and all after it from the history; returns the last that remains, None for none."""
        history = self._history
        history.epoch = [ended for ended in history.epoch if ended < epoch]
        validated = sum(map(epochs.is_validated, history.epoch))
        for name, values in history.history.items():
            del values[validated if name.startswith("val_") else len(history.epoch) :]
        return history.epoch[-1] if history.epoch else None


def _plain(callback: Any) -> dict[str, Any]:
    """Returns the attributes of a callback that are numbers or words, as JSON takes them."""
    kinds = (bool, int, float, str, type(None))
    values = {name: _of_json(value) for name, value in vars(callback).items()}
    return {name: value for name, value in values.items() if isinstance(value, kinds)}


def _of_json(value: Any) -> Any:
    """Returns numbers of NumPy as JSON takes them, and other values as they are."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def callback_list(
    model: Any, callbacks: Any, verbose: Any, epochs: int, steps: int | None, *, trains: bool = True
) -> Any:
    """Returns the callbacks of a call, with those that Keras adds: its history if it trains, and a progress bar.

    Raises:
      ArgumentError: one is of another Keras than the model.
    """
    module = keras_fit.of(model).MODULE.callbacks
    if isinstance(callbacks, module.CallbackList):
        return callbacks
    check_kerases(model, callbacks=callbacks or ())
    if verbose == "auto":
        verbose = 1 if sys.stdout.isatty() else 2
    return module.CallbackList(
        callbacks,
        add_history=trains,
        add_progbar=verbose != 0,
        model=model,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
    )
