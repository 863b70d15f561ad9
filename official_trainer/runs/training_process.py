"""One process that trains: its record, its time, its watchdog, and that its end is recorded in any case.

Owns: what `run.json` and `status.json` hold of this process, at every kind of end. Does not own: the format of
both files (`tracking/record.py`), what happens between start and end (`train.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from official_trainer import files
from official_trainer.distributed import peers, tpu
from official_trainer.engine.traces import Kind
from official_trainer.engine.trainer import Trainer
from official_trainer.errors import ExitCode, UserError
from official_trainer.runs.build import trackers_of
from official_trainer.runs.health import time_account
from official_trainer.runs.health.stall_report import LateReports
from official_trainer.runs.health.time_account import TimeAccount
from official_trainer.runs.health.watchdog import watchdog_of
from official_trainer.runs.job import Job
from official_trainer.runs.resume.config_files import OperativeConfig
from official_trainer.stopping import StopRequest
from official_trainer.tracking.record import RunRecord


class TrainingProcess:
    """A process that trains, as the run directory shows it.

    Attributes:
      record: writes `run.json` and `status.json`.
      account: of its time.
      watchdog: ends it when it stalls.
      gin: writes the gin bindings.
      trackers: where its numbers go.
      metrics: results for the record of the end.
    """

    def __init__(self, job: Job, account: TimeAccount) -> None:
        self._job = job
        self._trainer: Trainer | None = None
        self._has_started = False
        self._late_reports = LateReports(job.model_dir, job.cluster, job.config.runtime.collective_timeout_seconds)
        self.record = RunRecord(job.model_dir, job.launch)
        self.account = account
        self.trackers = trackers_of(job)
        self.gin = OperativeConfig(job.model_dir, job.mode, job.gin)
        self.watchdog = watchdog_of(
            job.config.runtime,
            job.model_dir,
            record=lambda stall: self.finish(stall.exit_code),
            late_reports=self._late_reports,
        )
        self.metrics: dict[str, float] = {}

    @contextlib.contextmanager
    def recorded(self, stop: StopRequest) -> Iterator[None]:
        """Records how the process began and how it ended, also after an error."""
        self.record.start()
        try:
            with self.watchdog, self.account:
                yield
        except BaseException as error:
            failure = self._explain(error, stop)
            exit_code = failure.exit_code if isinstance(failure, UserError) else ExitCode.FAILED
            with contextlib.suppress(OSError):  # the storage that failed the run may refuse its record too
                self.save_time()
            with contextlib.suppress(OSError):
                self.record.finish(exit_code) if self._has_started else self.record.refuse(exit_code)
            if failure is error:
                raise
            raise failure from error
        self.finish(ExitCode.DONE, self.metrics)

    def enter(self, phase: str, step: int | None = None) -> None:
        """A phase begins."""
        self.account.enter(phase)
        self.watchdog.enter(phase, step)
        self.record.phase(phase, step)

    def set_trainer(self, trainer: Trainer) -> None:
        """The trainer is built: its progress can be watched."""
        self._trainer = trainer
        self.watchdog.observe(trainer.progress)
        self._late_reports.clear()

    def set_started(self) -> None:
        """Training begins: from here on an error is the end of a run, not a refusal."""
        self._has_started = True

    def save_time(self) -> None:
        """Records the time so far, and the gin bindings that were used."""
        self.record.set_gin(self.gin.save())
        attempt = self.account.report() | _traces_of(self._trainer)
        self.record.set_time(time_account.over_attempts(self.record.time_before, attempt))

    def finish(self, exit_code: int, metrics: Mapping[str, float] | None = None) -> None:
        """Records the end; from any thread."""
        self.save_time()
        self.record.finish(exit_code, metrics)

    def _explain(self, error: BaseException, stop: StopRequest) -> BaseException:
        """Returns what an error comes from: another process or a TPU that is gone, the storage, a stop, or itself."""
        cluster, runtime = self._job.cluster, self._job.config.runtime
        lost = None if cluster is None else peers.explain_loss(error, cluster.addresses)
        late = None if self._trainer is None else self._late_reports.explain(lost or error)
        known = late or lost or tpu.as_lost_error(error, runtime) or files.as_storage_error(error, self._job.model_dir)
        return known or stop.as_preempted(error)


def _traces_of(trainer: Trainer | None) -> dict[str, Any]:
    """Returns how often each kind of step was traced in this process, and how long that took."""
    kinds: tuple[Kind, ...] = ("train", "eval")
    counts = {kind: 0 if trainer is None else trainer.traces.count(kind) for kind in kinds}
    seconds = 0.0 if trainer is None else sum(trainer.traces.seconds(kind) for kind in kinds)
    return {"traces": counts, "trace_seconds": round(seconds, 4)}
