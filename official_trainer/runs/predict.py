"""Mode `predict`: the outputs of a checkpoint for all of a task's examples, in files; after a kill it continues.

Owns: what predictions are made from, and what of that must stay the same to continue; reading the data for them.
Does not own: the step (`engine/inference.py`), the files (`predictions.py`), finding a checkpoint
(`chosen_checkpoint.py`).

Modules that need TensorFlow are imported inside functions, so that a refusal does not wait for its import.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from official_trainer import config as configuration
from official_trainer import files, lazy
from official_trainer.checkpoints import manifest
from official_trainer.config import ConfigError, Problem
from official_trainer.distributed.cluster import EVALUATOR, PS, Cluster, ClusterError
from official_trainer.distributed.strategy import strategy_name
from official_trainer.engine.inference import Columns
from official_trainer.inputs import DataError
from official_trainer.lazy import tf
from official_trainer.runs.health.watchdog import Watchdog
from official_trainer.runs.job import Job
from official_trainer.runs.prediction_formats import PredictionsError, num_rows
from official_trainer.runs.predictions import (
    DATA_SECTIONS,
    PredictionFiles,
    PredictionSettings,
    Share,
    read_continuable,
)
from official_trainer.runs.resume.config_changes import is_safe
from official_trainer.shown import counted
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
    """Returns which files a process of a cluster predicts; None for a parameter server, which has nothing to do.

    The processes are not connected: each predicts on its own devices.

    Raises:
      ClusterError: the process is an evaluator.
    """
    if cluster is None:
        return Share()
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
      PredictionsError: the directory holds something else, or predictions that were made with other settings; or the
        format needs a package that is not installed.
    """
    if hasattr(job.config.task, "task_routines"):
        fix = "predict with an experiment that has one task"
        raise ConfigError([Problem("holds several tasks, but mode predict takes one", "task", fix=fix)])
    if getattr(job.config.task, settings.data, None) is None:
        path = f"task.{settings.data}"
        others = [name for name in DATA_SECTIONS if getattr(job.config.task, name, None) is not None]
        fix = f"set it, or use --data={' or --data='.join(others)}" if others else "set it"
        raise ConfigError([Problem("is not set, so there is nothing to predict", path, fix=fix)])
    if settings.format == "parquet" and lazy.spec_of("pyarrow") is None:
        what = "--format=parquet needs pyarrow, which is not installed"
        raise PredictionsError(f"{what}: pip install 'official-trainer[parquet]', or use --format=csv")
    if settings.share.count > 1 and strategy_name(job.config.runtime, None) == "tpu":
        what = f"{settings.share.count} processes predict, each on its own devices, but only one process can use a TPU"
        raise ConfigError([Problem(what, "runtime.tpu", fix="start one process")])
    read_continuable(settings.output_dir or job.path("predictions"), _settings_of(job, settings), is_whole=False)


def predict(job: Job, checkpoint: str, settings: PredictionSettings) -> dict[str, float]:
    """Writes the predictions of one checkpoint that are not there yet; returns how many rows it has written.

    Args:
      job: the run; nothing in its directory is changed.
      checkpoint: `latest`, `best` or a step.
      settings: what is predicted, and where it goes.

    Raises:
      CheckpointError: there is no such checkpoint.
      DataError: there is no example, or no end of them.
      LockedError: another process writes there.
      PredictionsError: as `check_predictable`, and for another checkpoint too.
    """
    from official_trainer.runs.chosen_checkpoint import find_checkpoint

    settings = dataclasses.replace(settings, output_dir=settings.output_dir or job.path("predictions"))
    chosen = find_checkpoint(job, checkpoint)
    files.make_dirs(settings.output_dir)
    name = f"lock-{settings.share.index}" if settings.share.index else "lock"
    with job.lock(settings.output_dir, flag="--output", name=name):
        return {"rows": float(_predict(job, chosen, settings))}


def _predict(job: Job, chosen: tuple[str, int], settings: PredictionSettings) -> int:
    """Writes the files of a share that are not there; returns how many rows these have."""
    from official_trainer.engine.inference import Inference
    from official_trainer.runs.build import build
    from official_trainer.runs.chosen_checkpoint import load_weights

    target = _opened(job, settings, chosen)
    if target.next_number() is None:
        _logger.info("all predictions are there already; to predict from the start, name another --output")
        return 0
    if target.num_there:
        _logger.info("continuing with %s there already", counted(target.num_there, "file"))
    with Watchdog(job.config.runtime, job.model_dir) as watchdog:
        watchdog.enter("build")
        trainer = build(job)
        watchdog.enter("restore", chosen[1])
        load_weights(job, trainer, *chosen)
        watchdog.enter("predict", chosen[1])
        with trainer.strategy.scope():
            traced, streams = trainer.config.trainer.eval_tf_function, trainer.context.streams
            inference = Inference(trainer.task, trainer.model, streams=streams, use_tf_function=traced)
            builder, max_rows, dataset = data_of(trainer, settings.data, job.config.runtime.seed)
        keeps_state = bool(kerases.recurrent_states(trainer.model))
        with trainer.weights_averaged(), builder.errors_explained():
            batches = Batches(builder, inference, dataset, max_rows, keeps_state, on_batch=watchdog.beat)
            is_done = predict_into(target, batches)
    others = "" if is_done else "; other processes write the other files"
    what = f"wrote {target.rows} predictions of ckpt-{chosen[1]}, {counted(target.num_there, 'file')} in all"
    _logger.info("%s: %s%s", what, settings.output_dir, others)
    return target.rows


def _opened(job: Job, settings: PredictionSettings, chosen: tuple[str, int]) -> PredictionFiles:
    """Returns the files of predictions by a checkpoint."""
    from official_trainer.runs.chosen_checkpoint import deletion_explained

    with deletion_explained(*chosen):
        weights = {"checkpoint": chosen[1], "checkpoint_digest": manifest.digest(*chosen)}
    bound = {} if job.gin is None else job.gin.bound or {}
    made_from = {**_settings_of(job, settings), **weights, **{f"gin {name}": value for name, value in bound.items()}}
    batch_size = _batch_size(getattr(job.config.task, settings.data))
    return PredictionFiles(settings.output_dir, made_from, batch_size=batch_size, share=settings.share)


class Batches:
    """The outputs for a data section; each call asks for batches behind those before.

    A pipeline that can start at a batch is built again at one that is far ahead; any other is read over.

    Attributes:
      number: of the next batch; once the data has ended, how many there were.
      has_ended: whether no batch is left.
    """

    def __init__(
        self,
        builder: DatasetBuilder,
        inference: Inference,
        dataset: Any,
        max_rows: int | None = None,
        keeps_state: bool = False,
        on_batch: Callable[[], object] = lambda: None,
    ) -> None:
        """Takes the data.

        Args:
          builder: has built `dataset`.
          inference: computes the outputs; its strategy is that of the data.
          dataset: all batches.
          max_rows: how many examples there are, for data that does not end there; None for all.
          keeps_state: whether outputs depend on the batches before (recurrent layers with a state), so that these are
            computed, too.
          on_batch: called for each batch that is read.
        """
        self._builder, self._inference, self._iterator = builder, inference, iter(dataset)
        self._max_rows, self._keeps_state, self._on_batch = max_rows, keeps_state, on_batch
        self._batch_size = _batch_size(builder.params)
        self._end = sys.maxsize if max_rows is None else -(-max_rows // self._batch_size)
        self.number, self.has_ended = 0, False

    def outputs(self, first: int, stop: int) -> list[Columns]:
        """Returns the outputs of the batches from number `first` until before `stop`; fewer at the end of the data."""
        outputs: list[Columns] = []
        if not self._keeps_state:
            self._move_to(min(first, self._end))
        computed = self._computed()
        while self.number < min(stop, self._end) and not self.has_ended:
            number, columns = next(computed, (stop, None))
            self.has_ended = columns is None
            if columns and number >= first:
                outputs.append(columns)
        self.has_ended |= self.number == self._end
        return outputs

    def _move_to(self, first: int) -> None:
        """Reads over the batches before number `first`, or all that are left; jumps only to one that is there."""
        can_jump = first - self.number > _NEAR_BATCHES and self._builder.started_at_step
        context = self._builder.context
        if can_jump and context is not None and first * self._batch_size < (context.examples_per_epoch or 0):
            with self._inference.strategy.scope():
                self.number, self._iterator = first, iter(self._builder.build(first))
        with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
            while self.number < first:
                next(self._iterator)
                self.number += 1
                self._on_batch()

    def _computed(self) -> Iterator[tuple[int, Columns]]:
        """Yields number and outputs of the batches that are left, without what repeats the first ones."""
        for number, columns in self._inference.batches(self._iterator, self.number):
            if self._max_rows is not None and columns:
                rows, left = num_rows(columns), self._max_rows - number * self._batch_size
                if rows not in (self._batch_size, left):
                    raise DataError(
                        f"batch {number} of {self._builder.section} has {rows} examples, and global_batch_size is "
                        f"{self._batch_size}, so it is unknown where they begin again; leave out repeat() for it"
                    )
                columns = {name: values[:left] for name, values in columns.items()}
            self.number = number + 1
            self._on_batch()
            yield number, columns


def predict_into(target: PredictionFiles, batches: Batches) -> bool:
    """Writes the files of a share that are not there; returns whether those of all shares are there then.

    Raises:
      DataError: there is no example.
    """
    first = [] if target.batches_per_file else batches.outputs(0, 1)
    size = target.batches_per_file or target.choose_size(first)
    number = target.next_number()
    while number is not None:
        before = first if number == 0 else []
        if outputs := [*before, *batches.outputs(number * size + len(before), (number + 1) * size)]:
            target.write(number, outputs)
        number = None if batches.has_ended else target.next_number(number + 1)
    if batches.has_ended and not batches.number:
        raise DataError("there is nothing to predict: the data holds no example; check input_path")
    return target.finish(-(-batches.number // size) if batches.has_ended else None)


def data_of(trainer: Trainer, name: str, seed: int) -> tuple[Any, int | None, Any]:
    """Returns the builder of a data section, how many examples to read (None: all), and the data.

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
    dataset = builder.build()
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


def _batch_size(section: Any) -> int:
    """Returns how many examples a batch has; 1 where the section does not say it, as in some of Model Garden's."""
    return max(1, getattr(section, "global_batch_size", 0))


def _settings_of(job: Job, settings: PredictionSettings) -> dict[str, Any]:
    """Returns the flags, and the values of the config, that make a difference to predictions."""
    rows, batch_size = settings.shard_size, _batch_size(getattr(job.config.task, settings.data))
    shard_size = None if rows is None else -(-rows // batch_size) * batch_size
    flags = {"experiment": job.experiment, "data": settings.data, "format": settings.format, "shard_size": shard_size}
    matter: dict[str, Any] = {}
    for path, value in configuration.flat(job.config).items():
        section, _, field = path.partition(".")
        matters = path.startswith("trainer.optimizer_config.ema") or (section == "runtime" and not is_safe(path))
        if section == "task":
            name = field.partition(".")[0]
            is_of_data = name in DATA_SECTIONS  # validation data is safe for training; here it is what is read
            row = f"task.train_data{path.removeprefix(f'task.{name}')}" if is_of_data else path
            matters = (name == settings.data or not is_of_data) and not is_safe(row)
        matter |= {path: value} if matters else {}
    return {**flags, **matter}
