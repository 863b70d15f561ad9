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
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.actions.action import LoopState, Request, Rollback, Run, Save, Stop
from official_trainer.engine.loop_parts import LoopParts
from official_trainer.engine.loop_saving import Saving
from official_trainer.engine.loop_windows import LoopWindows
from official_trainer.engine.recovery import DivergedError, NonFiniteError, Recovery
from official_trainer.stopping import Interrupted, PreemptedError
from official_trainer.tracking import numbers_in, points

_logger = logging.getLogger(__name__)


class Loop:
    """Runs one trainer to its end."""

    def __init__(self, parts: LoopParts) -> None:
        """Takes what it works with."""
        self._parts = parts
        self._recovery = Recovery(parts)
        self._windows = LoopWindows(parts, self._recovery)
        self._saving = Saving(parts, self._recovery)
        self._seen_by_actions = Run(
            state=self.state,
            trainer=parts.trainer,
            model_dir=parts.model_dir,
            tracker=parts.metric_writer,
            saved_steps=self._saving.steps,
        )
        self._results: Mapping[str, Any] = {}  # of the newest summary or evaluation, nested
        self._stop: Stop | None = None  # the first one that an action has asked for

    @property
    def state(self) -> LoopState:
        """Where the run is, as actions see it."""
        return self._parts.state

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
        return dict(self._results)

    def _run(self) -> None:
        self._restore()
        self._start()
        self._evaluate_if_due()  # an evaluation that a crash interrupted is repeated
        while not (self._parts.is_done or self._parts.is_paused):
            good_step = self.state.step  # the state was good until here
            try:
                self._train_window()
                self._report_new_traces()
                self._meet(self._parts.actions.step(summarized=self._is_summarized, ended=self._parts.is_done))
                self._saving.save_if_due()
                self._evaluate_if_due()
                self._saving.save_if_due()  # an action may have ended training because of the evaluation
            except NonFiniteError as error:
                self._recover(error, good_step)
        self._pause() if self._parts.is_paused else self._export()

    def _restore(self) -> None:
        """Restores the newest checkpoint, or initializes, and drops what was recorded of later steps."""
        with self._parts.stop.interruptible():
            self._parts.enter("restore")
            restored = self._recovery.restore()
            self.state.start_step = self._parts.read_step()
            if not restored and self.state.start_step == 0:  # else the caller has trained before, and keeps the weights
                self._parts.trainer.initialize()
            self._parts.actions.restore(self._recovery.extra)
            self._parts.observer.on_restore(self.state)
            self._parts.metric_writer.rewind(self.state.step)
            self.state.end_step = self._parts.due.planned_end(self.state.step, self._parts.trainer.train_iterator)

    def _start(self) -> None:
        self._parts.observer.on_start(self.state)
        self._saving.begin()
        self._parts.trainer.train_loop_begin()
        seen = self._seen_by_actions
        if (row := self._parts.observer.find_row(self.state.step, "train")) is not None:
            seen.train_logs, seen.summary_step, seen.outputs = row, self.state.step, row
        self._meet(self._parts.actions.start(seen))

    def _train_window(self) -> None:
        """Runs a window up to where something is due, at most, and writes the summary if one is due."""
        start = self.state.step
        self._parts.enter("train")
        # More than once where the data of an epoch has ended: that window has no step.
        while self.state.step == start and not self._parts.is_done:
            self._windows.run()
            if problem := self._recovery.loss_problem():
                self._write_summary()
                raise NonFiniteError(f"{problem}; {self._saving.last_good()}")
            self._saving.report()
            self._parts.stop.check()
        if self._parts.due.is_summary_due(self.state.step) or self._parts.is_done:
            self._write_summary()

    @property
    def _is_summarized(self) -> bool:
        """Whether this step has its summary."""
        return self._seen_by_actions.summary_step == self.state.step

    def _write_summary(self) -> None:
        """Writes the summary of training at this step."""
        parts, seen, step = self._parts, self._seen_by_actions, self.state.step
        seen.summary_step = step
        self._results = seen.outputs = parts.trainer.train_loop_end()
        found = points(self._results)  # once: it waits for the device
        seen.train_logs = numbers_in(found)
        parts.metric_writer.log("train", step, found)
        parts.observer.on_summary(step)
        if not parts.is_done:
            parts.trainer.train_loop_begin()

    def _evaluate_if_due(self) -> None:
        """Evaluates if this step is due, unless its row is written; actions see each evaluation once."""
        parts, step = self._parts, self.state.step
        if not parts.due.is_evaluation_due(step, is_last=parts.is_done):
            return
        found = parts.observer.find_row(step, "validation")
        if found is None:
            parts.enter("evaluate")
            logs = parts.trainer.evaluate(parts.config.validation_steps)
            self._report_new_traces()
            results = points(logs)
            self._show_evaluation(numbers_in(results), logs)
            parts.metric_writer.log("validation", step, results)
            self._results = logs  # not before: an action may have ended training, with a summary
            parts.stop.check()
        elif not parts.actions.has_seen_evaluation(step):
            self._show_evaluation(found, found)  # the process died between the row and the next checkpoint

    def _show_evaluation(self, logs: Mapping[str, float], outputs: Mapping[str, Any]) -> None:
        self._seen_by_actions.outputs = outputs
        self._meet(self._parts.actions.evaluation(logs, ended=self._parts.is_done))

    def _report_new_traces(self) -> None:
        self._meet(self._parts.actions.traces(self._parts.trainer.context.traces.take()))

    def _meet(self, requests: Sequence[Request]) -> None:
        """Does what actions ask for; a rollback first, because other requests are about a state that it discards."""
        for request in requests:
            if isinstance(request, Rollback):
                raise DivergedError(f"{request.reason}; {self._saving.last_good()}")
        if any(isinstance(request, Save) for request in requests):
            self._saving.request()
        for request in requests:
            if isinstance(request, Stop) and self._stop is None:
                self._stop = request
                self._end_early(request.reason)

    def _end_early(self, reason: str) -> None:
        """An action ends training at this step, as if it were the last one."""
        self.state.stop_reason = reason
        if self.state.step == 0:
            return  # there is no state to save or to evaluate
        self.state.end_step = self.state.step
        if not self._is_summarized:
            self._write_summary()
        self._parts.observer.on_stop(reason)
        self._meet(self._parts.actions.step(summarized=True, ended=True))

    def _recover(self, error: NonFiniteError, good_step: int) -> None:
        """Goes back and prepares to continue from there, or raises what cannot be recovered from."""
        with self._saving.repeating():
            report = self._recovery.recover(error, good_step, self.state.step, self._windows.run_to)
        step = self._parts.read_step()
        self._parts.metric_writer.rewind(step)
        self._parts.observer.on_rollback(step)
        self._parts.actions.restore(self._recovery.extra)
        self._seen_by_actions.summary_step = None
        self._parts.trainer.train_loop_begin()
        _logger.warning("%s", report)

    def _pause(self) -> None:
        """Ends this process at a step that is not the last one, as if it went on: nothing is exported."""
        state = self.state
        self._parts.enter("save")
        self._saving.finish()
        of = "" if state.end_step is None else f" of {state.end_step}"
        state.stop_reason = f"stopped at step {state.step}{of}, by --until_step; without it the same command goes on"
        self._parts.observer.on_stop(state.stop_reason)

    def _export(self) -> None:
        self._parts.enter("save")
        self._saving.finish()
        self._parts.enter("export")
        with self._parts.stop.interruptible():
            if self._stop is not None and self._stop.weights is not None:
                self._parts.trainer.checkpoint_state.load_weights(*self._stop.weights)
            self._parts.observer.on_end(self.state.step, self._results)

    def _save_at_stop(self) -> PreemptedError:
        """Saves what is not saved yet, and returns the error that describes how the run ended."""
        if (step := self._saving.step_to_save()) > 0:
            if problem := self._recovery.loss_problem():
                raise NonFiniteError(f"{problem}; {self._saving.last_good()}")
            if self._parts.due.is_summary_due(step) and not self._is_summarized:
                self._write_summary()  # the window that was interrupted may have ended where this is due
            self._saving.save()
            self._saving.finish()
        return PreemptedError(f"{self._parts.stop.reason} {self._saving.describe_end()[0]}")

    def _describe_forced_end(self) -> tuple[str, int]:
        what, exit_code = self._saving.describe_end()
        self._parts.observer.on_forced_end(exit_code, f"{self._parts.stop.reason} {what}")
        return what, exit_code
