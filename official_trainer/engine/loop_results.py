"""The numbers of a loop: summaries of training, and evaluations.

Owns: when each is made, and that each step has one row, also after a restart. Does not own: computing them
(`evaluation.py`, `train_steps.py`), where rows go (`tracking/`).
"""

from __future__ import annotations

from official_trainer.actions.action import Run
from official_trainer.engine.loop_parts import LoopParts, LoopProgress
from official_trainer.engine.loop_requests import ActionRequests
from official_trainer.tracking import flatten


class Summaries:
    """The summaries of training.

    Attributes:
      step: of the newest one; None before the first, and after a rollback.
    """

    def __init__(self, parts: LoopParts, progress: LoopProgress, run: Run) -> None:
        """Takes what actions see of the run, to put the numbers there."""
        self._parts, self._progress, self._run = parts, progress, run
        self.step: int | None = None

    @property
    def is_written(self) -> bool:
        """Whether this step has its summary."""
        return self.step == self._progress.step

    def start(self) -> None:
        """Begins to average, from where an earlier process may have written a summary."""
        self._parts.trainer.train_loop_begin()
        if (row := self._parts.observer.find_row(self._progress.step, "train")) is not None:
            self.step = self._run.summary_step = self._progress.step
            self._run.train_logs = self._run.outputs = row

    def restart(self) -> None:
        """The run has gone back: begins to average there."""
        self.step = None
        self._parts.trainer.train_loop_begin()

    def write(self) -> None:
        """Writes the summary of this step."""
        self.step = step = self._progress.step
        logs = self._parts.trainer.train_loop_end()
        self._progress.set_results(logs)
        flat = flatten(logs)  # once: it waits for the device
        self._parts.metric_writer.log("train", step, flat)
        self._parts.observer.on_summary(step)
        self._run.train_logs, self._run.summary_step, self._run.outputs = flat, step, logs
        if not self._progress.is_done:
            self._parts.trainer.train_loop_begin()

    def write_if_due(self) -> None:
        """Writes the summary, if this step is due."""
        if self._parts.due.is_summary_due(self._progress.step) or self._progress.is_done:
            self.write()


class Evaluations:
    """The evaluations of a run."""

    def __init__(self, parts: LoopParts, progress: LoopProgress, requests: ActionRequests) -> None:
        self._parts, self._progress, self._requests = parts, progress, requests

    def run_if_due(self) -> None:
        """Evaluates if this step is due, unless its row is written; actions see each evaluation once."""
        parts, step = self._parts, self._progress.step
        if not parts.due.is_evaluation_due(step, is_last=self._progress.is_done):
            return
        found = parts.observer.find_row(step, "validation")
        if found is None:
            self._progress.enter("evaluate")
            logs = parts.trainer.evaluate(parts.config.validation_steps)
            self._requests.report_new_traces()
            flat = flatten(logs)
            self._requests.on_evaluation(flat, logs)
            parts.metric_writer.log("validation", step, flat)
            self._progress.set_results(logs)  # not before: an action may have ended training, with a summary
            parts.stop.check()
        elif not parts.actions.has_seen_evaluation(step):
            self._requests.on_evaluation(found, found)  # the process died between the row and the next checkpoint
