"""Mode `predict`: the outputs of a checkpoint for all of a task's examples, in files; killed, it goes on where it was.

Owns: what predictions are made from and what of that has to stay the same to go on; data as it is read for them.
Does not own: the step (`inference.py`), the files (`prediction_shards.py`), finding a checkpoint (`following.py`).

What needs TensorFlow is imported by the functions that do, so that a refusal costs no import of it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from official_trainer import config as configuration
from official_trainer import files, manifest, prediction_shards
from official_trainer.config import ConfigError, Problem
from official_trainer.errors import ExitCode
from official_trainer.inputs import DataError
from official_trainer.job import Job
from official_trainer.lock import DirectoryLock
from official_trainer.prediction_shards import DATA_SECTIONS, PredictionSettings, PredictionShards
from official_trainer.resume import kind_of
from official_trainer.stopping import StopRequest
from official_trainer.watchdog import Watchdog, watchdog_of

if TYPE_CHECKING:
    from official_trainer.trainer import Trainer

_logger = logging.getLogger(__name__)

_SPEED_ONLY = ("prefetch_buffer_size", "init_checkpoint", "init_checkpoint_allow_missing")


def check(job: Job, settings: PredictionSettings) -> None:
    """Refuses, before TensorFlow is imported, what could only fail later.

    Raises:
      ConfigError: the task has no such data, or there are several tasks.
      PredictionsError: the directory holds something else, or predictions that were made in another way.
    """
    if hasattr(job.config.task, "task_routines"):
        fix = "predict with an experiment that has one"
        raise ConfigError([Problem("holds several tasks, and predictions are of one", "task", fix=fix)])
    if getattr(job.config.task, settings.data, None) is None:
        path = f"task.{settings.data}"
        others = [name for name in DATA_SECTIONS if getattr(job.config.task, name, None) is not None]
        fix = f"set it, or use --data={' or --data='.join(others)}" if others else "set it"
        raise ConfigError([Problem("is not there, so there is nothing to predict", path, fix=fix)])
    source = _source(job, settings.data)
    prediction_shards.check(
        _directory(job, settings), source=source, format=settings.format, shard_size=settings.shard_size, is_whole=False
    )


def predict(job: Job, checkpoint: str, settings: PredictionSettings, stop: StopRequest) -> dict[str, float]:
    """Writes the predictions of one checkpoint, those that are not there yet; returns how many rows and shards.

    Args:
      job: the run; nothing in its directory is changed.
      checkpoint: `latest`, `best` or a step.
      settings: what is predicted, and where it goes.
      stop: who tells when to stop; whole shards stay.

    Raises:
      CheckpointError: there is no such checkpoint.
      DataError: there is no example, or no end of them.
      LockedError: another process writes there.
      PredictionsError: as `check`, and for another checkpoint too.
    """
    from official_trainer import following

    directory, step = following.find_checkpoint(job, checkpoint)
    output_dir = _directory(job, settings)
    digest = files.sha256(files.join(directory, manifest.name(step)))
    source = {**_source(job, settings.data), "checkpoint": step, "checkpoint_digest": digest}
    if job.gin is not None:
        source |= {f"gin {name}": value for name, value in job.gin.plain.items()}
    prediction_shards.read(output_dir)  # before a lock is left in a directory of somebody else
    files.make_dirs(output_dir)
    description = {"command": shlex.join(job.argv), "mode": job.mode}
    with DirectoryLock(output_dir, description=description, flag="--output"):
        shards = PredictionShards(output_dir, source=source, format=settings.format, shard_size=settings.shard_size)
        if shards.is_done:
            _logger.info("all is there already; another --output predicts anew")
        else:
            _predict(job, (directory, step), settings, shards, stop)
        _logger.info("%d predictions of ckpt-%d in %d files: %s", shards.rows, step, shards.count, output_dir)
    return {"rows": float(shards.rows), "shards": float(shards.count)}


def _predict(
    job: Job, checkpoint: tuple[str, int], settings: PredictionSettings, shards: PredictionShards, stop: StopRequest
) -> None:
    from official_trainer.build import build
    from official_trainer.inference import Inference, predict_into

    if shards.count:
        _logger.info("going on after %d rows in %d shards", shards.rows, shards.count)
    stop.on_leave = lambda: (f"after {shards.rows} predictions; the same command continues", ExitCode.PREEMPTED)
    with _watchdog(job, shards) as watchdog:
        watchdog.enter("build")
        trainer = build(job, stop=stop)
        watchdog.enter("restore", checkpoint[1])
        trainer.load_weights(*checkpoint)
        watchdog.enter("predict", checkpoint[1])
        runtime, first = job.config.runtime, shards.position.batch
        with trainer.strategy.scope():
            traced = job.config.trainer.eval_tf_function
            inference = Inference(trainer.task, trainer.model, seed=runtime.seed, use_tf_function=traced)
            feed, max_rows, dataset = _data(trainer, settings.data, runtime.seed, first)
        waiting = functools.partial(stop.leaving, lambda: True)  # whole shards are all there is to save
        with trainer.weights_averaged(), feed.errors_explained():
            batches = inference.batches(dataset, first, waiting)
            predict_into(shards, batches, max_rows=max_rows, on_batch=watchdog.beat)


def _data(trainer: Trainer, name: str, seed: int, first: int) -> tuple[Any, int | None, Any]:
    """Returns the feed of a data section, how many examples to read (None: all), and the data from batch `first`.

    Each example comes once, in order: nothing is shuffled and no last batch left out. Data for training is read as
    such, because tasks choose by `is_training` which examples they give, and cut where it begins again.

    Raises:
      DataError: it has no end, and does not say how long an epoch is.
    """
    from official_trainer.feed import Feed

    section = getattr(trainer.config.task, name)
    is_training = getattr(section, "is_training", None)
    if is_training is None:
        is_training = name == "train_data"
    wanted = {
        "is_training": is_training,
        "shuffle": False,
        "drop_remainder": False,
        "enable_tf_data_service": False,
    }
    section = section.replace(**{field: value for field, value in wanted.items() if hasattr(section, field)})
    # Apart: what a pipeline shuffles by itself comes in the same order after a restart.
    feed = Feed(trainer.task, section, training=False, seed=seed).apart()
    dataset = feed.build(first)
    steps = feed.steps_per_epoch() if is_training else None
    if steps == math.inf:
        raise DataError(
            f"{feed.source}: task.{name} repeats for ever and does not say how many examples it has, so predictions of "
            f"it would never end; set task.{name}.is_training=false, or input_context.examples_per_epoch in "
            "build_inputs"
        )
    return feed, (None if feed.context is None or not is_training else feed.context.examples_per_epoch), dataset


def _watchdog(job: Job, shards: PredictionShards) -> contextlib.AbstractContextManager[Watchdog]:
    return watchdog_of(job.config.runtime, job.model_dir, lambda: {"detail": shards.rows})


def _directory(job: Job, settings: PredictionSettings) -> str:
    return settings.output_dir or job.path("predictions")


def _source(job: Job, data: str) -> Mapping[str, Any]:
    """Returns what the config says that makes a difference to predictions."""
    values = configuration.flat(job.config).items()
    return {"experiment": job.experiment, "data": data, **{path: v for path, v in values if _matters(path, data)}}


def _matters(path: str, data: str) -> bool:
    section, _, field = path.partition(".")
    if section == "task":
        name, _, field = field.partition(".")
        return not (name in DATA_SECTIONS and name != data) and (field or name) not in _SPEED_ONLY
    is_averaged = path.startswith("trainer.optimizer_config.ema")
    return is_averaged or (section == "runtime" and kind_of(path) != "safe")
