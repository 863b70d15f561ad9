"""What the classes of a loop share: its parts, its observer, the steps at which something is due, and where it is.

Owns: these contracts, the loop's step and phase, and the store of a run without a directory. Does not own: the order of
events (`loop.py`), what an observer does (`runs/observer.py`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.actions.action import LoopState
from official_trainer.actions.schedule import Schedule
from official_trainer.config.modes import Evaluates
from official_trainer.stopping import StopRequest
from official_trainer.tracking import Tracker
from official_trainer.triggers import Every


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

    def on_forced_end(self, exit_code: int, error: str) -> None:
        """The process is about to be ended while the main thread hangs; called in another thread.

        Args:
          exit_code: of the process.
          error: why, and what it leaves behind.
        """

    def find_row(self, step: int, split: str) -> Mapping[str, float] | None:
        """Returns the numbers of `split` at `step` that an earlier process has written; None without any."""
        return None


class NoStore:
    """The store of a run without a directory: it has no checkpoint to restore, and saves none."""

    def restore(self) -> None:
        """Does nothing, and returns None where a step or a report is asked for."""

    latest_step = wait = close = restore

    def save(self, step: int, extra: Any, *, only_if: Callable[[], bool]) -> None:
        """Does nothing."""

    def steps(self) -> Sequence[int]:
        """Returns no steps."""
        return ()

    poll = steps


class DueSteps:
    """When summaries, checkpoints and evaluations are due, and which step is the last, by the section `trainer`.

    Attributes:
      summaries: the steps of `summary_interval`.
      saves: the steps of `checkpoint_interval`.
    """

    def __init__(self, config: Any, evaluate: Evaluates) -> None:
        """Takes the section `trainer`, and whether there are evaluations at intervals, at the end only, or never."""
        self._config = config
        self.summaries = Every(config.summary_interval)
        self.saves = Every(config.checkpoint_interval)
        self._validation = Every(config.validation_interval)
        self._evaluate = evaluate

    def is_summary_due(self, step: int) -> bool:
        """Whether there is a summary at a step, the last one aside."""
        return self.summaries.is_due_at(step)

    def is_evaluation_due(self, step: int, *, is_last: bool) -> bool:
        """Whether there is an evaluation at a step."""
        at_interval = self._evaluate == "interval" and self._validation.is_due_at(step)
        return at_interval or (self._evaluate != "never" and is_last)

    def next_step(self, step: int) -> int:
        """Returns the first step after `step` at which a window has to end."""
        due = [self.summaries.following(step), self.saves.following(step)]
        return min([*due, self._validation.following(step)] if self._evaluate == "interval" else due)

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


@dataclasses.dataclass(kw_only=True)
class LoopParts:
    """What a loop works with, and where it is.

    Attributes:
      trainer: runs steps and evaluations.
      store: saves and restores the trainer's state.
      metric_writer: takes numbers.
      due: when something is due.
      observer: receives the events.
      actions: called at their steps.
      stop: checked between windows and evaluations; all other phases can be interrupted immediately.
      model_dir: the run directory, for actions and for reports of a loss that is not finite; empty for none.
      until_step: the step at which this process stops before the last one of training; None for no such step.
      extra: what actions are restored from without a checkpoint: `Schedule.state()` of a loop before, in this process.
      state: step, first and last step, as actions see them.
      phase: the one that began last; empty before the first.
    """

    trainer: Any
    store: Any
    metric_writer: Tracker
    due: DueSteps
    observer: LoopObserver = dataclasses.field(default_factory=LoopObserver)
    actions: Schedule = dataclasses.field(default_factory=Schedule)
    stop: StopRequest = dataclasses.field(default_factory=StopRequest)
    model_dir: str = ""
    until_step: int | None = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    state: LoopState = dataclasses.field(default_factory=LoopState, init=False)
    phase: str = dataclasses.field(default="", init=False)

    @property
    def config(self) -> Any:
        """The section `trainer` of the config."""
        return self.trainer.config.trainer

    @property
    def is_done(self) -> bool:
        """Whether training has reached its last step."""
        return self.state.end_step is not None and self.state.step >= self.state.end_step

    @property
    def is_paused(self) -> bool:
        """Whether this process stops here, and training goes on in another one."""
        return self.until_step is not None and self.state.step >= self.until_step and not self.is_done

    def enter(self, phase: str) -> None:
        """Begins a phase, unless the loop is in it."""
        if phase != self.phase:
            self.phase = phase
            self.observer.on_phase(phase, self.state.step)

    def read_step(self) -> int:
        """Takes the step from the trainer's variable, and returns it."""
        self.state.step = int(self.trainer.global_step.numpy())
        return self.state.step
