"""The modes that train: the loop with everything around it that a run directory needs.

Owns: what a training run writes beside checkpoints, what it says on the console, and that its end is recorded whatever
way it ends. Does not own: the order of events (`engine/loop.py`), the parts (`build.py`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from official_trainer import config as configuration
from official_trainer import files
from official_trainer.actions.action import LoopState
from official_trainer.actions.schedule import Schedule
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.config import ConfigError, Problem
from official_trainer.config.modes import TRAINING_MODES, Evaluates
from official_trainer.distributed import lost_peers, parameter_server, tpu
from official_trainer.engine.hooks import Hooks
from official_trainer.engine.loop import Loop
from official_trainer.engine.nonfinite import Diagnosis
from official_trainer.engine.traces import Kind
from official_trainer.engine.trainer import Trainer
from official_trainer.errors import ExitCode, UserError
from official_trainer.files import RUN_FILE, STATUS_FILE
from official_trainer.inputs import data_service
from official_trainer.lazy import tf
from official_trainer.lock import DirectoryLock, LockedError
from official_trainer.runs.build import (
    best_of,
    build,
    drop_best_after,
    export_best,
    export_last,
    monitored,
    schedule_of,
    store_of,
    trackers_of,
)
from official_trainer.runs.health import time_account
from official_trainer.runs.health.late import Notes
from official_trainer.runs.health.time_account import TimeAccount
from official_trainer.runs.health.watchdog import watchdog_of
from official_trainer.runs.job import Job
from official_trainer.runs.resume import config_changes, data_layout, gin_record
from official_trainer.stopping import StopRequest
from official_trainer.tasks import variables
from official_trainer.tracking import closing, flatten
from official_trainer.tracking.console import format_number
from official_trainer.tracking.jsonl import numbers_of, read_rows
from official_trainer.tracking.record import HEARTBEAT_SECONDS, Heartbeat, RunRecord, claim

_logger = logging.getLogger(__name__)


def train(job: Job, stop: StopRequest, *, is_alone: bool = True) -> dict[str, float]:
    """Trains, in the modes that do, from where the run directory stands to the end, or until `stop`.

    Args:
      job: the run.
      stop: who tells when to stop.
      is_alone: whether this is all that the command does, so that its time begins with the process.
    """
    account = TimeAccount(began_seconds=time_account.process_start_seconds() if is_alone and job.argv else None)
    claim(job.model_dir, job.experiment, is_shared=job.given is not None)
    lock = lock_of(job)
    with contextlib.ExitStack() as held:
        with stop.interruptible():
            held.enter_context(lock)
        return _train(job, stop, lock, account)


def lock_of(job: Job, **options: Any) -> DirectoryLock:
    """Returns a lock on the run directory that tells others what this process does there."""
    return DirectoryLock(job.model_dir, description={"command": shlex.join(job.argv), "mode": job.mode}, **options)


def _train(job: Job, stop: StopRequest, lock: DirectoryLock, account: TimeAccount) -> dict[str, float]:
    kept = RUN_FILE, STATUS_FILE, "metrics.jsonl", config_changes.PARAMS_FILE, *gin_record.names(job.mode)
    files.remove_temporaries(job.model_dir, *kept)
    job.check_changes()
    session = _Session(job, RunRecord(job.model_dir, job.launch), lock, account)
    with session.outcome_recorded(stop):
        session.run(stop)
    return session.metrics


class _Session:
    """One process's part in a run: the loop, and what the loop's events mean for the run directory."""

    def __init__(self, job: Job, record: RunRecord, lock: DirectoryLock, account: TimeAccount) -> None:
        self._job = job
        self._record = record
        self._lock = lock
        self._account = account
        self._trainer: Trainer | None = None
        trackers = trackers_of(job)
        self._trackers, self._console, self._rows = trackers.all, trackers.console, trackers.rows
        self._heartbeat = Heartbeat(HEARTBEAT_SECONDS)
        self._gin = gin_record.OperativeConfig(job.model_dir, job.mode, job.gin)
        self._has_started = False
        self._num_traces = 0
        self._stop_reason: str | None = None
        self._changes: dict[str, config_changes.Change] = {}
        self._notes = Notes(job.model_dir, job.cluster)
        self._watchdog = watchdog_of(
            job.config.runtime,
            job.model_dir,
            lambda: None if self._trainer is None else self._trainer.progress(),
            record=lambda stall: self._finish(stall.exit_code),
            notes=self._notes,
        )
        self.metrics: dict[str, float] = {}

    @contextlib.contextmanager
    def outcome_recorded(self, stop: StopRequest) -> Iterator[None]:
        """Writes how the process began and how it ended, whatever way it ended."""
        self._record.start()
        try:
            yield
        except BaseException as error:
            failure = self._lost(error) or files.as_storage_error(error, self._job.model_dir) or stop.explained(error)
            exit_code = failure.exit_code if isinstance(failure, UserError) else ExitCode.FAILED
            with contextlib.suppress(OSError):  # storage that failed the run may not take its record either
                self._record_time()
            with contextlib.suppress(OSError):
                self._record.finish(exit_code) if self._has_started else self._record.refuse(exit_code)
            if failure is error:
                raise
            raise failure from error
        self._finish(ExitCode.DONE, self.metrics)

    def _lost(self, error: BaseException) -> UserError | None:
        """Returns what an error says about another process, or a TPU, that is gone; None if it says something else."""
        cluster, runtime = self._job.cluster, self._job.config.runtime
        lost = None if cluster is None else lost_peers.explained(error, cluster.addresses)
        said = None if self._trainer is None else self._notes.explained(lost or error)
        return said or lost or tpu.as_lost_error(error, runtime)

    def _finish(self, exit_code: int, metrics: Mapping[str, float] | None = None) -> None:
        self._record_time()
        self._record.finish(exit_code, metrics)

    def run(self, stop: StopRequest) -> None:
        """Builds the parts and runs the loop."""
        with self._watchdog, self._account:
            self._run(stop)

    def _run(self, stop: StopRequest) -> None:
        job = self._job
        if not files.exists(job.path(config_changes.PARAMS_FILE)):
            job.write_params()  # a restart replaces them once it has restored
        self._gin.begin()
        self._enter("build")
        evaluates = TRAINING_MODES[job.mode]
        with stop.interruptible():
            trainer = build(job, trains=True, keeps_best=evaluates != "never", stop=stop)
        self._trainer = trainer
        self._notes.forget()
        with trainer.process_group.leading():
            self._lead(trainer, evaluates, stop)

    def _lead(self, trainer: Trainer, evaluates: Evaluates, stop: StopRequest) -> None:
        """Runs the loop; the run's other processes, if there are any, follow until this ends."""
        job = self._job
        with stop.interruptible():
            schedule = schedule_of(job, trainer)
            self._check_monitored(trainer, schedule, evaluates)
        self._account.sampler.waits = self._waits_for_input(trainer)
        self._account.actions_seconds = lambda: schedule.spent_seconds
        self._account.trackers_seconds = lambda: self._trackers.spent_seconds
        with closing(self._trackers) as outcome:
            store = store_of(job, trainer, schedule)
            layout = data_layout.LayoutTeller(
                remember=store.describe, record=self._record.set_input, say=self._console.message
            )
            trainer.train_iterator.add_observer(layout)
            hooks = self._hooks(trainer, schedule)
            loop = Loop(trainer, store, self._trackers, evaluate=evaluates, hooks=hooks, stop=stop)
            stop.save_state = loop.save_beside
            stop.on_leave = functools.partial(self._on_leave, loop)
            logs = loop.run()
            self.metrics = flatten(logs) or _last_row(self._rows.path)
            outcome.step, outcome.metrics = loop.state.step, self.metrics
        self._console.message(self._closing_line(loop.state.step))
        self._tell_time()

    def _waits_for_input(self, trainer: Trainer) -> Callable[[], bool | None]:
        """Returns what tells whether a step waits for data; a tf.data service that does not deliver is reported."""
        data: Any = getattr(self._job.config.task, "train_data", None)  # several tasks have sections of their own
        if not data_service.is_used(data):
            return trainer.context.input_wait.waits
        return data_service.Alarm(data.tf_data_service_address, trainer.progress, trainer.context.input_wait.waits)

    def _check_monitored(self, trainer: Trainer, schedule: Schedule, evaluates: Evaluates) -> None:
        """Refuses before the first step what would fail at the first evaluation."""
        if evaluates != "never":
            trainer.evaluation.check_monitored(monitored(self._job, schedule))
            return
        for metric, name in schedule.monitored().items():
            what = f"action '{name}' needs {metric!r} of an evaluation, and mode {self._job.mode} makes none"
            raise ConfigError([Problem(what, "trainer.actions", fix="use --mode=train_and_eval, or leave it out")])
        if idle := schedule.only_after_evaluations():
            _logger.warning("mode %s makes no evaluations, after which these act: %s", self._job.mode, ", ".join(idle))

    def _hooks(self, trainer: Trainer, schedule: Schedule) -> Hooks:
        if (best := best_of(trainer)) is not None:
            best.on_new_best = functools.partial(self._on_new_best, trainer)
        return Hooks(
            on_restore=functools.partial(self._on_restore, trainer),
            on_start=functools.partial(self._on_start, trainer),
            on_phase=self._enter,
            on_window=self._on_window,
            on_summary=lambda step: self._trackers.log("time", step, self._account.end_stretch()),
            new_traces=trainer.traces.take,
            before_save=lambda step: self._trackers.flush(),
            on_save=self._on_save,
            on_rollback=functools.partial(self._on_rollback, trainer),
            find_row=self._rows.row,
            on_stop=self._on_stop,
            load_weights=trainer.checkpoint_state.load_weights,
            export=functools.partial(self._on_end, trainer),
            diagnosis=Diagnosis(self._job.model_dir, trainer),
            model_dir=self._job.model_dir,
            actions=schedule,
            **(self._job.given.hooks if self._job.given is not None else {}),
        )

    def _enter(self, phase: str, step: int | None = None) -> None:
        self._account.enter(phase)
        self._watchdog.enter(phase, step)
        self._record.phase(phase, step)

    def _on_leave(self, loop: Loop) -> tuple[str, int]:
        what, exit_code = loop.outcome()
        self._finish(exit_code)
        return what, exit_code

    def _on_restore(self, trainer: Trainer, state: LoopState) -> None:
        """Does what a changed config asks for beside another value: a checkpoint brings the old one back."""
        if state.step == 0:
            if (step := self._record.last_checkpoint_step) is not None:
                raise CheckpointError(
                    f"{self._job.model_dir} holds no checkpoint, but this run has saved one at step {step} "
                    f"({self._job.path(RUN_FILE)}). Starting again from step 0 would hide that. Put the checkpoints "
                    "back, or name another --model_dir, or delete this directory to start from nothing here."
                )
            return
        self._check_layout(trainer, state.step)
        changes = self._changes = {change.path: change for change in self._job.check_changes(state.step)}
        if any(path.startswith("trainer.optimizer_config.") for path in changes):
            trainer.optimizer_settings.use_configured_optimizer()
        if size := changes.get("task.train_data.global_batch_size"):
            trainer.train_iterator.position.change_batch_size(state.step, int(size.before), int(size.after))

    def _check_layout(self, trainer: Trainer, step: int) -> None:
        """Refuses other input pipelines than the checkpoint was saved with, where examples would change their order."""
        if (pipelines := trainer.train_iterator.pipelines()) is None:
            return
        allow = self._job.allow_config_change
        notice = data_layout.check(self._job.model_dir, step, pipelines, allow_change=allow)
        if notice is not None:
            self._console.message(notice)

    def _on_start(self, trainer: Trainer, state: LoopState) -> None:
        self._has_started = True
        self._job.write_params()
        self._gin.replace()
        if (best := best_of(trainer)) is not None:
            best.tidy()
        self._trackers.describe(self._job.experiment, configuration.flat(self._job.config))
        devices = [device.name for device in tf.config.list_logical_devices()]
        if trainer.is_async:
            self._record.add_order(parameter_server.ORDER_OF_EXAMPLES)
        self._record.describe(devices=devices, start_step=state.start_step, end_step=state.end_step)
        self._console.message(self._opening_line(trainer, state.start_step))
        if self._changes:
            self._console.message(config_changes.notice(list(self._changes.values()), state.start_step))

    def _on_window(self, state: LoopState, num_steps: int, seconds: float, loss: float) -> None:
        self._watchdog.beat(state.step)
        if self._lock.lost_to is not None:
            raise LockedError(self._lock.lost_to)
        assert self._trainer is not None
        examples = self._trainer.examples_of(num_steps)
        self._account.window(num_steps, seconds, examples=examples, has_traced=self._has_traced())
        self._console.end_step = state.end_step
        self._console.progress(state.step, loss=loss, examples_per_second=examples / max(seconds, 1e-9))
        if self._heartbeat.is_due(time.monotonic()):
            self._record.phase("train", state.step)

    def _has_traced(self) -> bool:
        """Whether a training step was traced since the last call."""
        assert self._trainer is not None
        before, self._num_traces = self._num_traces, self._trainer.traces.count("train")
        return self._num_traces > before

    def _on_save(self, step: int) -> None:
        self._record_time()  # a process that is killed is on record up to here
        self._record.checkpoint(step)

    def _record_time(self) -> None:
        self._record.set_gin(self._gin.save())  # with it, for it too is wanted whatever way the process ends
        attempt = self._account.report() | _traces_of(self._trainer)
        self._record.set_time(time_account.over_attempts(self._record.time_before, attempt))

    def _tell_time(self) -> None:
        report = self._account.report()
        self._console.message(time_account.in_one_line(report))
        if report["verdict"]:
            self._console.message(report["verdict"])

    def _on_new_best(self, trainer: Trainer, step: int, logs: Mapping[str, Any]) -> None:
        best = trainer.checkpoint_exporter
        self._record.set_best(best.metric, best.value, step)
        if self._job.config.trainer.export.best:
            export_best(self._job, trainer, step, logs)

    def _on_rollback(self, trainer: Trainer, step: int) -> None:
        """Takes back what was said of steps that the run has gone back from."""
        self._record.checkpoint(step)
        dropped = drop_best_after(self._job, trainer, step)
        if not dropped:
            return
        best = trainer.checkpoint_exporter
        if best.step is None:
            self._record.clear_best()
        else:
            self._record.set_best(best.metric, best.value, best.step)
        steps = ", ".join(map(str, dropped))
        left = "there is none" if best.step is None else f"that of step {best.step} is the best again"
        _logger.warning("the best checkpoint of step %s went with the steps that are done again; %s", steps, left)

    def _on_stop(self, reason: str) -> None:
        self._stop_reason = reason
        self._record.stopped_early(reason)
        self._console.message(reason)

    def _on_end(self, trainer: Trainer, step: int, logs: Mapping[str, Any]) -> None:
        if self._job.config.trainer.export.at_end:
            if (loaded := int(trainer.global_step.numpy())) != step:  # an action asked for the weights of another step
                step, logs = loaded, self._rows.row(loaded, "validation") or {}
            # A restart that finds everything else done has no results of its own.
            export_last(self._job, trainer, step, logs or _last_row(self._rows.path))

    def _opening_line(self, trainer: Trainer, start_step: int) -> str:
        """Says what runs on what, and from where."""
        count = variables.count(trainer.model).trainable
        start = f"continuing from step {start_step}" if start_step else "starting"
        end_step = self._job.config.trainer.train_steps
        if end_step and start_step > end_step:  # the same number is a run that is done, and says so
            start = f"at step {start_step} already, past trainer.train_steps={end_step}: nothing to train"
        devices = trainer.context.devices
        return f"{self._job.experiment}: {count:,} parameters on {devices}, {start} in {self._job.model_dir}"

    def _closing_line(self, step: int) -> str:
        """Says what came of the run and where it lies."""
        parts = [f"finished {'early ' if self._stop_reason else ''}at step {step}"]
        if (best := self._record.best) is not None:
            parts.append(f"best {best['metric']} {format_number(float(best['value']))} at step {best['step']}")
        return f"{', '.join(parts)}: {self._job.model_dir}"


def _traces_of(trainer: Trainer | None) -> dict[str, Any]:
    """Returns how often each kind of step was traced in this process, and how long that took."""
    kinds: tuple[Kind, ...] = ("train", "eval")
    counts = {kind: 0 if trainer is None else trainer.traces.count(kind) for kind in kinds}
    seconds = 0.0 if trainer is None else sum(trainer.traces.seconds(kind) for kind in kinds)
    return {"traces": counts, "trace_seconds": round(seconds, 4)}


def _last_row(path: str) -> dict[str, float]:
    """Returns the numbers of the newest row, an evaluation's before training's, for a run with nothing left to do."""
    rows = [row for row in read_rows(path) if row["split"] in ("train", "validation")] if files.exists(path) else []
    if not rows:
        return {}
    newest = max(rows, key=lambda row: (row["step"], row["split"] == "validation"))
    return numbers_of(newest)
