"""The parts of a run, built from a job in their order: devices, task, model, optimizer, trainer, store.

Owns: that order, and what is exported from a trainer. With `train.py` it is the composition root: the rest of the
package knows contracts only. Does not own: what happens with the parts.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from official_trainer import config as configuration
from official_trainer import files, tracking
from official_trainer.actions.publish_environment import PublishEnvironment, PublishEnvironmentConfig
from official_trainer.actions.schedule import Schedule
from official_trainer.checkpoints.best import BestCheckpoint
from official_trainer.checkpoints.store import CheckpointStore, StoreOptions
from official_trainer.config import ConfigError, installed
from official_trainer.config.modes import TRAINING_MODES
from official_trainer.distributed import multi_worker
from official_trainer.distributed import strategy as distribute
from official_trainer.engine import consistency, process
from official_trainer.engine.step_context import TrainerOptions
from official_trainer.engine.trainer import Trainer
from official_trainer.garden import ranking, to_garden
from official_trainer.garden.sections import GardenExperiment, GardenMultiEval, GardenMultiTask
from official_trainer.runs.job import Job, batch_size_problems, keras_3_problems
from official_trainer.runs.lease import LeasedSteps
from official_trainer.stopping import StopRequest, take_back_handlers
from official_trainer.tasks import attached, contract, export, registry
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.multi_task import garden as garden_multi_task
from official_trainer.tasks.multi_task.task import Part, parts_of
from official_trainer.tracking import Place, Tracker, Trackers
from official_trainer.tracking.console import Console
from official_trainer.tracking.jsonl import JsonlTracker
from official_trainer.tracking.tensorboard import TensorBoardConfig
from official_trainer.tracking.threads import ThreadedTracker
from official_trainer.user_code import during

_logger = logging.getLogger(__name__)

FORMATS = "official_trainer.formats.writing"
"""The part of this package that writes formats other than SavedModel."""

_CALLS_OF_TRACKER = {
    "describe": ("experiment, config",),
    "log": ("split, step, values",),
    "publish": ("split, step, media",),
    "rewind": ("step",),
    "resume": ("split, step",),
    "flush": ("",),
    "end": ("outcome",),
    "close": ("",),
}


def build(
    job: Job,
    *,
    trains: bool = False,
    keeps_best: bool = False,
    stop: StopRequest | None = None,
) -> Trainer:
    """Returns the trainer of a job: strategy, task, model, optimizer, and the keeper of its best checkpoint.

    Args:
      job: what to build.
      trains: whether an optimizer is needed.
      keeps_best: whether evaluations may replace the best checkpoint.
      stop: requests to stop.

    Raises:
      DisagreementError: other processes of the run have another config, or other versions.
      PeerLostError: other processes of the run did not come.
      ConfigError: a batch does not divide over the replicas.
      DeviceError: the devices are not there.
    """
    if job.prebuilt is not None:
        if stop is not None:
            job.prebuilt.trainer.process_group.use_stop(stop)
        return job.prebuilt.trainer
    config = job.config
    facts: dict[str, Any] = (
        {} if job.gin is None else {f"gin {name}": value for name, value in (job.gin.bound or {}).items()}
    )
    process.configure_process(config.runtime)
    strategy = distribute.build_strategy(config.runtime, job.cluster, trains=trains)
    take_back_handlers()
    consistency.check(
        multi_worker.peers_of(strategy),
        lambda: consistency.of_run(job.experiment, job.mode, job.model_dir, {**configuration.flat(config), **facts}),
    )
    if problems := list(batch_size_problems(job, strategy.num_replicas_in_sync, "replicas")):
        raise ConfigError(problems)
    with strategy.scope(), attached.lines_noted():
        config = to_garden.with_garden_objects(config)
        phase = "building the run"
        with during(phase):
            task = task_of(job, config)
        with during(phase, task=task, method="build_model"):
            used_before = kerases.in_use()
            model = contract.model_of(task)
            if (implementation := kerases.of(model)) not in used_before:  # build_model itself has imported it
                process.configure_keras(implementation, config.runtime)
                model = contract.model_of(task)
        if kerases.is_3(model) and (problems := list(keras_3_problems(job))):
            raise ConfigError(problems)
        with during(phase, task=task):
            optimizer = None
            if trains and isinstance(config, GardenExperiment):
                optimizer = to_garden.create_optimizer(task, config, model)
            elif trains:
                optimizer = contract.optimizer_of(task, config, model)
        best = best_checkpoint(job) if keeps_best and job.is_chief else None
        config, named = with_named_sets(config, job.model_dir)
        options = TrainerOptions(eval_tasks=named, stop=stop)
        with during(phase, task=task):
            return Trainer(config, task, model, optimizer, train=trains, checkpoint_exporter=best, options=options)


def with_named_sets(config: Any, model_dir: str) -> tuple[Any, Sequence[Part]]:
    """Returns the config for a Trainer, and the sets of its `eval_tasks`; in the strategy's scope."""
    named = parts_of(getattr(config, "eval_tasks", ()), model_dir)
    if named and isinstance(config, GardenMultiEval):  # these alone are evaluated, as there
        config = config.replace(task=config.task.replace(validation_data=None))
    return config, named


def task_of(job: Job, config: Any) -> Any:
    """Returns the Task of a job, which reads `config`: live objects where the job is of Model Garden."""
    if isinstance(config, GardenMultiTask):
        return garden_multi_task.build(config.task, job.model_dir)
    if ranking.is_ranking(job.config.task):
        return ranking.build_task(config, job.model_dir)
    evaluates = TRAINING_MODES.get(job.mode) != "never"
    return contract.task_of(registry.get_task_cls(job.config.task), config.task, job.model_dir, evaluates=evaluates)


def store_of(job: Job, trainer: Trainer, schedule: Schedule | None = None) -> CheckpointStore:
    """Returns the store of the run directory; it keeps what a continuous evaluator, or an action, still needs."""
    settings = job.config.trainer
    leased = LeasedSteps(job.model_dir)

    def in_use(steps: Collection[int]) -> Collection[int]:
        planned = [step for step in store.steps() if step % settings.checkpoint_interval == 0]
        return {*leased(steps), *(schedule.needed_checkpoints(planned) if schedule is not None else ())}

    options = StoreOptions(
        keep_every_steps=settings.keep_checkpoint_every_n_steps,
        in_use=in_use,
        read=functools.partial(
            trainer.checkpoint_state.read_checkpoint,
            allow_mismatch=list(settings.restore_allow_mismatch),
            allow_other_weights=job.allow_config_change,
        ),
        is_asynchronous=settings.async_checkpoint,
    )
    store = CheckpointStore(
        job.model_dir, trainer.checkpoint, max_to_keep=settings.max_to_keep, run=job.facts, options=options
    )
    return store


def best_checkpoint(job: Job) -> BestCheckpoint | None:
    """Returns the keeper of the run's best checkpoint, or None if no metric decides it."""
    trainer = job.config.trainer
    if not trainer.best_checkpoint_eval_metric:
        return None
    return BestCheckpoint(
        job.path(trainer.best_checkpoint_export_subdir),
        metric=trainer.best_checkpoint_eval_metric,
        comp=trainer.best_checkpoint_metric_comp,
        max_to_keep=trainer.best_checkpoint_max_to_keep,
        run=job.facts,
    )


def best_of(trainer: Trainer) -> BestCheckpoint | None:
    """Returns the keeper of the trainer's best checkpoint, if it is one of this package."""
    exporter = trainer.checkpoint_exporter
    return exporter if isinstance(exporter, BestCheckpoint) else None


def schedule_of(job: Job, trainer: Trainer) -> Schedule:
    """Returns the actions of a run: of the config, the task, the trainer and the caller, and the built-in one."""
    build_actions = getattr(trainer.task, "build_actions", lambda trainer: ())  # Model Garden's tasks have none
    prebuilt = job.prebuilt.actions if job.prebuilt is not None else ()
    with during("building the actions", task=trainer.task, method="build_actions"):
        actions = [*job.config.trainer.actions, *build_actions(trainer), *trainer.actions, *prebuilt]
        if not any(isinstance(action, PublishEnvironment | PublishEnvironmentConfig) for action in actions):
            actions.insert(0, PublishEnvironmentConfig())
        return Schedule(actions)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunTrackers:
    """The trackers of a process: `all` of them, and among those the console and the rows of `metrics.jsonl`."""

    all: Tracker
    console: Console
    rows: JsonlTracker


def trackers_of(job: Job, *, beside: str = "") -> RunTrackers:
    """Returns the trackers of a process that writes to the run directory; nothing is opened yet.

    TensorBoard and those of the config have threads of their own. The console and `metrics.jsonl` have not: its row is
    written last, and marks that everything before it is done.

    Args:
      job: the run.
      beside: for a process beside training, its folder in the run directory; TensorBoard's files are shared.
    """
    place = _place_of(job, beside)
    rows = JsonlTracker(files.join(place.directory, "metrics.jsonl"))
    end_step = None if beside else job.config.trainer.train_steps or None
    console = _console_of(job, end_step)
    others = [_summaries_of(job, _place_of(job), describes=not beside), *_configured(job, place), console]
    return RunTrackers(all=Trackers(others, rows), console=console, rows=rows)


def trackers_of_evaluation(job: Job, *, has_media: bool) -> Tracker:
    """Returns the trackers of an evaluation by itself; nothing is opened yet.

    They are the console and, because a run stays as it is, for media the others in a folder of their own, `eval`. A
    caller that has built the parts of the run gets the summaries, as from Model Garden.

    Args:
      job: the run.
      has_media: whether there is more than the console can show.
    """
    console, others = _console_of(job, None), []
    if job.prebuilt is not None:
        others = [_summaries_of(job, _place_of(job), describes=False)]
    elif has_media:
        place = _place_of(job, "eval")
        others = [_summaries_of(job, place, describes=False), *_configured(job, place)]
        console.message(f"images, texts and such: {place.directory}")
    return Trackers([*others, console])


def _console_of(job: Job, end_step: int | None) -> Console:
    monitored = job.config.trainer.best_checkpoint_eval_metric
    return Console(sys.stdout, end_step=end_step, monitored=monitored, quiet=job.quiet)


def _place_of(job: Job, beside: str = "") -> Place:
    folder = job.path(beside) if beside else job.model_dir
    return Place(directory=folder, experiment=job.experiment, name=f"{files.base_name(job.model_dir)} {beside}".strip())


def _configured(job: Job, place: Place) -> list[Tracker]:
    """Returns the trackers of the config, each with a thread of its own."""
    trackers: list[Tracker] = []
    for number, config in enumerate(job.config.trainer.trackers):
        if not isinstance(config, TensorBoardConfig):
            contract.check_calls(config, {"build": ("place",)})
            tracker, on_error = config.build(place), config.on_error
            contract.check_calls(tracker, _CALLS_OF_TRACKER, on_error=on_error)
            name = f"{config.type} (trainer.trackers[{number}])"
            fix = f"with trainer.trackers[{number}].on_error=warn the run would continue"
            trackers.append(ThreadedTracker(tracker, name=name, on_error=on_error, fix=fix))
    return trackers


def _summaries_of(job: Job, place: Place, *, describes: bool) -> Tracker:
    """Returns the tracker of TensorBoard's files, or the caller's instead; if it `describes`, with the config."""
    settings = job.config.trainer
    config = next(
        (tracker for tracker in settings.trackers if isinstance(tracker, TensorBoardConfig)), TensorBoardConfig()
    )
    split = "train" if TRAINING_MODES.get(job.mode) == "never" else "validation"
    folders = {"validation": settings.validation_summary_subdir}
    board = config.build(place, folders=folders, describes=split if describes else None, listed=job.chosen_fields)
    threaded = ThreadedTracker(board, name="tensorboard", on_error=config.on_error)
    return threaded if job.prebuilt is None else job.prebuilt.summaries(threaded)


def export_best(job: Job, trainer: Trainer, step: int, logs: Mapping[str, Any]) -> None:
    """Exports the current weights of the model as those of a new best checkpoint."""
    _export_version(job, trainer, job.path("export", "best"), step, logs)


def beside_of(job: Job, trainer: Trainer) -> export.Beside | None:
    """Returns what writes the files of `trainer.export.formats` beside a SavedModel; None without any."""
    if not job.config.trainer.export.formats:
        return None
    beside: export.Beside = installed.load_part(FORMATS, "trainer.export.formats").beside(job, trainer)
    return beside


def _export_version(job: Job, trainer: Trainer, folder: str, step: int, metrics: Mapping[str, Any]) -> str:
    made = files.join(folder, str(step))
    export.save(made, trainer.task, trainer.model, step=step, metrics=metrics, beside=beside_of(job, trainer))
    export.keep_newest(folder, job.config.trainer.export.max_to_keep, until=step)
    return made


def export_own(job: Job, trainer: Trainer, step: int, logs: Mapping[str, Any]) -> str:
    """Exports the model as the run's own version `step`, with averaged weights if the run averages.

    Later versions are deleted after it: a server serves the newest one, and this is what the run exports now.

    Returns:
      The directory of the version.
    """
    folder = job.path("export")
    with trainer.weights_averaged():
        made = _export_version(job, trainer, folder, step, tracking.flatten(logs))
    export.delete_after(folder, step)
    return made


def export_at_end(
    job: Job,
    trainer: Trainer,
    step: int,
    logs: Mapping[str, Any],
    find_row: Callable[[int, str], Mapping[str, float] | None],
) -> tuple[str, str] | None:
    """Exports the model of a run that has ended, if it is configured to.

    Args:
      job: the run.
      trainer: with the weights of the last step, which it has again afterwards.
      step: the last one.
      logs: its results.
      find_row: returns the recorded numbers of a step and split.

    Returns:
      Which weights were exported, and the directory; None if none were.
    """
    settings, best = job.config.trainer.export, best_of(trainer)
    if not settings.at_end:
        return None
    which, loaded = settings.checkpoint, step
    if which == "best":
        if best is None or best.best is None:
            _logger.warning(
                "nothing is exported: trainer.export.checkpoint=best, and this process has no best checkpoint. Once "
                "there is one, this exports it: official-trainer export --model_dir=%s --checkpoint=best",
                job.model_dir,
            )
            return None
        trainer.checkpoint_state.load_weights(*best.best)
        loaded = best.best[1]
    try:
        results = logs if which == "latest" else find_row(loaded, "validation") or {}
        return which, export_own(job, trainer, loaded, results)
    except export.NoSignaturesError as error:
        if hasattr(trainer.task, "build_signatures"):  # Model Garden's tasks have none
            raise
        # Model Garden's drivers do not export at the end: its users miss nothing.
        what = "nothing is exported at the end (trainer.export.at_end), the weights are in the checkpoints alone"
        _logger.warning("%s: %s", what, error)
        return None
    finally:
        if which == "best":  # the caller, and actions at the end of the run, may go on with the model
            trainer.checkpoint_state.load_weights(job.model_dir, step)
