"""The loop: restore → [ train window → summary → check finite → save → evaluate ]* → export.

Owns: the order of events and that each happens at exactly its step, however often the run was restarted and whatever
`steps_per_loop` is. Does not own: how anything is done; it knows contracts (trainer, store, trackers, record) only.

The order is part of correctness:
- the summary comes first, so that the window that failed is on record;
- the finite check comes before the save, so that no bad state is ever saved;
- a stop is answered between two steps, with a save of its own, unless one of that step is there;
- the save comes before the evaluation, so that a crash while evaluating loses no training;
- an evaluation's row is written last, after its best checkpoint: the row marks the evaluation as done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from official_trainer.errors import ExitCode, UserError, first_few
from official_trainer.modes import Evaluates
from official_trainer.recovery import Diagnosis, NonFiniteError, Recovery
from official_trainer.stopping import NOTHING_LOST, Interrupted, PreemptedError, StopRequest
from official_trainer.triggers import Every

_logger = logging.getLogger(__name__)

MAX_WINDOW_SECONDS = 1.0
"""Windows are kept shorter than this, or one step long, so that signals are seen and progress is shown in time."""

WINDOW_GROWTH = 10
"""A window is at most this many times as long as the last one: the first, which traces, says little about speed."""


class Journal(Protocol):
    """What the loop needs of the trackers: rows of numbers that can be taken back."""

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        """Records numbers of `split` at `step`."""

    def rewind(self, step: int) -> None:
        """Drops everything after `step`."""


@dataclasses.dataclass
class LoopState:
    """Where a run stands.

    Attributes:
      step: global step.
      start_step: step at which this process started.
      end_step: step at which training ends; None until the first epoch of data of unknown size has ended.
      epoch: passes over the data so far; None if the data does not say.
      shared: a place for actions to leave things for each other.
    """

    step: int = 0
    start_step: int = 0
    end_step: int | None = None
    epoch: float | None = None
    shared: dict[str, Any] = dataclasses.field(default_factory=dict)
    step_seconds: deque[float] = dataclasses.field(default_factory=lambda: deque(maxlen=100))

    @property
    def median_step_seconds(self) -> float | None:
        """Median over the last windows of the seconds a step took; None before the first window."""
        return statistics.median(self.step_seconds) if self.step_seconds else None


@dataclasses.dataclass(kw_only=True)
class Hooks:
    """What happens outside the numbers: the run record, progress, export. Every field may be left out."""

    on_restore: Callable[[LoopState], None] = lambda state: None
    on_start: Callable[[LoopState], None] = lambda state: None
    on_phase: Callable[[str, int], None] = lambda phase, step: None
    on_window: Callable[[LoopState, int, float, float], None] = lambda state, steps, seconds, loss: None
    before_save: Callable[[int], None] = lambda step: None
    on_save: Callable[[int], None] = lambda step: None
    has_evaluation: Callable[[int], bool] = lambda step: False
    export: Callable[[int, Mapping[str, Any]], None] = lambda step, logs: None
    diagnosis: Diagnosis | None = None


class Loop:
    """Runs one trainer to its end."""

    def __init__(
        self,
        trainer: Any,
        store: Any,
        journal: Journal,
        *,
        evaluate: Evaluates,
        hooks: Hooks | None = None,
        stop: StopRequest | None = None,
    ) -> None:
        """Takes the parts.

        Args:
          trainer: runs steps and evaluations.
          store: saves and restores the trainer's state.
          journal: takes numbers.
          evaluate: at every `validation_interval` and at the end, at the end only, or never.
          hooks: called as things happen.
          stop: looked at between windows and evaluations; what else may be left at once is.
        """
        self._trainer, self._store, self._journal = trainer, store, journal
        self._config = trainer.config.trainer
        self._evaluates = evaluate
        self._hooks = hooks or Hooks()
        self._stop = stop or StopRequest()
        self._summary = Every(self._config.summary_interval)
        self._save = Every(self._config.checkpoint_interval)
        self._validation = Every(self._config.validation_interval)
        self._recovery = Recovery(trainer, store, run_to=self._run_to, diagnosis=self._hooks.diagnosis)
        self._good_step = self._summarized_step = 0
        self._window_steps = 1
        self._phase = ""
        self._has_state = self._is_repeating = False
        self._logs: dict[str, Any] = {}
        self.state = LoopState()

    def run(self) -> dict[str, Any]:
        """Trains to the end and returns the last results: of the evaluation if there was one, else of training.

        Raises:
          PreemptedError: the run was asked to stop, and its state is saved.
          NonFiniteError: the loss or a weight is not finite, and no recovery is left.
        """
        with contextlib.closing(self._store):
            try:
                return self._run()
            except (PreemptedError, Interrupted) as error:
                self._stop.regain()
                raise self._stopped() from error

    def _run(self) -> dict[str, Any]:
        state = self.state
        with self._stop.interruptible():
            self._restore_or_initialize()
            self._hooks.on_restore(state)
            self._journal.rewind(state.step)
            state.end_step = self._planned_end()
        self._hooks.on_start(state)
        self._has_state = True
        self._trainer.train_loop_begin()
        self._evaluate_if_due()  # an evaluation that a crash cut off
        while not self._is_done():
            try:
                self._train_to(self._next_due_step())
                if self._save.is_due(state.step) or self._is_done():
                    self._save_checkpoint()
            except NonFiniteError as error:
                self._recover(error)
                continue
            self._evaluate_if_due()
        self._enter("save")
        self._store.wait()
        self._report_saves()
        self._enter("export")
        with self._stop.interruptible():
            self._hooks.export(state.step, self._logs)
        return self._logs

    def _enter(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self._hooks.on_phase(phase, self.state.step)

    # Start.

    def _restore_or_initialize(self) -> None:
        self._enter("restore")
        if not self._recovery.restore():
            self._trainer.initialize()
        state = self.state
        state.step = state.start_step = int(self._trainer.global_step.numpy())
        self._good_step = self._summarized_step = state.step

    def _planned_end(self) -> int | None:
        """Returns the last step; None if it takes an epoch of data to know."""
        epochs = self._config.train_epochs
        if epochs is None:
            return self._config.train_steps
        per_epoch = self._trainer.feed.steps_per_epoch()
        return None if per_epoch is None else math.ceil(per_epoch * epochs) - self._trainer.feed.skipped_steps

    def _is_done(self) -> bool:
        return self.state.end_step is not None and self.state.step >= self.state.end_step

    # Training.

    def _next_due_step(self) -> int:
        step = self.state.step
        due = [self._summary.next_step(step), self._save.next_step(step)]
        if self._evaluates == "interval":
            due.append(self._validation.next_step(step))
        if self.state.end_step is not None:
            due.append(self.state.end_step)
        return min(due)

    def _train_to(self, due_step: int) -> None:
        """Runs windows until `due_step` (or the end of the data), and writes the summary if one is due."""
        state = self.state
        self._enter("train")
        while state.step < due_step and not self._is_done():
            self._good_step = state.step
            self._run_window(due_step)
            if problem := self._loss_problem():
                self._summarize()
                raise NonFiniteError(problem)
            self._report_saves()
            self._stop.check()
        if self._summary.is_due(state.step) or self._is_done():
            self._summarize()

    def _run_to(self, step: int) -> None:
        """Runs windows until `step`, for repeating what was run before."""
        self.state.step = int(self._trainer.global_step.numpy())
        while self.state.step < step:
            self._run_window(step)
            self._stop.check()

    def _run_window(self, due_step: int) -> None:
        state = self.state
        self._recovery.leave_out_if_due(state.step)
        until = min(due_step, self._recovery.next_step(state.step))
        num_steps = min(int(until) - state.step, self._config.steps_per_loop, self._window_steps)
        start = time.monotonic()
        ran = self._trainer.run_steps(num_steps)
        seconds = time.monotonic() - start
        state.step += ran
        if ran:
            state.step_seconds.append(seconds / ran)
            per_step = max(seconds / ran, 1e-9)
            self._window_steps = max(1, min(ran * WINDOW_GROWTH, int(MAX_WINDOW_SECONDS / per_step)))
        if ran < num_steps:
            self._end_epoch()
        state.epoch = self._trainer.feed.epoch(state.step)
        self._hooks.on_window(state, ran, seconds, self._trainer.mean_loss)

    def _end_epoch(self) -> None:
        """The data ended: goes on with the next epoch, or ends the run here."""
        state, feed, epochs = self.state, self._trainer.feed, self._config.train_epochs
        if epochs is None:
            _logger.info("the training data ended at step %d, and so does training (on_data_end: stop)", state.step)
            state.end_step = state.step
            return
        feed.begin_next_epoch()
        done = int(feed.position.epoch.numpy())
        # Epochs of one data set have one length: the first tells the end.
        state.end_step = state.step if done >= epochs else math.ceil(state.step / done * epochs)

    def _loss_problem(self) -> str | None:
        loss, step, config = self._trainer.mean_loss, self.state.step, self._config
        if not math.isfinite(loss):
            return f"the training loss is {loss} at step {step}; {self._last_good()}"
        bounded = config.recovery_max_trials >= 0 and step >= config.recovery_begin_steps
        if bounded and loss > config.loss_upper_bound:
            return (
                f"the training loss is {loss:g} at step {step}, above "
                f"trainer.loss_upper_bound={config.loss_upper_bound:g}; {self._last_good()}"
            )
        return None

    def _recover(self, error: NonFiniteError) -> None:
        """Goes back and on from there, or raises what cannot be recovered from."""
        state = self.state
        self._is_repeating = True
        done = self._recovery.recover(error, self._good_step, state.step, step_seconds=state.median_step_seconds or 0.0)
        self._is_repeating = False
        state.step = int(self._trainer.global_step.numpy())
        self._journal.rewind(state.step)
        self._trainer.train_loop_begin()
        _logger.warning("%s", done)

    def _summarize(self) -> None:
        state = self.state
        self._summarized_step = state.step
        self._logs = self._trainer.train_loop_end()
        self._journal.log("train", state.step, self._logs)
        if not self._is_done():
            self._trainer.train_loop_begin()

    # Saving.

    def _save_checkpoint(self) -> None:
        """Saves the state as it is, or begins to; a state that is not finite is refused."""
        step = self.state.step
        self._enter("save")
        if names := self._trainer.non_finite_weights():
            raise NonFiniteError(f"weights are not finite at step {step}: {first_few(names)}; {self._last_good()}")
        if self._save.is_due(step) or self._is_done():
            self._trainer.synchronize()  # not where nobody planned to save: that would round what goes on from here
        self._begin_save(step)
        self._report_saves()

    def _begin_save(self, step: int, only_if: Callable[[], bool] = lambda: True) -> None:
        self._trainer.before_save()
        self._hooks.before_save(step)
        self._store.save(step, self._recovery.state(), only_if=only_if)

    def _report_saves(self) -> None:
        """Tells of checkpoints committed meanwhile; the error of one that could not be written is raised here."""
        for step in self._store.poll():
            self._hooks.on_save(step)

    def _stopped(self) -> PreemptedError:
        """Saves what is not saved yet, and returns the error that says how the run was left."""
        if (step := self._sync_step()) > 0:
            if problem := self._loss_problem():
                raise NonFiniteError(problem)
            if self._summary.is_due(step) and self._summarized_step != step:
                self._summarize()  # the window that was left may have ended where this is due
            self._save_checkpoint()
            self._store.wait()
            self._report_saves()
        return PreemptedError(f"{self._stop.reason} {self.outcome()[0]}")

    def save_beside(self, is_unchanged: Callable[[], bool]) -> bool:
        """Saves the state while the main thread hangs between two steps; returns whether it is saved.

        Args:
          is_unchanged: asked after the values were taken; if no, the main thread has gone on, and nothing is saved.
        """
        step = self._sync_step()
        if step == 0 or self._store.latest_step() == step:
            return True
        if self._trainer.non_finite_weights():
            return False
        self._begin_save(step, is_unchanged)
        self._store.wait()
        return self._store.latest_step() == step

    def outcome(self) -> tuple[str, ExitCode]:
        """Says what a process that has to end now leaves behind, and with which exit code; any thread may ask."""
        step, saved = self._sync_step(), self._store.latest_step()
        if self._is_repeating:
            return f"while steps were repeated to find one that failed; {NOTHING_LOST}", ExitCode.PREEMPTED
        if step == 0:
            return f"before the first step; {NOTHING_LOST}", ExitCode.PREEMPTED
        if saved == step:
            return f"at step {step}, which is saved; the same command continues", ExitCode.PREEMPTED
        return f"at step {step}, which is not saved; {self._last_good()}", ExitCode.RETRY

    def _sync_step(self) -> int:
        """Brings the step up to date, which a call that was left has not; 0 while there is no state to save."""
        if not self._has_state or self._is_repeating:
            return 0
        self.state.step = int(self._trainer.global_step.numpy())
        return self.state.step

    def _last_good(self) -> str:
        try:
            self._store.wait()
        except UserError as error:  # something worse is being told
            _logger.warning("%s", error)
        step = self._store.latest_step()
        return f"the last good checkpoint is {'none' if step is None else self._store.prefix(step)}"

    # Evaluation.

    def _evaluate_if_due(self) -> None:
        step = self.state.step
        at_interval = self._evaluates == "interval" and self._validation.is_due(step)
        at_end = self._evaluates != "never" and self._is_done()
        if not (at_interval or at_end) or self._hooks.has_evaluation(step):
            return
        self._enter("evaluate")
        self._logs = self._trainer.evaluate(self._config.validation_steps)
        self._journal.log("validation", step, self._logs)
        self._stop.check()
