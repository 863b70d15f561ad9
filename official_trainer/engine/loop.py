"""The loop of a run: windows of training steps, and what happens between two of them, in its order.

    restore → [ window → check loss → check stop → summary → traces → actions
              → save → evaluate → check stop → save ]* → export

What one step of a window does: `tasks/task.py`, `Task.train_step`. *Traces* are the functions that TensorFlow has
traced since the last call, of which actions are told (`on_trace`).

Owns: the order of events and that each happens at exactly its step, however often the run was restarted and for any
`steps_per_loop`; that a step is saved once, and no state that is not finite ever; what a process that ends leaves
behind. Does not own: which steps are due, what is told of events, how long a window may be
(`events.py`), going back (`recovery.py`), how anything is done (the trainer, the store, the actions).

Between two steps of a window no Python of this loop runs (`windows.py`): a window ends where something is due. The
order is part of correctness:
- a loss that is not finite ends its window; the summary is written first, so that the window is on record;
- `save` checks the weights, so that no state that is not finite is ever saved;
- a requested stop ends the run between two windows and saves that step unless it is saved; it is looked for after each
  window, between the batches of an evaluation and after it, and before an export;
- the save comes before the evaluation, so that a crash there loses no training; actions may ask for another after it;
- an evaluation's row is written last, after its best checkpoint: the row marks the evaluation as done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer.actions.action import LoopState, Request, Rollback, Run, Save, Stop
from official_trainer.actions.schedule import Schedule
from official_trainer.engine.events import DueSteps, LoopObserver, WindowLength
from official_trainer.engine.recovery import DivergedError, NonFiniteError, Recovery
from official_trainer.errors import UserError
from official_trainer.shown import first_few
from official_trainer.stopping import NOTHING_LOST, PreemptedError, StopRequest
from official_trainer.tracking import Tracker, numbers_in, points

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(kw_only=True, eq=False)
class Loop:
    """Runs one trainer to its end.

    Size: the events of a run stand in one place, in their order.

    Attributes:
      trainer: runs steps and evaluations.
      store: saves and restores the trainer's state.
      metric_writer: takes numbers.
      due: when something is due.
      observer: receives the events.
      actions: called at their steps.
      stop: hears signals from the first window on, if it may, and is checked after each window and evaluation.
      model_dir: the run directory, for actions and for reports of a loss that is not finite; empty for none.
      until_step: the step at which this process stops before the last one of training; None for no such step.
      extra: what actions are restored from without a checkpoint: `Schedule.state()` of a loop before, in this process.
      state: step, first and last step, as actions see them.
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

    def __post_init__(self) -> None:
        """Begins before the first step."""
        self._recovery = Recovery(self.trainer, self.store, self.model_dir, self.extra)
        self._run = Run(
            state=self.state,
            trainer=self.trainer,
            model_dir=self.model_dir,
            tracker=self.metric_writer,
            saved_steps=self._saved_steps,
        )
        self._results: Mapping[str, Any] = {}  # of the newest summary or evaluation, nested
        self._requested_stop: Stop | None = None  # the first one that an action has asked for
        self._phase = ""  # the one that began last
        self._length = WindowLength()
        self._saved_step: int | None = None
        self._is_save_requested = False

    def run(self) -> dict[str, Any]:
        """Trains to the end and returns the last results: of the evaluation if there was one, else of training.

        Raises:
          PreemptedError: a stop was requested, and the state is saved.
          NonFiniteError: the loss or a weight is not finite, and no recovery is left.
        """
        with contextlib.closing(self.store), self._ended_in_any_case():
            self._restore()
            self._start()
            self._evaluate_if_due()  # an evaluation that a crash interrupted is repeated
            while not (self.state.is_done or self._is_paused):
                try:
                    self._train_window()
                    self._meet(self.actions.traces(self.trainer.context.traces.take()))
                    self._meet(self.actions.step(summarized=self._run.is_summarized, ended=self.state.is_done))
                    self._save_if_due()
                    self._evaluate_if_due()
                    self.stop.check()
                    self._save_if_due()  # an action may have ended training because of the evaluation
                except NonFiniteError as error:
                    self._recover(error)
            self._finish()
        return dict(self._results)

    @property
    def _is_paused(self) -> bool:
        """Whether this process stops here, and training goes on in another one."""
        return self.until_step is not None and self.state.step >= self.until_step and not self.state.is_done

    def _enter(self, phase: str) -> None:
        """Begins a phase, unless the loop is in it."""
        if phase != self._phase:
            self._phase = phase
            self.observer.on_phase(phase, self.state.step)

    def _read_step(self) -> int:
        """Takes the step from the trainer's variable, and returns it."""
        self.state.step = int(self.trainer.global_step.numpy())
        return self.state.step

    def _restore(self) -> None:
        """Restores the newest checkpoint, or initializes, and drops what was recorded of later steps."""
        state = self.state
        self._enter("restore")
        restored = self._recovery.restore()
        state.start_step = self._read_step()
        if not restored and state.start_step == 0:  # else the caller has trained before, and keeps the weights
            self.trainer.initialize()
        self.actions.restore(self._recovery.extra)
        self.observer.on_restore(state)
        self.metric_writer.rewind(state.step)
        state.end_step = self.due.planned_end(state.step, self.trainer.train_iterator)

    def _start(self) -> None:
        self.stop.listen(self._record_forced_end)
        self.observer.on_start(self.state)
        self.trainer.train_loop_begin()
        run = self._run
        if (row := self.observer.find_row(self.state.step, "train")) is not None:
            run.train_logs, run.summary_step, run.outputs = row, self.state.step, row
        self._meet(self.actions.start(run))

    def _train_window(self) -> None:
        """Runs a window up to where something is due, at most, and writes the summary if one is due."""
        state, start = self.state, self.state.step
        self._enter("train")
        # More than once where the data of an epoch has ended: that window has no step.
        while state.step == start and not state.is_done:
            due = [self.due.next_step(start), state.end_step, self.until_step]
            due_step = min(step for step in due if step is not None)
            acts = self.actions.next_step(start, due_step - 1)
            self.run_window(due_step if acts is None else acts)
            if problem := self._recovery.loss_problem():
                bad_step = self.trainer.windows.first_bad_step  # before the summary, which forgets it
                self._write_summary()
                raise NonFiniteError(f"{problem}; {_last_good(self.store)}", bad_step)
            self._report_saves()
            self.stop.check()
        if self.due.is_summary_due(state.step) or state.is_done:
            self._write_summary()

    def run_window(self, due_step: int) -> None:
        """Runs a window of steps up to `due_step`, at most."""
        state, trainer = self.state, self.trainer
        self._recovery.leave_out_if_due(state.step)
        until = min(due_step, self._recovery.next_step(state.step))
        num_steps = min(int(until) - state.step, trainer.config.trainer.steps_per_loop, self._length.max_steps)
        published = self.actions.next_published_step(state.step, state.step + num_steps)
        if published is not None:
            num_steps = max(1, published - 1 - state.step)
        start = time.monotonic()
        ran = trainer.run_steps(num_steps, publish=published == state.step + 1)
        seconds = time.monotonic() - start
        state.step += ran
        if ran:
            state.step_seconds.append(seconds / ran)
            state.step_durations.add(seconds / ran, steps=ran)
            self._length.add(ran, seconds)
        if ran < num_steps:
            state.end_step = self.due.end_after_data(state.step, trainer.train_iterator)
        state.epoch = trainer.train_iterator.epoch(state.step)
        self.observer.on_window(state, ran, seconds, trainer.windows.mean_loss)

    def _write_summary(self) -> None:
        """Writes the summary of training at this step."""
        run, step = self._run, self.state.step
        run.summary_step = step
        self._results = run.outputs = self.trainer.train_loop_end()
        results = points(self._results)  # once: it waits for the device
        run.train_logs = numbers_in(results)
        self.metric_writer.log("train", step, results)
        self.observer.on_summary(step)
        if not self.state.is_done:
            self.trainer.train_loop_begin()

    def _meet(self, requests: Sequence[Request]) -> None:
        """Does what actions ask for; a rollback first, because other requests are about a state that it discards."""
        for request in requests:
            if isinstance(request, Rollback):
                raise DivergedError(f"{request.reason}; {_last_good(self.store)}")
        self._is_save_requested |= any(isinstance(request, Save) for request in requests)
        stop = next((request for request in requests if isinstance(request, Stop)), None)
        if stop is None or self._requested_stop is not None:
            return
        # Training ends at this step, as if it were the last one.
        self._requested_stop, self.state.stop_reason = stop, stop.reason
        if self.state.step == 0:
            return  # there is no state to save or to evaluate
        self.state.end_step = self.state.step
        if not self._run.is_summarized:
            self._write_summary()
        self.observer.on_stop(stop.reason)
        self._meet(self.actions.step(summarized=True, ended=True))

    @property
    def _is_save_planned(self) -> bool:
        return self.due.is_save_due(self.state.step) or self.state.is_done

    def _save_if_due(self) -> None:
        """Saves, if this step is due and not saved yet."""
        is_due = self._is_save_planned or self._is_save_requested or self._is_paused
        if is_due and self._saved_step != self.state.step:
            self.save()
        self._is_save_requested = False

    def save(self) -> None:
        """Saves the state as it is, or begins to.

        Raises:
          NonFiniteError: a weight is not finite.
        """
        step = self.state.step
        self._enter("save")
        if names := self.trainer.checkpoint_state.non_finite_weights():
            raise NonFiniteError(f"weights are not finite at step {step}: {first_few(names)}; {_last_good(self.store)}")
        if self._is_save_planned:
            # Not at other steps: that would round what is computed from here on.
            self.trainer.checkpoint_state.synchronize()
        self._saved_step = step
        self.trainer.checkpoint_state.before_save()
        self.observer.before_save(step)
        self.store.save(step, {**self._recovery.state(), **self.actions.state()})
        self._report_saves()

    def _report_saves(self) -> None:
        """Reports checkpoints that were committed meanwhile; raises the error of one that could not be written."""
        for step in self.store.poll():
            self.observer.on_save(step)

    def _saved_steps(self) -> Sequence[int]:
        """Waits for the save that runs, and returns the steps that are saved."""
        self.store.wait()
        return self.store.steps()

    def _evaluate_if_due(self) -> None:
        """Evaluates if this step is due, unless its row is written; actions see each evaluation once."""
        step = self.state.step
        if not self.due.is_evaluation_due(step, is_last=self.state.is_done):
            return
        row = self.observer.find_row(step, "validation")
        if row is None:
            self._enter("evaluate")
            logs = self.trainer.evaluate(self.trainer.config.trainer.validation_steps)
            self._meet(self.actions.traces(self.trainer.context.traces.take()))
            results = points(logs)
            self._run.outputs = logs
            self._meet(self.actions.evaluation(numbers_in(results), ended=self.state.is_done))
            self.metric_writer.log("validation", step, results)
            self._results = logs  # not before: an action may have ended training, with a summary
        elif not self.actions.has_seen_evaluation(step):
            self._run.outputs = row  # the process died between the row and the next checkpoint
            self._meet(self.actions.evaluation(row, ended=self.state.is_done))

    def _recover(self, error: NonFiniteError) -> None:
        """Goes back and prepares to continue from there, or raises what cannot be recovered from."""
        report = self._recovery.recover(error, self.state.step)
        self._saved_step = None  # later steps will be saved again
        step = self._read_step()
        self.metric_writer.rewind(step)
        self.observer.on_rollback(step)
        self.actions.restore(self._recovery.extra)
        self._run.summary_step = None
        self.trainer.train_loop_begin()
        _logger.warning("%s", report)

    def _finish(self) -> None:
        """Exports, once everything is saved; nothing where this process ends before the last step."""
        state = self.state
        self._enter("save")
        self.store.wait()
        self._report_saves()
        if self._is_paused:
            reached = f"step {state.step}" + ("" if state.end_step is None else f" of {state.end_step}")
            state.stop_reason = f"stopped at {reached}, by --until_step; without it the same command goes on"
            self.observer.on_stop(state.stop_reason)
            return
        self.stop.check()
        self._enter("export")
        self.observer.on_end(state.step, self._results)

    @contextlib.contextmanager
    def _ended_in_any_case(self) -> Iterator[None]:
        """For the events of a run: a stop saves what is not saved yet, and actions learn how the run has ended."""
        try:
            try:
                yield
            except PreemptedError as error:
                raise self._save_at_stop() from error
        except BaseException as error:
            self.actions.end(error)
            raise
        self.actions.end(None)

    def _save_at_stop(self) -> PreemptedError:
        """Saves what is not saved yet, and returns the error that describes how the run ended."""
        if (step := self._read_step()) == 0:
            return PreemptedError(f"{self.stop.reason} before the first step; {NOTHING_LOST}")
        if problem := self._recovery.loss_problem():
            raise NonFiniteError(f"{problem}; {_last_good(self.store)}")
        if self.due.is_summary_due(step) and not self._run.is_summarized:
            self._write_summary()  # the window that was left may have ended where this is due
        self.save()
        self.store.wait()
        self._report_saves()
        return PreemptedError(f"{self.stop.reason} at step {step}, which is saved; the same command continues")

    def _record_forced_end(self) -> str:
        """Records that this process is ended while its main thread hangs; returns what is saved. In another thread."""
        what = f"{_last_good(self.store)}; the same command continues"
        self.observer.on_forced_end(f"{self.stop.reason}, and the process hung after step {self.state.step}; {what}")
        return what


def _last_good(store: Any) -> str:
    """Returns which checkpoint is the last good one, for an error message."""
    try:
        store.wait()
    except UserError as error:  # a worse error is being reported
        _logger.warning("%s", error)
    step = store.latest_step()
    return f"the last good checkpoint is {'none' if step is None else store.prefix(step)}"
