"""The modes that train: the parts of a run put together around the loop.

Owns: the order in which a training run is set up, and what is refused before its first step. Does not own: the order of
events (`engine/loop.py`), what they write (`observer.py`), the record of the end (`training_process.py`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from official_trainer import files
from official_trainer.actions.schedule import Schedule
from official_trainer.config import ConfigError, Problem
from official_trainer.config.modes import TRAINING_MODES
from official_trainer.engine.events import DueSteps
from official_trainer.engine.loop import Loop
from official_trainer.engine.trainer import Trainer
from official_trainer.files import PARAMS_FILE, RUN_FILE, STATUS_FILE
from official_trainer.lock import DirectoryLock
from official_trainer.runs.build import best_of, build, schedule_of, store_of
from official_trainer.runs.health.time_account import TimeAccount, process_start_seconds
from official_trainer.runs.job import Job
from official_trainer.runs.observer import RunObserver
from official_trainer.runs.resume import config_changes
from official_trainer.runs.training_process import TrainingProcess
from official_trainer.stopping import StopRequest
from official_trainer.tracking import closing, flatten
from official_trainer.tracking.console import working
from official_trainer.tracking.record import prepare_model_dir

_logger = logging.getLogger(__name__)


def train(job: Job, stop: StopRequest, *, is_whole_command: bool = True) -> dict[str, float]:
    """Trains from the newest checkpoint of the run directory to the end, or until `stop`; returns the last metrics.

    Args:
      job: the run, in a mode that trains.
      stop: requests to stop.
      is_whole_command: whether the command runs nothing else. Its time is then measured from the start of the process.
    """
    account = TimeAccount(began_seconds=process_start_seconds() if is_whole_command and job.argv else None)
    lock = job.lock(job.model_dir)
    with contextlib.ExitStack() as stack:
        names_before = _occupy_model_dir(job, lock, stack)
        names = (RUN_FILE, STATUS_FILE, "metrics.jsonl", PARAMS_FILE, *config_changes.gin_names(job.mode))
        files.remove_temporaries(job.model_dir, *names)
        job.check_changes()
        process = TrainingProcess(job, account, lock)
        with process.recorded(names_before):
            if not files.exists(job.path(PARAMS_FILE)):  # a restart replaces it once it has restored
                config_changes.write_params(job.model_dir, job.resolved, is_shared=job.prebuilt is not None)
            process.gin.begin()
            process.enter("build")
            with working("building the model", quiet=job.quiet):
                keeps_best = TRAINING_MODES[job.mode] != "never"
                trainer = build(job, trains=True, keeps_best=keeps_best, stop=stop)
            process.set_trainer(trainer)
            with trainer.process_group.leading(), _looping(job, trainer, stop, process) as loop:
                process.metrics.update(flatten(loop.run()))
        return process.metrics


def _occupy_model_dir(job: Job, lock: DirectoryLock, stack: contextlib.ExitStack) -> list[str] | None:
    """Makes the run directory and takes its lock; returns what the directory held, None if it was not there."""
    while True:
        names_before = prepare_model_dir(job.model_dir, job.experiment, is_shared=job.shares_directory)
        # Another process, of this cluster or of the same command, removes what it made to see whether it can.
        with contextlib.suppress(FileNotFoundError):
            stack.enter_context(lock)
            return names_before


@contextlib.contextmanager
def _looping(job: Job, trainer: Trainer, stop: StopRequest, process: TrainingProcess) -> Iterator[Loop]:
    """For the run of a loop: yields it, and shows and records what came of it; trackers end in any case."""
    schedule = schedule_of(job, trainer)
    check_monitored(job, trainer, schedule)
    trackers = process.trackers
    process.account.attach(
        input=lambda: trainer.context.clock.waited_seconds,
        actions=lambda: schedule.spent_seconds,
        trackers=lambda: trackers.all.spent_seconds,
        data=lambda: trainer.train_iterator.build_seconds,
    )
    store = store_of(job, trainer, schedule)
    observer = RunObserver(job, trainer, process, store.describe)
    process.watchdog.tell(lambda message, _: schedule.stall(message))
    with closing(trackers.all) as outcome:
        trainer.train_iterator.add_observer(observer.on_data)
        if (best := best_of(trainer)) is not None:
            rule = trainer.evaluation.rule_of(best.metric)
            best.observe(observer.on_new_best, observer.steps_to_return_to, rule)
        due = job.prebuilt.due if job.prebuilt is not None else None
        loop = Loop(
            trainer=trainer,
            store=store,
            metric_writer=trackers.all,
            due=due or DueSteps(trainer.config.trainer, TRAINING_MODES[job.mode]),
            observer=observer,
            actions=schedule,
            stop=stop,
            model_dir=job.model_dir,
            until_step=job.until_step,
        )
        yield loop
        if not process.metrics:
            process.metrics.update(observer.last_row())
        if loop.state.results:
            process.record.note(results=loop.state.results)
        outcome.step, outcome.metrics = loop.state.step, process.metrics
        store.retain()  # an evaluator may have needed more at the last save
    observer.show_end(loop.state.step)


def check_monitored(job: Job, trainer: Trainer, schedule: Schedule | None = None) -> dict[str, str]:
    """Refuses before the first step what would fail at the first evaluation.

    Returns:
      The metrics that an evaluation has to produce, each with what needs it; none in a mode without evaluations.

    Raises:
      UserError: a metric is needed that there is not.
    """
    settings, needed = job.config.trainer, {} if schedule is None else schedule.monitored()
    if TRAINING_MODES.get(job.mode, "interval") != "never":
        best = settings.best_checkpoint_eval_metric
        wanted = {best: "trainer.best_checkpoint_eval_metric"} if best else {}
        wanted |= {metric: f"action '{name}'" for metric, name in needed.items() if metric not in wanted}
        trainer.evaluation.build_data(settings.validation_steps)
        trainer.evaluation.check_monitored(wanted)
        return wanted
    for metric, name in needed.items():
        what = f"action '{name}' needs {metric!r} of an evaluation, and mode {job.mode} makes none"
        raise ConfigError([Problem(what, "trainer.actions", fix="use --mode=train_and_eval, or leave it out")])
    if schedule is not None and (idle := schedule.only_after_evaluations()):
        _logger.warning("mode %s makes no evaluations, after which these act: %s", job.mode, ", ".join(idle))
    return {}
