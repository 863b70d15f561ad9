"""The events of a loop: who is told of them, the steps at which they are due, and how long a window may be.

Owns: what an observer of a loop receives; the steps of summaries, checkpoints and evaluations, which step is the last,
and that windows end soon enough to react in time. Does not own: the order of events (`loop.py`), what an observer does
(`runs/observer.py`), the steps of actions (`actions/schedule.py`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from official_trainer.actions.action import LoopState
from official_trainer.config.modes import Evaluates

_logger = logging.getLogger(__name__)

MAX_WINDOW_SECONDS = 1.0
"""Windows are kept shorter than this, or one step long, so that signals are seen and progress is shown in time."""

WINDOW_GROWTH = 10
"""A window is at most this many times as long as the last one: the first, which traces, says little about speed."""


class LoopObserver:
    """Receives the events of a loop, and answers what only the process that runs it knows. The defaults do nothing."""

    def on_restore(self, state: LoopState) -> None:
        """The newest checkpoint is restored, or the state initialized."""

    def on_start(self, state: LoopState) -> None:
        """Training begins, with the last step in `state` if it is known."""

    def on_phase(self, phase: str, step: int) -> None:
        """A phase begins: `restore`, `train`, `save`, `evaluate` or `export`."""

    def on_window(self, state: LoopState, num_steps: int, seconds: float, loss: float) -> None:
        """A window of `num_steps` steps has ended, with the mean training loss since the last summary."""

    def on_summary(self, step: int) -> None:
        """The summary of training at `step` is written."""

    def before_save(self, step: int) -> None:
        """A checkpoint of `step` is about to be saved."""

    def on_save(self, step: int) -> None:
        """The checkpoint of `step` is committed."""

    def on_rollback(self, step: int) -> None:
        """The run has gone back to the checkpoint of `step`."""

    def on_stop(self, reason: str) -> None:
        """An action has ended training early."""

    def on_end(self, step: int, logs: Mapping[str, Any]) -> None:
        """Training has ended and its last checkpoint is saved; `logs` are the last results."""

    def on_forced_end(self, error: str) -> None:
        """The process is about to be ended with 75, because the main thread hangs; called in another thread.

        Args:
          error: why, and what it leaves behind.
        """

    def find_row(self, step: int, split: str) -> Mapping[str, float] | None:
        """Returns the numbers of `split` at `step` that an earlier process has written; None without any."""
        return None


class DueSteps:
    """When summaries, checkpoints and evaluations are due, and which step is the last, by the section `trainer`."""

    def __init__(self, config: Any, evaluate: Evaluates) -> None:
        """Takes the section `trainer`, and whether there are evaluations at intervals, at the end only, or never."""
        self._config = config
        self._evaluate = evaluate

    def is_summary_due(self, step: int) -> bool:
        """Whether there is a summary at a step, the last one aside."""
        return _is_multiple(step, self._config.summary_interval)

    def is_save_due(self, step: int) -> bool:
        """Whether there is a checkpoint at a step, the last one aside."""
        return _is_multiple(step, self._config.checkpoint_interval)

    def is_evaluation_due(self, step: int, *, is_last: bool) -> bool:
        """Whether there is an evaluation at a step."""
        at_interval = self._evaluate == "interval" and _is_multiple(step, self._config.validation_interval)
        return at_interval or (self._evaluate != "never" and is_last)

    def next_step(self, step: int) -> int:
        """Returns the first step after `step` at which a window has to end."""
        intervals = [self._config.summary_interval, self._config.checkpoint_interval]
        intervals += [self._config.validation_interval] if self._evaluate == "interval" else []
        return min((step // interval + 1) * interval for interval in intervals)

    @property
    def counts_epochs(self) -> bool:
        """Whether training ends after a number of passes over the data; else where the data ends, at the latest."""
        return self._config.train_epochs is not None

    def planned_end(self, step: int, iterator: Any) -> int | None:
        """Returns the last step; None if it takes an epoch of data to know.

        Args:
          step: at which this process begins.
          iterator: over the training data.
        """
        epochs = self._config.train_epochs
        if epochs is None:
            return self._config.train_steps
        per_epoch = iterator.steps_per_epoch()
        return None if per_epoch is None else math.ceil(per_epoch * epochs) - iterator.skipped_steps

    def end_after(self, epochs_done: int, step: int, epoch_steps: int) -> int:
        """Returns the last step of a run over epochs, where an epoch has just ended; `step` itself to end it here.

        Args:
          epochs_done: passes over the data so far.
          step: where this one has ended.
          epoch_steps: its length.
        """
        epochs = self._config.train_epochs
        # All epochs of a data set have the same length: the first one determines the end.
        return step if epochs_done >= epochs else math.ceil(step / epochs_done * epochs)

    def end_after_data(self, step: int, iterator: Any) -> int:
        """The data has ended: begins the next epoch, and returns the last step; `step` itself without epochs to count.

        Args:
          step: where it has ended.
          iterator: over the training data.
        """
        if not self.counts_epochs:
            _logger.info("the training data ended at step %d, and so does training (on_data_end: stop)", step)
            return step
        epoch_steps = iterator.position.start_step(step)
        iterator.begin_next_epoch()
        return self.end_after(int(iterator.position.epoch.numpy()), step, epoch_steps)


def _is_multiple(step: int, interval: int) -> bool:
    return step > 0 and step % interval == 0


class WindowLength:
    """How long a window may be, by the time that the one before it took.

    Attributes:
      max_steps: of the next window.
    """

    def __init__(self) -> None:
        self.max_steps = 1

    def add(self, num_steps: int, seconds: float) -> None:
        """Takes how long a window of so many steps took."""
        most = int(MAX_WINDOW_SECONDS / max(seconds / num_steps, 1e-9))
        self.max_steps = max(1, min(num_steps * WINDOW_GROWTH, most))
