"""The parts of a run, built from a job in their order: devices, task, model, optimizer, trainer, store.

Owns: that order, and what is exported from a trainer. With `training.py` it is the composition root: the rest of the
package knows contracts only. Does not own: what happens with the parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer import distribute, export, files, manifest, registry, restore, tracking
from official_trainer.best import BestCheckpoint
from official_trainer.checkpoints import CheckpointStore
from official_trainer.config import ConfigError, Problem
from official_trainer.inputs import BatchSizeError, InputContext
from official_trainer.job import Job
from official_trainer.lease import LeasedSteps
from official_trainer.schedule import Schedule
from official_trainer.trainer import REPLICA_VALUES, Trainer


def build(job: Job, *, trains: bool = False, keeps_best: bool = False) -> Trainer:
    """Returns the trainer of a job: strategy, task, model, optimizer, and the keeper of its best checkpoint.

    Args:
      job: what to build.
      trains: whether an optimizer is needed.
      keeps_best: whether evaluations may replace the best checkpoint.

    Raises:
      ConfigError: a batch does not divide over the replicas.
      DeviceError: the devices are not there.
    """
    config = job.config
    distribute.configure_process(config.runtime)
    strategy = distribute.build_strategy(config.runtime)
    _check_batch_sizes(job, strategy.num_replicas_in_sync)
    with strategy.scope():
        task = registry.get_task_cls(config.task)(config.task, logging_dir=job.model_dir)
        model = task.build_model()
        optimizer = task.create_optimizer(config.trainer.optimizer_config, config.runtime) if trains else None
        best = best_checkpoint(job) if keeps_best else None
        return Trainer(config, task, model, optimizer, train=trains, checkpoint_exporter=best)


def store_of(job: Job, trainer: Trainer) -> CheckpointStore:
    """Returns the store of the run directory; it keeps what an evaluator beside the run has not seen yet."""
    settings = job.config.trainer
    store = CheckpointStore(
        job.model_dir,
        trainer.checkpoint,
        max_to_keep=settings.max_to_keep,
        keep_every_steps=settings.keep_checkpoint_every_n_steps,
        metadata=job.metadata,
    )
    store.allow_mismatch = (*settings.restore_allow_mismatch, f"{REPLICA_VALUES}*")
    if settings.async_checkpoint:
        store.write_in_background()
    store.in_use = LeasedSteps(job.model_dir)
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
        metadata=job.metadata,
    )


def load_weights(trainer: Trainer, directory: str, step: int) -> None:
    """Gives `trainer` the step, the weights and the averages of a checkpoint.

    A best checkpoint holds weights that are averages already, so there the average is the weights.
    """
    saved = manifest.read(directory, step).variables
    items = {"global_step": trainer.global_step, "model": trainer.model}
    average = trainer.average
    if average is not None and any(key.startswith("average/") for key in saved):
        items["average"] = average.state
    restore.read_items(manifest.prefix(directory, step), items)
    if average is not None and "average" not in items:
        average.reset()


def schedule_of(job: Job, trainer: Trainer) -> Schedule:
    """Returns the actions of a run: those of the config, of the task, and those put on the trainer."""
    return Schedule([*job.config.trainer.actions, *_of_task(trainer), *trainer.actions])


def _of_task(trainer: Trainer) -> Sequence[Any]:
    build_actions = getattr(trainer.task, "build_actions", None)  # Model Garden's tasks have none
    return () if build_actions is None else build_actions(trainer)


def monitored(job: Job, schedule: Schedule | None = None) -> dict[str, str]:
    """Returns the metrics that an evaluation has to produce, each with who wants it."""
    best = job.config.trainer.best_checkpoint_eval_metric
    wanted = {best: "trainer.best_checkpoint_eval_metric"} if best else {}
    for metric, name in schedule.monitored().items() if schedule is not None else ():
        wanted.setdefault(metric, f"action '{name}'")
    return wanted


def _check_batch_sizes(job: Job, num_replicas: int) -> None:
    """Refuses batches that do not divide over the replicas before a model is built."""
    context = InputContext(num_replicas_in_sync=num_replicas)
    problems = []
    for section in ("train_data", "validation_data"):
        try:
            context.get_per_replica_batch_size(getattr(job.config.task, section).global_batch_size)
        except BatchSizeError as error:
            path = f"task.{section}.global_batch_size"
            what = f"{error.global_batch_size} does not divide over {num_replicas} replicas"
            problems.append(Problem(what, path, fix=f"use {error.choices}", origin=job.resolved.origin(path)))
    if problems:
        raise ConfigError(problems)


def export_best(job: Job, trainer: Trainer, step: int, logs: Mapping[str, Any]) -> None:
    """Exports the weights that are in the model now, as those of a new best checkpoint."""
    directory = job.path("export", "best")
    export.save(files.join(directory, str(step)), trainer.task, trainer.model, step=step, metrics=logs)
    export.keep_newest(directory, job.config.trainer.export.max_to_keep)


def drop_best_after(job: Job, trainer: Trainer, step: int) -> tuple[int, ...]:
    """Deletes best checkpoints, and their exports, of steps that the run has gone back from; returns the steps."""
    export.remove_after(job.path("export", "best"), step)
    best = trainer.checkpoint_exporter
    return () if best is None else best.drop_after(step)


def export_last(job: Job, trainer: Trainer, step: int, logs: Mapping[str, Any]) -> None:
    """Exports the model, with averaged weights if the run averages, unless this step is exported already."""
    directory = job.path("export", "saved_model")
    if export.exported_step(directory) == step:
        return
    with trainer.weights_averaged():
        export.save(directory, trainer.task, trainer.model, step=step, metrics=tracking.flatten(logs))
