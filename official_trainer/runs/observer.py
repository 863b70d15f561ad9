"""What the events of a loop mean for the run directory, the console and the trackers.

Owns: what is written at each event, and the lines at the start and the end. Does not own: when events happen
(`engine/loop.py`), the process around them, its watchdog and its end (`training_process.py`), the format of `run.json`
and `status.json` (`tracking/record.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer import config as configuration
from official_trainer import files
from official_trainer.actions.action import LoopState
from official_trainer.checkpoints import manifest
from official_trainer.distributed import devices, parameter_server
from official_trainer.engine.events import LoopObserver
from official_trainer.engine.trainer import Trainer
from official_trainer.errors import ExitCode
from official_trainer.files import RUN_FILE, STOP_FILE
from official_trainer.inputs import InputContext
from official_trainer.lazy import tf
from official_trainer.runs.build import best_of, export_at_end, export_best
from official_trainer.runs.continuing import check_restored, validation_sources
from official_trainer.runs.health import time_account
from official_trainer.runs.health.watchdog import stacks
from official_trainer.runs.job import Job
from official_trainer.runs.resume import config_changes, data_layout
from official_trainer.runs.training_process import TrainingProcess
from official_trainer.tasks import export, optimization, variables
from official_trainer.tasks.task import makes_optimizer
from official_trainer.tracking import monitored
from official_trainer.tracking.console import format_number
from official_trainer.tracking.jsonl import numbers_of, read_rows

_logger = logging.getLogger(__name__)
_SHOWN_PHASES = {"evaluate": "evaluating", "export": "exporting"}
_STATUS_SECONDS = 1.0  # how often `status.json` is written while training


class RunObserver(LoopObserver):
    """Writes the events of a loop to the run directory, the console and the trackers."""

    def __init__(self, job: Job, trainer: Trainer, process: TrainingProcess, remember: Callable[..., object]) -> None:
        """Takes the parts.

        Args:
          job: the run.
          trainer: that the loop runs.
          process: its record, its trackers, and the lock on its directory.
          remember: takes fields of `RunFacts`, by name, for the manifests of checkpoints.
        """
        self._job, self._trainer, self._remember = job, trainer, remember
        self._process, self._record = process, process.record
        self._console = process.trackers.console
        self._next_status_seconds = 0.0
        self._num_traces = 0
        self._changes: Sequence[config_changes.Change] = ()
        self._has_data = False
        self._exported: tuple[str, str] | None = None  # which weights, and where they are
        self._saving: Sequence[int] | None = ()  # the step of a save that has not ended; None when the run has

    def steps_to_return_to(self) -> Sequence[int]:
        """Returns the steps from which the run may continue if it is interrupted, or goes back, before its end.

        Not all that are there: those which are kept for ever are too many, and too old.
        """
        if self._saving is None:
            return ()
        newest = manifest.committed_steps(self._job.model_dir)[-self._job.config.trainer.max_to_keep :]
        return *newest, *self._saving

    def on_data(self, context: InputContext) -> None:
        """The training data is built for a context; how it is divided is recorded the first time."""
        if not self._has_data:
            self._has_data = True
            layout = data_layout.report(context, self._console.message)
            compared = {name: layout[name] for name in data_layout.COMPARED if name in layout}
            self._remember(data=compared, validation_sources=validation_sources(self._trainer))
            self._record.note(input=layout)

    def on_restore(self, state: LoopState) -> None:
        saved_step = self._record.last_checkpoint_step
        trackers = self._process.trackers
        self._changes = check_restored(self._job, self._trainer, trackers, state.step, saved_step)

    def on_start(self, state: LoopState) -> None:
        """Records what trains from where; from here on the run directory is that of this config."""
        self._process.set_started()
        job = self._job
        config_changes.write_params(job.model_dir, job.resolved, is_shared=job.prebuilt is not None)
        self._process.gin.replace()
        if (best := best_of(self._trainer)) is not None:
            best.tidy()
            named = self._record.best
            if named is not None and best.step is None and named["metric"] == best.metric:
                _logger.warning(
                    "%s names a best checkpoint (%s %s at step %d), but %s holds none: it was deleted or damaged. The "
                    "best of the evaluations from here on is kept there.",
                    *(job.path(RUN_FILE), named["metric"], named["value"], named["step"], best.directory),
                )
                self._record.note(best=None)
        used = [device.name for device in tf.config.list_logical_devices()]
        if self._trainer.context.workers is not None:
            self._record.note(order_of_examples=parameter_server.ORDER_OF_EXAMPLES)
        self._record.note(devices=used, cores=len(devices.cores()) or None)
        self._record.note(optimizers=_optimizers_of_task(self._trainer) or None)
        restored = self._trainer.restored
        if state.start_step == 0:  # else an earlier process has begun the run, and recorded this
            self._record.note(init_checkpoint=[dataclasses.asdict(restoration) for restoration in restored] or None)
        self._record.set_span(state.start_step, state.end_step)
        self._process.trackers.all.describe(job.experiment, configuration.flat(job.config))
        count, wanted = variables.count(self._trainer.model).trainable, job.config.trainer.train_steps
        start = f"continuing from step {state.start_step}" if state.start_step else "starting"
        if wanted and state.start_step > wanted:  # a run that has reached `train_steps` exactly is simply done
            start = f"at step {state.start_step} already, past trainer.train_steps={wanted}: nothing to train"
        devices_text = self._trainer.context.devices
        self._console.message(f"{job.experiment}: {count:,} parameters on {devices_text}, {start} in {job.model_dir}")
        for restoration in restored:
            self._console.message(str(restoration))
        if self._changes:
            self._console.message(config_changes.notice(self._changes, state.start_step))
        if problem := config_changes.no_step_left(job.resolved, state.start_step, self._changes):
            _logger.warning("%s", problem.message)
        if state.end_step is None or state.start_step < state.end_step:
            self._console.doing("the first steps are traced", state.start_step)

    def on_phase(self, phase: str, step: int) -> None:
        self._process.enter(phase, step)
        if phase in _SHOWN_PHASES:
            self._console.doing(_SHOWN_PHASES[phase], step)

    def on_window(self, state: LoopState, num_steps: int, seconds: float, loss: float) -> None:
        """Shows progress; ends the run if the directory is not that of this process any more."""
        self._process.watchdog.beat(state.step)
        self._process.lock.check_held()
        examples, traces = self._trainer.examples_of(num_steps), self._trainer.context.traces.count("train")
        has_traced, self._num_traces = traces > self._num_traces, traces
        self._process.account.window(num_steps, seconds, examples=examples, has_traced=has_traced)
        self._console.end_step = state.end_step
        self._console.progress(state.step, loss=loss, examples_per_second=examples / max(seconds, 1e-9))
        self._record.take_step(state.step)
        if (now := time.monotonic()) >= self._next_status_seconds:
            self._next_status_seconds = now + _STATUS_SECONDS
            self._record.phase("train", state.step)

    def on_summary(self, step: int) -> None:
        self._process.trackers.all.log("time", step, self._process.account.end_stretch())

    def before_save(self, step: int) -> None:
        self._saving = (step,)
        self._process.trackers.all.flush()
        self._remember(last_row=self._process.trackers.rows.last())

    def on_save(self, step: int) -> None:
        self._process.save_time()  # the record of a process that is killed covers the time up to here
        self._record.checkpoint(step)
        if self._saving == (step,):
            self._saving = ()
        best = self._record.best
        also = f" and {_best_name(self._job, step)}" if best is not None and best["step"] == step else ""
        self._console.message(f"saved ckpt-{step}{also}")

    def on_rollback(self, step: int) -> None:
        """Takes back what was recorded of steps that the run has gone back from."""
        self._record.checkpoint(step, is_new=False)
        export.delete_after(self._job.path("export", "best"), step)
        best = best_of(self._trainer)
        if best is None or not (dropped := best.drop_after(step)):
            return
        very_best = next(iter(best.kept), None)
        if very_best is None or very_best.value is None:
            self._record.note(best=None)
        else:
            self._record.set_best(best.metric, very_best.value, very_best.step)
        steps = ", ".join(map(str, dropped))
        now = "no best checkpoint is left" if best.step is None else f"that of step {best.step} is the best again"
        _logger.warning("the best checkpoint of step %s was deleted, because its step is repeated; %s", steps, now)

    def on_new_best(self, step: int, logs: Mapping[str, Any]) -> None:
        """A new best checkpoint is committed, and its weights are in the model."""
        best = self._trainer.checkpoint_exporter
        self._record.set_best(best.metric, best.kept[0].value, step)
        if self._saving != (step,):  # else the line about the checkpoint says it too
            self._console.message(f"saved {_best_name(self._job, step)}", after_results=True)
        if self._job.config.trainer.export.best:
            export_best(self._job, self._trainer, step, logs)

    def on_stop(self, reason: str) -> None:
        self._record.note(stopped_early=reason)
        self._console.message(reason)

    def on_end(self, step: int, logs: Mapping[str, Any]) -> None:
        """Exports the model, if the run is configured to."""
        self._saving = None
        if (best := best_of(self._trainer)) is not None:
            best.tidy()
        self._exported = export_at_end(self._job, self._trainer, step, logs or self.last_row(), self.find_row)

    def on_forced_end(self, error: str) -> None:
        with contextlib.suppress(OSError):
            files.write_text_atomically(self._job.path(STOP_FILE), f"{error}\n\n{stacks()}", durable=False)
        self._process.finish(ExitCode.RETRY, error=error)

    def find_row(self, step: int, split: str) -> Mapping[str, float] | None:
        return self._process.trackers.rows.row(step, split)

    def last_row(self) -> dict[str, float]:
        """Returns the newest numbers, an evaluation's before training's, for a run with nothing left to do."""
        path = self._process.trackers.rows.path
        rows = [row for row in read_rows(path) if row["split"] in ("train", "validation")] if files.exists(path) else []
        if not rows:
            return {}
        return numbers_of(max(rows, key=lambda row: (row["step"], row["split"] == "validation")))

    def show_end(self, step: int) -> None:
        """Shows the result of the run, where it is, and how its time was spent."""
        facts = [f"finished {'early ' if self._record.stopped_early else ''}at step {step}"]
        saved_step = self._record.last_checkpoint_step
        saved = [] if saved_step is None else [f"ckpt-{saved_step}"]
        if (best := self._record.best) is not None:
            value = best["value"]  # as the record spells it, or several by their names
            several = {name: float(number) for name, number in value.items()} if isinstance(value, Mapping) else {}
            shown = monitored.show(several) if several else format_number(float(value))
            facts.append(f"best {best['metric']} {shown} at step {best['step']}")
        keeper = best_of(self._trainer)
        saved += [] if keeper is None or keeper.step is None else [_best_name(self._job, keeper.step)]
        if self._exported:
            facts.append(f"exported {self._exported[0]}")
            saved.append(self._exported[1].removeprefix(self._job.path("")))
        self._console.message(f"{', '.join(facts)}: {self._job.model_dir}")
        self._console.message(f"saved there: {', '.join([*saved, 'metrics.jsonl'])}")
        report = self._process.account.report()
        self._console.message(time_account.in_one_line(report))
        if start := time_account.start_in_one_line(report):
            self._console.message(start)
        if report["verdict"]:
            self._console.message(report["verdict"])
        checkpoint = " --checkpoint=best" if self._record.best is not None else ""
        quoted_dir = shlex.quote(str(self._job.model_dir))
        self._console.hint(
            f"official-trainer eval --model_dir={quoted_dir}{checkpoint}",
            f"tensorboard --logdir={quoted_dir}",
        )


def _optimizers_of_task(trainer: Trainer) -> dict[str, str]:
    """Returns the optimizers that the config does not describe, each in words by its name."""
    made = {"optimizer": trainer.optimizer} if makes_optimizer(type(trainer.task)) else {}
    return {name: optimization.described(one) for name, one in {**made, **trainer.context.other_optimizers}.items()}


def _best_name(job: Job, step: int) -> str:
    """Returns the place of a best checkpoint inside the run directory."""
    return files.join(job.config.trainer.best_checkpoint_export_subdir, f"ckpt-{step}")
