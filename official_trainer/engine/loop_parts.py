"""What the classes of a loop share: its parts, its observer, the steps at which something is due, and where it is.

Owns: these contracts and the loop's step and phase. Does not own: the order of events (`loop.py`), what an observer
does (`runs/observer.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.actions.action import LoopState
from official_trainer.actions.schedule import Schedule
from official_trainer.config.modes import Evaluates
from official_trainer.engine.recovery import Diagnosis
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

    def on_forced_end(self, exit_code: int) -> None:
        """The process is about to be ended while the main thread hangs; called in another thread."""

    def new_traces(self) -> Sequence[Any]:
        """Returns the functions that were traced since the last call."""
        return ()

    def find_row(self, step: int, split: str) -> Mapping[str, float] | None:
        """Returns the numbers of `split` at `step` that an earlier process has written; None without any."""
        return None

    def load_weights(self, directory: str, step: int) -> None:
        """Loads the weights of a checkpoint that an action has asked to export."""


class DueSteps:
    """The steps at which summaries, checkpoints and evaluations are due, as `trainer.…_interval` configures them."""

    def __init__(self, config: Any, evaluate: Evaluates) -> None:
        """Takes the section `trainer`, and whether there are evaluations at intervals, at the end only, or never."""
        self._summary = Every(config.summary_interval)
        self._save = Every(config.checkpoint_interval)
        self._validation = Every(config.validation_interval)
        self._evaluate = evaluate

    def is_summary_due(self, step: int) -> bool:
        """Whether there is a summary at a step, the last one aside."""
        return self._summary.is_due_at(step)

    def is_save_due(self, step: int) -> bool:
        """Whether there is a checkpoint of a step, the last one aside."""
        return self._save.is_due_at(step)

    def is_evaluation_due(self, step: int, *, is_last: bool) -> bool:
        """Whether there is an evaluation at a step."""
        at_interval = self._evaluate == "interval" and self._validation.is_due_at(step)
        return at_interval or (self._evaluate != "never" and is_last)

    def next_summary(self, step: int) -> int:
        """Returns the first step after `step` that `summary_interval` names."""
        return self._summary.following(step)

    def next_step(self, step: int) -> int:
        """Returns the first step after `step` at which a window has to end."""
        due = [self._summary.following(step), self._save.following(step)]
        return min([*due, self._validation.following(step)] if self._evaluate == "interval" else due)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopParts:
    """What a loop works with.

    Attributes:
      trainer: runs steps and evaluations.
      store: saves and restores the trainer's state.
      metric_writer: takes numbers.
      due: when something is due.
      observer: receives the events.
      actions: called at their steps.
      stop: checked between windows and evaluations; all other phases can be interrupted immediately.
      diagnosis: examines a loss that is not finite; None writes no report.
      model_dir: the run directory, for actions.
    """

    trainer: Any
    store: Any
    metric_writer: Tracker
    due: DueSteps
    observer: LoopObserver = dataclasses.field(default_factory=LoopObserver)
    actions: Schedule = dataclasses.field(default_factory=Schedule)
    stop: StopRequest = dataclasses.field(default_factory=StopRequest)
    diagnosis: Diagnosis | None = None
    model_dir: str = ""

    @property
    def config(self) -> Any:
        """The section `trainer` of the config."""
        return self.trainer.config.trainer


class LoopProgress:
    """Where a loop is.

    Attributes:
      state: step, first and last step, as actions see them.
      good_step: the step before the window that runs, or ran last.
      results: of the newest summary or evaluation, nested.
      is_repeating: whether steps are repeated to find one that failed: then there is no state to save.
    """

    def __init__(self, parts: LoopParts) -> None:
        self._trainer, self._observer = parts.trainer, parts.observer
        self._phase = ""
        self._has_begun = False
        self.state = LoopState()
        self.good_step = 0
        self.results: Mapping[str, Any] = {}
        self.is_repeating = False

    @property
    def step(self) -> int:
        """The global step at which the loop is."""
        return self.state.step

    @property
    def is_done(self) -> bool:
        """Whether training has reached its last step."""
        return self.state.end_step is not None and self.state.step >= self.state.end_step

    def enter(self, phase: str) -> None:
        """Begins a phase, unless the loop is in it."""
        if phase != self._phase:
            self._phase = phase
            self._observer.on_phase(phase, self.state.step)

    def begin(self) -> None:
        """Training begins: from here on there is a state to save."""
        self._has_begun = True

    @contextlib.contextmanager
    def repeating(self) -> Iterator[None]:
        """For a block that repeats steps. After an error in it, the state stays one that must not be saved."""
        self.is_repeating = True
        yield
        self.is_repeating = False

    def read_step(self) -> int:
        """Takes the step from the trainer's variable, and returns it."""
        self.state.step = int(self._trainer.global_step.numpy())
        return self.state.step

    def sync_step(self) -> int:
        """Updates the step after a call that was interrupted; returns 0 while there is no state to save."""
        return self.read_step() if self._has_begun and not self.is_repeating else 0

    def start_window(self) -> None:
        """A window begins: the state was good until here."""
        self.good_step = self.state.step

    def set_results(self, logs: Mapping[str, Any]) -> None:
        """Takes the results of a summary or an evaluation."""
        self.results = logs
