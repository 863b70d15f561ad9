"""One process that trains, as the run directory shows it: its lock, its record, its time and its watchdog.

Owns: that its start is recorded, and its end in any case; what an error comes from. Does not own: what is written at
the events of its loop (`observer.py`), the format of `run.json` and `status.json` (`tracking/record.py`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.distributed import peers, tpu
from official_trainer.engine.traces import Traces
from official_trainer.engine.trainer import Trainer
from official_trainer.errors import ExitCode, UserError
from official_trainer.files import PARAMS_FILE, RUN_FILE, STATUS_FILE
from official_trainer.lock import DirectoryLock, lock_names
from official_trainer.runs.build import trackers_of
from official_trainer.runs.health.time_account import TimeAccount, over_attempts
from official_trainer.runs.health.watchdog import Watchdog
from official_trainer.runs.job import Job, say_place
from official_trainer.runs.mistakes import report
from official_trainer.runs.resume import config_changes
from official_trainer.runs.resume.config_changes import OperativeConfig
from official_trainer.tasks import registry
from official_trainer.tracking import run_metrics
from official_trainer.tracking.git_state import Code
from official_trainer.tracking.record import RunRecord

_logger = logging.getLogger(__name__)


class EndedError(UserError, RuntimeError):
    """The user's code ended the process while a run was not done."""


class TrainingProcess:
    """A process that trains, as the run directory shows it.

    Attributes:
      lock: on the directory; its `check` fails once that is not this process's any more.
      record: writes `run.json` and `status.json`.
      account: of its time.
      watchdog: ends it when it stalls.
      gin: writes the gin bindings.
      trackers: where its numbers go.
      metrics: results for the record of the end.
    """

    def __init__(self, job: Job, account: TimeAccount, lock: DirectoryLock) -> None:
        """Takes the run, the account of its time, and the lock on its directory."""
        self._job, self.lock = job, lock
        self._trainer: Trainer | None = None
        self._has_started = False
        self._time_before: dict[str, Any] | None = None
        self._began = time.time() - (time.monotonic() - account.began_seconds)
        code = Code(registry.find_workspace())
        self.record = RunRecord(job.model_dir, job.launch, check=lock.check_held, code=code)
        self.account = account
        self.trackers = trackers_of(job)
        self.gin = OperativeConfig(job.model_dir, job.mode, job.gin)
        self.watchdog = Watchdog(job.config.runtime, job.model_dir, cluster=job.cluster)
        self.watchdog.tell(lambda message, exit_code: self.finish(exit_code, error=message))
        self.metrics: dict[str, float] = {}

    @contextlib.contextmanager
    def recorded(self, names_before: Sequence[str] | None) -> Iterator[None]:
        """Records how the process began and how it ended, also after an error.

        Args:
          names_before: what the directory held before; None if it was not there.
        """
        self.record.start()
        self._time_before = self.record.time_before
        try:
            self.record.note(time=self._time())  # that a process which is killed before its first save is counted
            with self.watchdog:
                yield
        except BaseException as error:
            failure = self._explain(error)
            if self.lock.loss is None:
                with contextlib.suppress(OSError):  # the storage that failed the run may refuse its record too
                    self.save_time()
                exit_code, message = report.as_recorded(failure, self._job.model_dir)
                with contextlib.suppress(OSError):
                    if self._has_started:
                        self.record.finish(exit_code, error=message)
                    elif not (exit_code == ExitCode.CONFIG and self._leave_nothing(names_before)):
                        self.record.refuse(exit_code, error=message)
            if failure is error:
                raise
            raise failure from error
        self.lock.check_held()
        self.finish(ExitCode.DONE, self.metrics)

    def _leave_nothing(self, names_before: Sequence[str] | None) -> bool:
        """Leaves the directory of a run that has never begun as it was.

        Returns False, and leaves all, if there is an earlier run, if other processes read here how this one ended, or
        if they have written here.
        """
        if self._job.cluster is not None or not self.record.is_first:
            return False
        directory = self._job.model_dir
        our_names = {RUN_FILE, STATUS_FILE, PARAMS_FILE, *config_changes.gin_names(self._job.mode)}
        written = set(files.list_dir(directory)).difference(names_before or ())
        if not written <= {*our_names, *lock_names()}:
            return False
        for name in written & {*our_names, lock_names()[1]}:  # that of the kernel's lock while it is held
            files.remove(self._job.path(name))
        self.lock.release()
        if names_before is None:
            files.remove_if_empty(directory)
        return True

    def enter(self, phase: str, step: int | None = None) -> None:
        """A phase begins.

        Raises:
          LockedError: the run directory is not that of this process any more.
        """
        self.lock.check_held()
        self.account.enter(phase)
        self.watchdog.enter(phase, step)
        self.record.phase(phase, step)

    def set_trainer(self, trainer: Trainer) -> None:
        """The trainer is built: its progress can be watched."""
        self._trainer = trainer
        self.watchdog.observe(trainer)

    def set_started(self) -> None:
        """Training begins: from here on an error is the end of a run, not a refusal."""
        self._has_started = True

    def save_time(self) -> None:
        """Records the time so far, and the gin bindings that were used."""
        self.record.note(gin=self.gin.save(), time=self._time())

    def _time(self) -> dict[str, Any]:
        """Returns the time of the run so far."""
        traces = Traces(0) if self._trainer is None else self._trainer.context.traces
        attempt = self.account.report() | {
            "traces": {"train": traces.count("train"), "eval": traces.count("eval")},
            "trace_seconds": traces.seconds("train") + traces.seconds("eval"),
            "peak_memory_bytes": run_metrics.peak_memory(of_gpus=self._trainer is not None),  # once they are set up
        }
        try:
            return over_attempts(self._time_before, attempt, began=self._began)
        except (LookupError, TypeError, AttributeError):
            _logger.warning("%s: the time of earlier processes cannot be read, so it is left out", RUN_FILE)
            self._time_before = None
            return over_attempts(None, attempt, began=self._began)

    def finish(self, exit_code: int, metrics: Mapping[str, float] | None = None, *, error: str | None = None) -> None:
        """Records the end; from any thread."""
        self.save_time()
        self.record.finish(exit_code, metrics, error=error)

    def _explain(self, error: BaseException) -> BaseException:
        """Returns what an error comes from: another process or a TPU that is gone, the storage, or itself."""
        if isinstance(error, SystemExit):  # of the user's code: nothing here ends a process so
            return EndedError(f"your code ended the process, by sys.exit({error.code!r}); raise an error instead")
        say_place(error, self._job)
        cluster, runtime = self._job.cluster, self._job.config.runtime
        lost = None if cluster is None else peers.explain_loss(error, cluster.addresses)
        cause = lost or tpu.as_lost_error(error, runtime) or files.as_storage_error(error, self._job.model_dir)
        return cause or error
