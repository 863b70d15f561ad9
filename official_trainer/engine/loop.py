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
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.actions.action import LoopState, Request, Rollback, Run, Save, Stop
from official_trainer.config.modes import Evaluates
from official_trainer.engine.hooks import Hooks, MetricWriter
from official_trainer.engine.recovery import DivergedError, NonFiniteError, Recovery
from official_trainer.engine.window_length import next_length
from official_trainer.errors import ExitCode, UserError, first_few
from official_trainer.stopping import NOTHING_LOST, Interrupted, PreemptedError, StopRequest
from official_trainer.tracking import flatten
from official_trainer.triggers import Every

_logger = logging.getLogger(__name__)


class Loop:
    """Runs one trainer to its end."""

    def __init__(
        self,
        trainer: Any,
        store: Any,
        journal: MetricWriter,
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
        self._summarizes_at = self._hooks.summarizes_at or self._summary.is_due_at
        self._evaluates_at = self._hooks.evaluates_at or self._is_evaluation_due
        self._actions = self._hooks.actions
        self._recovery = Recovery(trainer, store, run_to=self._run_to, diagnosis=self._hooks.diagnosis)
        self._good_step = 0
        self._summarized_step: int | None = None
        self._window_steps = 1
        self._phase = ""
        self._has_state = self._is_repeating = False
        self._logs: dict[str, Any] = {}
        self._saved_step: int | None = None
        self._wants_save = False
        self._stopped_by: Stop | None = None
        self.state = LoopState()
        self._run_view = Run(state=self.state, trainer=trainer, model_dir=self._hooks.model_dir, tracker=journal)
        self._run_view.saved_steps = self._saved_steps

    def run(self) -> dict[str, Any]:
        """Trains to the end and returns the last results: of the evaluation if there was one, else of training.

        Raises:
          PreemptedError: the run was asked to stop, and its state is saved.
          NonFiniteError: the loss or a weight is not finite, and no recovery is left.
        """
        with contextlib.closing(self._store):
            try:
                logs = self._run_or_save()
            except BaseException as error:
                self._actions.end(error)
                raise
            self._actions.end(None)
            return logs

    def _run_or_save(self) -> dict[str, Any]:
        try:
            return self._run()
        except (PreemptedError, Interrupted) as error:
            self._stop.stop_interrupting()
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
        if (row := self._hooks.find_row(state.step, "train")) is not None:
            self._summarized_step = self._run_view.summary_step = state.step
            self._run_view.train_logs = self._run_view.outputs = row
        self._obey(self._actions.start(self._run_view))
        self._evaluate_if_due()  # an evaluation that a crash cut off
        while not self._is_done():
            try:
                self._train_window()
                self._obey(self._actions.traces(self._hooks.new_traces()))
                self._obey(self._actions.step(summarized=self._summarized_step == state.step, ended=self._is_done()))
                self._save_if_due()
                self._evaluate_if_due()
                self._save_if_due()  # training may have been ended by what the evaluation says
            except NonFiniteError as error:
                self._recover(error)
        self._enter("save")
        self._store.wait()
        self._report_saves()
        self._enter("export")
        with self._stop.interruptible():
            if self._stopped_by is not None and self._stopped_by.weights is not None:
                self._hooks.load_weights(*self._stopped_by.weights)
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
        self._good_step = state.step
        self._actions.restore(self._recovery.extra)

    def _planned_end(self) -> int | None:
        """Returns the last step; None if it takes an epoch of data to know."""
        epochs = self._config.train_epochs
        if epochs is None:
            return self._config.train_steps
        per_epoch = self._trainer.train_iterator.steps_per_epoch()
        return None if per_epoch is None else math.ceil(per_epoch * epochs) - self._trainer.train_iterator.skipped_steps

    def _is_done(self) -> bool:
        return self.state.end_step is not None and self.state.step >= self.state.end_step

    # Training.

    def _next_due_step(self) -> int:
        step = self.state.step
        due = [self._summary.following(step), self._save.following(step)]
        if self._evaluates == "interval":
            due.append(self._validation.following(step))
        if self.state.end_step is not None:
            due.append(self.state.end_step)
        acts = self._actions.next_step(step, min(due) - 1)
        return min(due) if acts is None else acts

    def _train_window(self) -> None:
        """Runs a window up to where something is due, at most, and writes the summary if one is due."""
        state, start = self.state, self.state.step
        self._enter("train")
        while state.step == start and not self._is_done():  # none ran where an epoch ended
            self._good_step = state.step
            self._run_window(self._next_due_step())
            if problem := self._recovery.loss_problem():
                self._summarize()
                raise NonFiniteError(f"{problem}; {self._last_good()}")
            self._report_saves()
            self._stop.check()
        if self._summarizes_at(state.step) or self._is_done():
            self._summarize()

    def _run_to(self, step: int) -> None:
        """Runs windows until `step`, for repeating what was run before: the mean loss begins anew where it did."""
        self.state.step = int(self._trainer.global_step.numpy())
        while self.state.step < step:
            if self._summarizes_at(self.state.step):
                self._trainer.train_loop_end()
                self._trainer.train_loop_begin()
            self._run_window(min(step, self._summary.following(self.state.step)))
            self._stop.check()

    def _run_window(self, due_step: int) -> None:
        state = self.state
        self._recovery.leave_out_if_due(state.step)
        until = min(due_step, self._recovery.next_step(state.step))
        num_steps = min(int(until) - state.step, self._config.steps_per_loop, self._window_steps)
        published = self._actions.next_published_step(state.step, state.step + num_steps)
        options = {}
        if published is not None:
            num_steps = max(1, published - 1 - state.step)
            options = {"publish": True} if published == state.step + 1 else {}
        start = time.monotonic()
        ran = self._trainer.run_steps(num_steps, **options)
        seconds = time.monotonic() - start
        state.step += ran
        if ran:
            state.step_seconds.append(seconds / ran)
            self._window_steps = next_length(ran, seconds)
        if ran < num_steps:
            self._end_epoch()
        state.epoch = self._trainer.train_iterator.epoch(state.step)
        self._hooks.on_window(state, ran, seconds, self._trainer.mean_loss)

    def _end_epoch(self) -> None:
        """The data ended: goes on with the next epoch, or ends the run here."""
        state, iterator, epochs = self.state, self._trainer.train_iterator, self._config.train_epochs
        if epochs is None:
            _logger.info("the training data ended at step %d, and so does training (on_data_end: stop)", state.step)
            state.end_step = state.step
            return
        iterator.begin_next_epoch()
        done = int(iterator.position.epoch.numpy())
        # Epochs of one data set have one length: the first tells the end.
        state.end_step = state.step if done >= epochs else math.ceil(state.step / done * epochs)

    def _recover(self, error: NonFiniteError) -> None:
        """Goes back and on from there, or raises what cannot be recovered from."""
        state = self.state
        self._is_repeating = True
        done = self._recovery.recover(error, self._good_step, state.step, step_seconds=state.median_step_seconds or 0.0)
        self._is_repeating = False
        state.step = int(self._trainer.global_step.numpy())
        self._journal.rewind(state.step)
        self._hooks.on_rollback(state.step)
        self._saved_step = self._summarized_step = None
        self._actions.restore(self._recovery.extra)
        self._trainer.train_loop_begin()
        _logger.warning("%s", done)

    def _summarize(self) -> None:
        state = self.state
        self._summarized_step = state.step
        self._logs = self._trainer.train_loop_end()
        flat = flatten(self._logs)  # once: it waits for the device
        self._journal.log("train", state.step, flat)
        self._hooks.on_summary(state.step)
        self._run_view.train_logs, self._run_view.summary_step = flat, state.step
        self._run_view.outputs = self._logs
        if not self._is_done():
            self._trainer.train_loop_begin()

    # Actions.

    def _obey(self, requests: Sequence[Request]) -> None:
        """Does what actions ask for; a rollback first, because what else was asked for is about a state that goes."""
        for request in requests:
            if isinstance(request, Rollback):
                raise DivergedError(f"{request.reason}; {self._last_good()}")
        self._wants_save = self._wants_save or any(isinstance(request, Save) for request in requests)
        for request in requests:
            if isinstance(request, Stop) and self._stopped_by is None:
                self._end_here(request)

    def _end_here(self, stop: Stop) -> None:
        state, self._stopped_by, self.state.stop_reason = self.state, stop, stop.reason
        if state.step == 0:
            return  # there is nothing to end with
        state.end_step = state.step
        if self._summarized_step != state.step:
            self._summarize()
        self._hooks.on_stop(stop.reason)
        self._obey(self._actions.last_step())

    # Saving.

    def _save_if_due(self) -> None:
        step = self.state.step
        if (self._save.is_due_at(step) or self._wants_save or self._is_done()) and self._saved_step != step:
            self._save_checkpoint()
        self._wants_save = False

    def _save_checkpoint(self) -> None:
        """Saves the state as it is, or begins to; a state that is not finite is refused."""
        step = self.state.step
        self._enter("save")
        if names := self._trainer.non_finite_weights():
            raise NonFiniteError(f"weights are not finite at step {step}: {first_few(names)}; {self._last_good()}")
        if self._save.is_due_at(step) or self._is_done():
            self._trainer.synchronize()  # not where nobody planned to save: that would round what goes on from here
        self._begin_save(step)
        self._report_saves()

    def _begin_save(self, step: int, only_if: Callable[[], bool] = lambda: True) -> None:
        self._saved_step = step
        self._trainer.before_save()
        self._hooks.before_save(step)
        self._store.save(step, {**self._recovery.state(), **self._actions.state()}, only_if=only_if)

    def _saved_steps(self) -> Sequence[int]:
        self._store.wait()
        return self._store.steps()

    def _report_saves(self) -> None:
        """Tells of checkpoints committed meanwhile; the error of one that could not be written is raised here."""
        for step in self._store.poll():
            self._hooks.on_save(step)

    def _stopped(self) -> PreemptedError:
        """Saves what is not saved yet, and returns the error that says how the run was left."""
        if (step := self._sync_step()) > 0:
            if problem := self._recovery.loss_problem():
                raise NonFiniteError(f"{problem}; {self._last_good()}")
            if self._summarizes_at(step) and self._summarized_step != step:
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
        if not self._evaluates_at(step):
            return
        found = self._hooks.find_row(step, "validation")
        if found is None:
            self._enter("evaluate")
            logs = self._trainer.evaluate(self._config.validation_steps)
            self._obey(self._actions.traces(self._hooks.new_traces()))
            flat = flatten(logs)
            self._react(flat, logs)
            self._journal.log("validation", step, flat)
            self._logs = logs  # not before: the reaction may have brought a summary
            self._stop.check()
        elif not self._actions.has_seen_evaluation(step):
            self._react(found, found)  # the process died after the row, and the checkpoint is older than that

    def _is_evaluation_due(self, step: int) -> bool:
        at_interval = self._evaluates == "interval" and self._validation.is_due_at(step)
        return at_interval or (self._evaluates != "never" and self._is_done())

    def _react(self, logs: Mapping[str, float], outputs: Mapping[str, Any]) -> None:
        self._run_view.outputs = outputs
        self._obey(self._actions.evaluation(logs, ended=self._is_done()))
