"""Mode `predict`: the outputs of a checkpoint for all of a task's examples, in files; after a kill it continues.

Owns: what predictions are made from, and what of that must stay the same to continue; reading the data for them.
Does not own: the step (`engine/inference.py`), the files (`runs/predictions/shards.py`), finding a checkpoint
(`chosen_checkpoint.py`).

Modules that need TensorFlow are imported inside functions, so that a refusal does not wait for its import.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from official_trainer import config as configuration
from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.config import ConfigError, Problem, installed
from official_trainer.distributed.cluster import EVALUATOR, PS, Cluster, ClusterError
from official_trainer.distributed.strategy import strategy_name
from official_trainer.engine.inference import Columns
from official_trainer.lazy import tf
from official_trainer.lock import LockedError
from official_trainer.runs.health.stall_report import LateReports
from official_trainer.runs.health.watchdog import Watchdog
from official_trainer.runs.job import Job
from official_trainer.runs.predictions import manifest as prediction_manifest
from official_trainer.runs.predictions.manifest import ALL, Share
from official_trainer.runs.predictions.shards import DATA_SECTIONS, PredictionSettings, PredictionShards, predict_into
from official_trainer.runs.resume.config_changes import is_safe
from official_trainer.tasks import keras as kerases
from official_trainer.user_code import during

if TYPE_CHECKING:
    from official_trainer.engine.inference import Inference
    from official_trainer.engine.train_iterator import DatasetBuilder
    from official_trainer.engine.trainer import Trainer

_logger = logging.getLogger(__name__)

_NEAR_BATCHES = 16
"""Reading over so few batches is quicker than building a pipeline again."""


def share_of(cluster: Cluster | None) -> Share | None:
    """Returns which shards a process of a cluster predicts; None for a parameter server, which has nothing to do.

    The processes are not connected: each predicts on its own devices.

    Raises:
      ClusterError: the process is an evaluator.
    """
    if cluster is None:
        return ALL
    if cluster.role == EVALUATOR:
        raise ClusterError(
            f"mode predict has no evaluator, but {cluster.source} makes this process one; make it a worker, or "
            "remove it"
        )
    if cluster.role == PS:
        _logger.info("%s: predictions need no parameter server, so this process ends", cluster.name)
        return None
    return Share(index=cluster.training.index((cluster.role, cluster.index)), count=len(cluster.training))


def check_predictable(job: Job, settings: PredictionSettings) -> None:
    """Refuses, before TensorFlow is imported, what would fail later.

    Raises:
      ConfigError: the task has no such data, or there are several tasks.
      PredictionsError: the directory holds something else, or predictions that were made in another way.
      UserError: the model that is named is no file of a format that can be read here.
    """
    if hasattr(job.config.task, "task_routines"):
        fix = "predict with an experiment that has one task"
        raise ConfigError([Problem("holds several tasks, but mode predict takes one", "task", fix=fix)])
    if getattr(job.config.task, settings.data, None) is None:
        path = f"task.{settings.data}"
        others = [name for name in DATA_SECTIONS if getattr(job.config.task, name, None) is not None]
        fix = f"set it, or use --data={' or --data='.join(others)}" if others else "set it"
        raise ConfigError([Problem("is not set, so there is nothing to predict", path, fix=fix)])
    if settings.model:
        installed.load_part("official_trainer.formats.kinds", "--model").refuse_missing(settings.model)
    if settings.share.count > 1 and strategy_name(job.config.runtime, None) == "tpu":
        what = f"{settings.share.count} processes predict, each on its own devices, but only one process can use a TPU"
        raise ConfigError([Problem(what, "runtime.tpu", fix="start one process")])
    wanted = prediction_manifest.begin(settings.format, settings.shard_size, _source(job, settings.data), ALL)
    prediction_manifest.read_continuable(settings.output_dir or job.path("predictions"), wanted, is_whole=False)


def predict(job: Job, checkpoint: str, settings: PredictionSettings) -> dict[str, float]:
    """Writes the predictions of one checkpoint that are not there yet; returns how many rows and shards there are.

    Args:
      job: the run; nothing in its directory is changed.
      checkpoint: `latest`, `best` or a step.
      settings: what is predicted, and where it goes.

    Raises:
      CheckpointError: there is no such checkpoint.
      DataError: there is no example, or no end of them.
      LockedError: another process writes there.
      PredictionsError: as `check`, and for another checkpoint too.
    """
    output_dir = settings.output_dir or job.path("predictions")
    weights = _weights(job, checkpoint, settings.model)
    prediction_manifest.read(output_dir)  # before a lock is written to a directory of other files
    files.make_dirs(output_dir)
    share = settings.share
    if share.count > 1:
        share = dataclasses.replace(share, batch_size=getattr(job.config.task, settings.data).global_batch_size)
    locked = functools.partial(job.lock, output_dir, flag="--output")
    with locked(name=share.lock):
        settings = dataclasses.replace(settings, output_dir=output_dir, share=share)
        weights, shards = _predict(job, weights, checkpoint, settings)
        files_word = "file" if shards.count == 1 else "files"
        _logger.info("%d predictions of %s in %d %s: %s", shards.rows, weights, shards.count, files_word, output_dir)
    if prediction_manifest.is_to_gather(output_dir):
        # A process that holds this lock has found all shards too; if it dies, the same command merges them.
        with contextlib.suppress(LockedError), locked(name="gather"):
            prediction_manifest.gather(output_dir)
            _logger.info("the predictions of all processes are there: %s", output_dir)
    for share in prediction_manifest.interrupted(output_dir):  # of killed processes
        with contextlib.suppress(LockedError), locked(name=share.lock):  # else its process lives, and writes it
            files.remove_temporaries(output_dir, share.file)
    return {"rows": float(shards.rows), "shards": float(shards.count)}


@dataclasses.dataclass(frozen=True)
class _Weights:
    """What computes the predictions: a checkpoint, or a model in a file."""

    step: int
    source: Mapping[str, Any]
    directory: str = ""
    model: str = ""

    def __str__(self) -> str:
        return files.base_name(self.model) if self.model else f"ckpt-{self.step}"

    def inference(self, trainer: Trainer) -> Inference:
        """Returns the inference with these weights, in the strategy's scope."""
        from official_trainer.engine.inference import Inference

        if self.model:
            inference: Inference = _formats().inference(self.model, trainer)
            return inference
        traced, streams = trainer.config.trainer.eval_tf_function, trainer.context.streams
        return Inference(trainer.task, trainer.model, streams=streams, use_tf_function=traced)


def _weights(job: Job, checkpoint: str, model: str) -> _Weights:
    if model:
        return _Weights(0, {"model": _formats().digest(model)}, model=model)
    from official_trainer.runs.chosen_checkpoint import find_checkpoint

    return _weights_of(*find_checkpoint(job, checkpoint))


def _weights_of(directory: str, step: int) -> _Weights:
    from official_trainer.runs.chosen_checkpoint import deletion_explained

    with deletion_explained(directory, step):
        digest = manifest.digest(directory, step)
    return _Weights(step, {"checkpoint": step, "checkpoint_digest": digest}, directory=directory)


def _begin(job: Job, settings: PredictionSettings, weights: _Weights) -> PredictionShards:
    source = {**_source(job, settings.data), **weights.source}
    if job.gin is not None:
        source |= {f"gin {name}": value for name, value in (job.gin.bound or {}).items()}
    return PredictionShards(settings, source)


def _formats() -> Any:
    return installed.load_part("official_trainer.formats.predicting", "--model")


def _predict(
    job: Job, weights: _Weights, checkpoint: str, settings: PredictionSettings
) -> tuple[_Weights, PredictionShards]:
    """Writes the shards that are not there; returns them, and what they were made from."""
    from official_trainer.runs.build import build
    from official_trainer.runs.chosen_checkpoint import load_chosen

    shards, data = _begin(job, settings, weights), settings.data
    if shards.is_done:
        _logger.info("all predictions are there already; to predict from the start, name another --output")
        return weights, shards
    if shards.count:
        _logger.info("continuing after %d rows in %d shards", shards.rows, shards.count)
    with Watchdog(job.config.runtime, LateReports(job.model_dir)) as watchdog:
        watchdog.observe(lambda: {"detail": shards.rows})
        watchdog.enter("build")
        trainer = build(job)
        if not weights.model:
            watchdog.enter("restore", weights.step)
            chosen = weights.directory, weights.step
            loaded = load_chosen(job, trainer, "" if shards.count else checkpoint, chosen)
            if loaded != chosen:
                weights = _weights_of(*loaded)
                shards = _begin(job, settings, weights)
        watchdog.enter("predict", weights.step)
        keeps_state = not weights.model and bool(kerases.recurrent_states(trainer.model))
        runtime, first = job.config.runtime, 0 if keeps_state else shards.position.batch
        with trainer.strategy.scope():
            inference = weights.inference(trainer)
            builder, max_rows, dataset = data_of(trainer, data, runtime.seed, first)
        with contextlib.nullcontext() if weights.model else trainer.weights_averaged(), builder.errors_explained():
            batches, beat = iter(dataset), watchdog.beat
            reader = Reader(builder, inference, first, batches, keeps_state=keeps_state, on_batch=beat)
            predict_into(shards, reader, max_rows=max_rows)
    return weights, shards


@dataclasses.dataclass
class Reader:
    """The outputs for a data section from any batch on; each call starts at a later batch than the one before.

    A pipeline that can start at a batch is built again there; any other is read over, once.

    Attributes:
      builder: builds the data.
      inference: computes the outputs; its strategy is that of the data.
      number: of the next batch.
      iterator: over the data from there on.
      keeps_state: whether outputs depend on the batches before (recurrent layers with a state), so that these are
        computed, too.
      on_batch: called for each batch that is read.
    """

    builder: DatasetBuilder
    inference: Inference
    number: int
    iterator: Iterator[Any]
    keeps_state: bool = False
    on_batch: Callable[[], object] = lambda: None

    def __call__(self, first: int) -> Iterator[tuple[int, Columns]]:
        """Yields what `Inference.batches` does, from batch number `first` on."""
        if first - self.number > _NEAR_BATCHES and self.builder.started_at_step and not self.keeps_state:
            with self.inference.strategy.scope():
                self.number, self.iterator = first, iter(self.builder.build(first))
        with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
            while self.number < first and not self.keeps_state:
                next(self.iterator)
                self.number += 1
                self.on_batch()
        for number, columns in self.inference.batches(self.iterator, self.number):
            self.number = number + 1
            self.on_batch()
            if number >= first:
                yield number, columns


def data_of(trainer: Trainer, name: str, seed: int, first: int) -> tuple[Any, int | None, Any]:
    """Returns the builder of a data section, how many examples to read (None: all), and the data from batch `first`.

    Each example comes once, in order: nothing is shuffled, files are read one after the other, and no last batch is
    left out. Data for training is read as training data, because tasks choose examples by `is_training`, and ends with
    its first epoch.

    Raises:
      DataError: it has no end, and the length of an epoch is unknown.
    """
    from official_trainer.engine.train_iterator import DatasetBuilder
    from official_trainer.tasks.contract import EndlessError, length_of

    section = getattr(trainer.config.task, name)
    is_training = getattr(section, "is_training", None)
    if is_training is None:
        is_training = name == "train_data"
    wanted = {
        "is_training": is_training,
        "shuffle": False,
        "cycle_length": 1,
        "drop_remainder": False,
        "enable_tf_data_service": False,
    }
    section = section.replace(**{field: value for field, value in wanted.items() if hasattr(section, field)})
    # Apart: what a pipeline shuffles by itself comes in the same order after a restart.
    builder = DatasetBuilder(trainer.task, section, training=False, seed=seed, section=f"task.{name}").separate()
    dataset = builder.build(first)
    is_endless = length_of(builder.of_pipeline) == math.inf
    num_examples = None
    if builder.context is not None and (is_training or is_endless):
        num_examples = builder.context.examples_per_epoch
    if is_endless and num_examples is None:
        flag = f"set task.{name}.is_training=false, " if is_training else "leave out repeat() for it, "
        with during(task=trainer.task, method="build_inputs"):
            raise EndlessError(
                f"task.{name} has no end, and its number of examples is unknown, so predictions would never end; "
                f"{flag}or set input_context.examples_per_epoch in build_inputs"
            )
    return builder, num_examples, dataset


def _source(job: Job, data: str) -> Mapping[str, Any]:
    """Returns the values of the config that make a difference to predictions."""
    values = dict(configuration.flat(job.config))
    if values.get(f"task.{data}.input_path"):
        values[f"task.{data}.cycle_length"] = 1  # as `data_of` reads them; earlier versions took files in turn
    matter: dict[str, Any] = {}
    for path, value in values.items():
        section, _, field = path.partition(".")
        matters = path.startswith("trainer.optimizer_config.ema") or (section == "runtime" and not is_safe(path))
        if section == "task":
            name = field.partition(".")[0]
            is_of_data = name in DATA_SECTIONS  # validation data is safe for training; here it is what is read
            row = f"task.train_data{path.removeprefix(f'task.{name}')}" if is_of_data else path
            matters = (name == data or not is_of_data) and not is_safe(row)
        matter |= {path: value} if matters else {}
    return {"experiment": job.experiment, "data": data, **matter}
