"""The loop: restore → [ train window → summary → check finite → actions → save → evaluate ]* → export.

Owns: the order of events and that each happens at exactly its step, however often the run was restarted and for any
`steps_per_loop`. Does not own: how anything is done (the other modules of this package).

The order is part of correctness:
- the summary comes first, so that the window that failed is on record;
- the finite check comes before the save, so that no bad state is ever saved;
- when a stop is requested, the run ends between two steps, and saves that step unless it is saved already;
- the save comes before the evaluation, so that a crash while evaluating loses no training;
- an evaluation's row is written last, after its best checkpoint: the row marks the evaluation as done.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from official_trainer.actions.action import LoopState, Run
from official_trainer.engine.loop_parts import LoopParts, LoopProgress
from official_trainer.engine.loop_requests import ActionRequests
from official_trainer.engine.loop_results import Evaluations, Summaries
from official_trainer.engine.loop_saving import Saving
from official_trainer.engine.loop_windows import LoopWindows
from official_trainer.engine.recovery import NonFiniteError, Recovery
from official_trainer.stopping import Interrupted, PreemptedError

_logger = logging.getLogger(__name__)


class Loop:
    """Runs one trainer to its end."""

    def __init__(self, parts: LoopParts) -> None:
        """Takes what it works with."""
        self._parts = parts
        self._progress = LoopProgress(parts)
        self._recovery = Recovery(parts.trainer, parts.store, diagnosis=parts.diagnosis)
        self._windows = LoopWindows(parts, self._progress, self._recovery)
        self._saving = Saving(parts, self._progress, self._recovery)
        run = Run(
            state=self.state,
            trainer=parts.trainer,
            model_dir=parts.model_dir,
            tracker=parts.metric_writer,
            saved_steps=self._saving.steps,
        )
        self._summaries = Summaries(parts, self._progress, run)
        self._requests = ActionRequests(parts, self._progress, run, end_early=self._end_early, saving=self._saving)
        self._evaluations = Evaluations(parts, self._progress, self._requests)

    @property
    def state(self) -> LoopState:
        """Where the run is, as actions see it."""
        return self._progress.state

    def run(self) -> dict[str, Any]:
        """Trains to the end and returns the last results: of the evaluation if there was one, else of training.

        Raises:
          PreemptedError: a stop was requested, and the state is saved.
          NonFiniteError: the loss or a weight is not finite, and no recovery is left.
        """
        self._parts.stop.register(self._describe_forced_end, self._saving.save_while_hanging)
        with contextlib.closing(self._parts.store):
            try:
                try:
                    self._run()
                except (PreemptedError, Interrupted) as error:
                    self._parts.stop.stop_interrupting()
                    raise self._save_at_stop() from error
            except BaseException as error:
                self._parts.actions.end(error)
                raise
            self._parts.actions.end(None)
        return dict(self._progress.results)

    def _run(self) -> None:
        self._restore()
        self._start()
        self._evaluations.run_if_due()  # an evaluation that a crash interrupted is repeated
        while not self._progress.is_done:
            try:
                self._train_window()
                self._requests.report_new_traces()
                self._requests.on_step(summarized=self._summaries.is_written)
                self._saving.save_if_due()
                self._evaluations.run_if_due()
                self._saving.save_if_due()  # an action may have ended training because of the evaluation
            except NonFiniteError as error:
                self._recover(error)
        self._export()

    def _restore(self) -> None:
        """Restores the newest checkpoint, or initializes, and drops what was recorded of later steps."""
        with self._parts.stop.interruptible():
            self._progress.enter("restore")
            if not self._recovery.restore():
                self._parts.trainer.initialize()
            self.state.start_step = self._progress.read_step()
            self._progress.start_window()
            self._parts.actions.restore(self._recovery.extra)
            self._parts.observer.on_restore(self.state)
            self._parts.metric_writer.rewind(self.state.step)
            self.state.end_step = self._windows.planned_end()

    def _start(self) -> None:
        self._parts.observer.on_start(self.state)
        self._progress.begin()
        self._summaries.start()
        self._requests.on_start()

    def _train_window(self) -> None:
        """Runs a window up to where something is due, at most, and writes the summary if one is due."""
        start = self._progress.step
        self._progress.enter("train")
        # More than once where the data of an epoch has ended: that window has no step.
        while self._progress.step == start and not self._progress.is_done:
            self._windows.run()
            if problem := self._recovery.loss_problem():
                self._summaries.write()
                raise NonFiniteError(f"{problem}; {self._saving.last_good()}")
            self._saving.report()
            self._parts.stop.check()
        self._summaries.write_if_due()

    def _end_early(self, reason: str) -> None:
        """An action ends training at this step, as if it were the last one."""
        self.state.stop_reason = reason
        if self.state.step == 0:
            return  # there is no state to save or to evaluate
        self.state.end_step = self.state.step
        if not self._summaries.is_written:
            self._summaries.write()
        self._parts.observer.on_stop(reason)
        self._requests.on_last_step()

    def _recover(self, error: NonFiniteError) -> None:
        """Goes back and prepares to continue from there, or raises what cannot be recovered from."""
        seconds = self.state.median_step_seconds or 0.0
        good_step, failed_step = self._progress.good_step, self._progress.step
        with self._progress.repeating():
            report = self._recovery.recover(
                error, good_step, failed_step, step_seconds=seconds, run_to=self._windows.run_to
            )
        step = self._progress.read_step()
        self._parts.metric_writer.rewind(step)
        self._parts.observer.on_rollback(step)
        self._saving.forget()
        self._parts.actions.restore(self._recovery.extra)
        self._summaries.restart()
        _logger.warning("%s", report)

    def _export(self) -> None:
        self._progress.enter("save")
        self._saving.finish()
        self._progress.enter("export")
        with self._parts.stop.interruptible():
            if self._requests.weights is not None:
                self._parts.observer.load_weights(*self._requests.weights)
            self._parts.observer.on_end(self.state.step, self._progress.results)

    def _save_at_stop(self) -> PreemptedError:
        """Saves what is not saved yet, and returns the error that describes how the run ended."""
        if (step := self._progress.sync_step()) > 0:
            if problem := self._recovery.loss_problem():
                raise NonFiniteError(f"{problem}; {self._saving.last_good()}")
            if self._parts.due.is_summary_due(step) and not self._summaries.is_written:
                self._summaries.write()  # the window that was interrupted may have ended where this is due
            self._saving.save()
            self._saving.finish()
        return PreemptedError(f"{self._parts.stop.reason} {self._saving.describe_end()[0]}")

    def _describe_forced_end(self) -> tuple[str, int]:
        what, exit_code = self._saving.describe_end()
        self._parts.observer.on_forced_end(exit_code)
        return what, exit_code
