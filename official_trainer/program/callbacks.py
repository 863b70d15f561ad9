"""Keras callbacks in the engine's loop: each called in Keras's order, with Keras's logs.

Owns: `Epochs`, which cuts steps into epochs as `fit` counts them, and `CallbacksAction`, which calls callbacks there.
Does not own: what any callback does, or when training stops (`engine/loop.py` does as the action asks).

Callbacks that do not look at batches cost nothing between epochs: a window ends only where one of them is called.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_trainer.actions.action import Action, Run, Stop
from official_trainer.lazy import keras
from official_trainer.program.checkpoint import those_among
from official_trainer.program.monitored_modes import maximise_rewards
from official_trainer.triggers import AnyOf, Every, EverySeconds, Moment, Trigger

_logger = logging.getLogger(__name__)

_BAR_SECONDS = 0.1

UNKNOWN_STEPS = 2**40
"""Steps in an epoch of data of which nobody knows how long it is: its end is that of the epoch, and of training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epochs:
    """Where a call of `fit` begins and ends its epochs.

    Attributes:
      first_step: global step before the first one.
      steps: steps in an epoch.
      first: number of the first epoch, from 0.
      end: number of the epoch before which training ends.
      validated: every how many epochs there is a validation, or after which, counted from 1; 0 for none.
    """

    first_step: int
    steps: int
    first: int
    end: int
    validated: int | Sequence[int] = 0

    @property
    def end_step(self) -> int:
        """The last step of the call."""
        return self.first_step + (self.end - self.first) * self.steps

    def place(self, step: int) -> tuple[int, int]:
        """Returns the epoch that goes on after `step`, and how many of its steps are done."""
        epoch, batch = divmod(step - self.first_step, self.steps)
        return self.first + epoch, batch

    def ends_at(self, step: int) -> bool:
        """Whether an epoch ends with `step`."""
        return step > self.first_step and (step - self.first_step) % self.steps == 0

    def is_validated(self, epoch: int) -> bool:
        """Whether there is a validation after `epoch`."""
        if isinstance(self.validated, int):
            return self.validated > 0 and (epoch + 1) % self.validated == 0
        return epoch + 1 in self.validated


@dataclasses.dataclass(frozen=True, kw_only=True)
class InEpochs(Trigger):
    """Due every so many steps of each epoch, and with its last one, wherever that turns out to be."""

    epochs: Epochs
    every: int

    def is_due(self, moment: Moment) -> bool:
        return moment.ended or super().is_due(moment)

    def _first_after(self, after: int, span: Any) -> int | None:
        start, steps = self.epochs.first_step, self.epochs.steps
        epoch, batch = divmod(max(after - start, 0), steps)
        return start + epoch * steps + min((batch // self.every + 1) * self.every, steps)


class CallbacksAction(Action):
    """Calls the callbacks of a call of `fit`."""

    name = "keras_callbacks"

    def __init__(self, callbacks: Any, epochs: Epochs, *, every: int) -> None:
        """Takes them.

        Args:
          callbacks: a `keras.callbacks.CallbackList` that knows the model.
          epochs: of the call.
          every: steps from one call for batches to the next, Keras's `steps_per_execution`.
        """
        self._callbacks, self._epochs = callbacks, epochs
        self._every = min(every, epochs.steps)
        looking = [callback for callback in callbacks if callback._implements_train_batch_hooks()]
        # A progress bar wants to see some batches, not each.
        self._looks_at_batches = any(not isinstance(each, keras.callbacks.ProgbarLogger) for each in looking)
        self.when = InEpochs(epochs=epochs, every=self._every if self._looks_at_batches else epochs.steps)
        if looking and not self._looks_at_batches:
            self.when = AnyOf((self.when, EverySeconds(_BAR_SECONDS)))
        self._checkpoints = those_among(callbacks)
        saved = [Every(each.every_steps) for each in self._checkpoints if each.every_steps is not None]
        if saved:
            self.when = AnyOf((self.when, *saved))
        self._is_in_epoch = self._is_ending = False
        self._epoch = epochs.first
        self._logs: dict[str, Any] | None = None
        self._ended: int | None = None  # the last epoch whose end callbacks know of
        self._at_start: list[dict[str, Any]] = []
        self._restored: Mapping[str, Any] = {}
        self._run: Run | None = None
        self._has_started = self._is_back = False

    @property
    def _model(self) -> Any:
        return self._callbacks.model

    # Training, as the loop calls it.

    def begin(self) -> int:
        """Tells callbacks that training begins; returns the step where one of them wants it to go on.

        To be called before the loop runs.
        """
        model, epochs = self._model, self._epochs
        model.stop_training = False
        model._train_counter.assign(0)  # callbacks look at it
        maximise_rewards(self._callbacks, model)
        self._callbacks.on_train_begin()
        epoch, batch = model._maybe_load_initial_counters_from_ckpt(epochs.steps, epochs.first)  # of BackupAndRestore
        return epochs.first_step + (int(epoch) - epochs.first) * epochs.steps + int(batch)

    def on_start(self, run: Run) -> Stop | None:
        self._run = run
        self._has_started = True
        self._at_start = [_plain(callback) for callback in self._callbacks]
        self._take_back()
        data_ended = run.step > 0 and self._restored.get("data_ended") == run.step
        last = self._epochs.place(run.step - 1)[0]
        if (data_ended or self._epochs.ends_at(run.step)) and self._ended != last:
            self._epoch, self._is_in_epoch, self._is_ending = last, True, True  # its evaluation is to come
            self._callbacks.on_epoch_begin(last)
        elif not data_ended and run.step < self._epochs.end_step:
            self._begin_epoch(run.step)
        return Stop(reason=f"the data ended at step {run.step}") if data_ended else self._stop()

    def on_step(self, run: Run) -> Stop | None:
        self._follow_rollback(run.step)
        _, batch = self._epochs.place(run.step - 1)
        ends = self._epochs.ends_at(run.step)
        is_told = ends or (batch + 1) % self._every == 0
        logs = (
            run.trainer.numbers.reported(run.train_logs, training=True)
            if ends
            else run.trainer.numbers.current(training=True)
        )
        if is_told if self._looks_at_batches else not ends:
            self._callbacks.on_train_batch_end(batch, logs)
        for each in self._checkpoints:
            each.on_step(run.step, logs)
        stop = self._stop()
        self._is_ending = stop is not None or ends
        if not self._is_ending:
            if is_told:
                self._begin_batch(run.step)
        elif stop is None and not self._epochs.is_validated(self._epoch):
            self._end_epoch(run, {})
        return stop or self._stop()  # where training stops, an epoch ends once its summary is there

    def on_eval(self, run: Run, logs: Mapping[str, float]) -> Stop | None:
        found = run.trainer.numbers.reported(logs, training=False)
        self._end_epoch(run, {f"val_{name}": value for name, value in found.items()})
        return self._stop()

    def on_end(self, run: Run, failure: BaseException | None) -> None:
        if failure is not None:
            return  # as Keras, which calls nothing then
        if self._is_in_epoch:
            self._end_epoch(run, {})
        if self._data_ended is not None:
            self._warn_of_end(run.step)
        self._callbacks.on_train_end(self._logs)

    def _warn_of_end(self, step: int) -> None:
        epochs = self._epochs
        is_known = epochs.steps != UNKNOWN_STEPS
        if is_known or epochs.end - epochs.first > 1:  # else one epoch of all there is was meant
            _logger.warning(
                "the input ran out of data at step %d%s, in epoch %d of %d, and training ends; give %s",
                step,
                f" of {epochs.end_step}" if is_known else "",
                self._epoch + 1,
                epochs.end,
                "steps_per_epoch * epochs batches, or repeat() the dataset" if is_known else "steps_per_epoch",
            )

    def wants_validation(self, step: int) -> bool:
        """Whether the loop is to evaluate now, where an epoch ends, planned or not."""
        ends = self._is_ending or (self._is_in_epoch and self._data_ended == step)
        return ends and self._epochs.is_validated(self._epoch)

    @property
    def _data_ended(self) -> int | None:
        """The step at which the data ended, before anybody planned to."""
        assert self._run is not None
        state = self._run.state
        is_early = state.end_step is not None and state.end_step < self._epochs.end_step
        return state.end_step if is_early and not self._model.stop_training else None

    def _begin_epoch(self, step: int) -> None:
        self._epoch, batch = self._epochs.place(step)
        self._is_in_epoch = True
        if batch == 0:
            self._model.reset_metrics()
        self._callbacks.on_epoch_begin(self._epoch)
        self._begin_batch(step)

    def _begin_batch(self, step: int) -> None:
        if self._looks_at_batches:
            self._callbacks.on_train_batch_begin(self._epochs.place(step)[1])

    def _end_epoch(self, run: Run, of_validation: Mapping[str, Any]) -> None:
        self._is_in_epoch = self._is_ending = False
        self._ended = self._epoch
        self._logs = {**run.trainer.numbers.reported(run.train_logs, training=True), **of_validation}
        self._callbacks.on_epoch_end(self._epoch, self._logs)
        if not self._model.stop_training and run.step < self._epochs.end_step and self._data_ended != run.step:
            self._begin_epoch(run.step)

    # What survives a restart.

    def state(self) -> Mapping[str, Any]:
        """Returns the history, and plain attributes of callbacks that changed since the start (`wait`, `best`)."""
        changed = []
        for callback, before in zip(self._callbacks, self._at_start, strict=True):
            now = _plain(callback)
            changed.append({name: value for name, value in now.items() if before.get(name, callback) != value})
        numbers = {name: [_of_json(value) for value in values] for name, values in self._model.history.history.items()}
        history = {"epochs": self._model.history.epoch, "history": numbers}
        data_ended = {} if self._data_ended is None else {"data_ended": self._data_ended}
        return {"ended": self._ended, **history, "callbacks": changed, **data_ended}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._restored, self._is_back = state, self._has_started

    def _follow_rollback(self, step: int) -> None:
        """Takes epochs that are done again out of the history; callbacks keep what they have counted."""
        if not self._is_back:
            return
        self._is_back, epoch = False, self._epochs.place(step - 1)[0]
        history = self._model.history
        history.epoch = [each for each in history.epoch if each < epoch]
        validated = sum(map(self._epochs.is_validated, history.epoch))
        for name, values in history.history.items():
            del values[validated if name.startswith("val_") else len(history.epoch) :]
        self._ended = history.epoch[-1] if history.epoch else None
        if epoch != self._epoch:
            self._epoch, self._is_in_epoch = epoch, True
            self._callbacks.on_epoch_begin(epoch)

    def _take_back(self) -> None:
        """Gives callbacks what they had, once they believe that they begin."""
        if not (state := self._restored):
            return
        self._ended = state["ended"]
        self._model.history.epoch, self._model.history.history = list(state["epochs"]), dict(state["history"])
        for callback, changed in zip(self._callbacks, state["callbacks"], strict=False):
            vars(callback).update(changed)

    def _stop(self) -> Stop | None:
        if not self._model.stop_training:
            return None
        return Stop(reason=f"a callback has stopped training in epoch {self._epoch + 1}")


def _plain(callback: Any) -> dict[str, Any]:
    """Returns the attributes of a callback that JSON takes: numbers and words."""
    kinds = (bool, int, float, str, type(None))
    found = {name: _of_json(value) for name, value in vars(callback).items()}
    return {name: value for name, value in found.items() if isinstance(value, kinds)}


def _of_json(value: Any) -> Any:
    """Returns numbers of NumPy as JSON takes them, and all else as it is."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def looks_at_test_batches(callbacks: Any) -> bool:
    """Whether any of the callbacks is to be called for batches of an evaluation."""
    return any(callback._implements_test_batch_hooks() for callback in callbacks)


def callback_list(
    model: Any, callbacks: Any, verbose: Any, epochs: int, steps: int | None, *, trains: bool = True
) -> Any:
    """Returns the callbacks of a call, with those that Keras adds: its history if it trains, and a progress bar."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    verbose = (1 if sys.stdout.isatty() else 2) if verbose == "auto" else verbose
    return keras.callbacks.CallbackList(
        callbacks,
        add_history=trains,
        add_progbar=verbose != 0,
        model=model,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
    )
