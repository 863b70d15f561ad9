"""A process that trains with others and is not the chief: it does what the chief calls.

Owns: what such a process leaves in the run directory (a folder of its own), and how its end follows from the chief's.
Does not own: the calls (`distributed/collective.py`), what the chief does between them (`train.py`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from official_trainer import files
from official_trainer.distributed.peers import PeerLostError
from official_trainer.errors import ExitCode
from official_trainer.lazy import tf
from official_trainer.runs.build import build
from official_trainer.runs.health.watchdog import WAITING, Watchdog
from official_trainer.runs.job import Job
from official_trainer.runs.mistakes import report
from official_trainer.stopping import NOTHING_LOST, PreemptedError, StopRequest
from official_trainer.tasks import registry
from official_trainer.tracking.git_state import Code
from official_trainer.tracking.record import RunRecord

_PHASES = {"run_steps": "train", "evaluate": "evaluate", "_evaluate_weights": "evaluate", "read_checkpoint": "restore"}
"""The phases of the calls that may take long; all others are quick, and count as `save`."""

_STATUS_SECONDS = 5.0
_SHORT = (WAITING, "save")
"""Phases between two long calls: not worth a write to a file, which may be far away."""

_STEPS_LOST = (
    "in the middle of what all processes do; the last good checkpoint is the chief's, the same command continues"
)


def work(job: Job, stop: StopRequest, *, trains: bool) -> dict[str, float]:
    """Takes part in a run until the chief ends it.

    Args:
      job: the run.
      stop: requests to stop; they are passed on to the chief.
      trains: whether an optimizer is needed.

    Raises:
      PreemptedError: the run was stopped, and the chief has saved it.
      PeerLostError: the chief, or another process, is gone or has failed.
    """
    records: list[RunRecord] = []  # none before the chief has checked a new run directory: it would not be empty
    cluster = job.cluster if trains else None
    folder = job.model_dir if cluster is None else job.path("workers", cluster.name.replace(" ", "-"))
    watchdog = Watchdog(job.config.runtime, folder, cluster=cluster)
    next_seconds, last_phase = 0.0, "start"

    def on_call(name: str | None) -> None:
        """Shows the phase in `status.json`: at once where it changes, else every few seconds."""
        nonlocal next_seconds, last_phase
        phase = WAITING if name is None else _PHASES.get(name, "save")
        watchdog.enter(phase, None if name is None else trainer.context.step)
        phase = last_phase if phase in _SHORT else phase
        if phase != last_phase or time.monotonic() >= next_seconds:
            next_seconds, last_phase = time.monotonic() + _STATUS_SECONDS, phase
            for record in records:
                record.phase(phase, int(trainer.global_step.numpy()))

    def record_forced_end() -> str:
        for record in records:
            record.finish(ExitCode.RETRY, error=f"{stop.reason} {_STEPS_LOST}")
        return _STEPS_LOST

    with watchdog:
        watchdog.enter("build")
        trainer = build(job, trains=trains, stop=stop)
        watchdog.observe(trainer)
        stop.listen(record_forced_end)
        with _recorded(job, folder, records, watchdog) if trains else contextlib.nullcontext():
            exit_code = trainer.process_group.follow(on_call)
            if exit_code == ExitCode.PREEMPTED:
                raise PreemptedError(f"the chief has stopped the run; {NOTHING_LOST}")
            if exit_code != ExitCode.DONE:
                raise PeerLostError(f"the chief has ended with exit code {exit_code}; see its error message")
    return {}


@contextlib.contextmanager
def _recorded(job: Job, folder: str, records: list[RunRecord], watchdog: Watchdog) -> Iterator[None]:
    """Writes how the process began and how it ended, in a folder of its own."""
    files.make_dirs(folder)
    record = RunRecord(folder, job.launch, code=Code(registry.find_workspace()))
    record.start()
    records.append(record)
    watchdog.tell(lambda message, exit_code: record.finish(exit_code, error=message))
    record.note(devices=[device.name for device in tf.config.list_logical_devices()])
    try:
        yield
    except BaseException as error:
        exit_code, message = report.as_recorded(error, folder)
        record.finish(exit_code, error=message)
        raise
    record.finish(ExitCode.DONE)
