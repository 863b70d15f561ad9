"""The functions behind the command line: run an experiment in a mode, check it, export from it.

Owns: these functions, and that everything is refused first that can be refused without TensorFlow, which importing
this module does not import.
Does not own: how any of it is done (`train.py`, `evaluate.py`, `predict.py`, `check.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from official_trainer import files
from official_trainer.config import ConfigError
from official_trainer.config.modes import TRAINING_MODES
from official_trainer.distributed import parameter_server
from official_trainer.distributed.cluster import EVALUATOR
from official_trainer.distributed.environment import SIGNALLED_TOGETHER, cluster_env
from official_trainer.garden import gin_bindings
from official_trainer.inputs import DataError
from official_trainer.lazy import deferring_idle_keras, load
from official_trainer.runs import predict
from official_trainer.runs.job import Job, check_ready, format_problems, say_place, warn
from official_trainer.runs.predictions import PredictionSettings
from official_trainer.stopping import NOTHING_LOST, StopRequest
from official_trainer.tasks import registry
from official_trainer.tracking.console import working
from official_trainer.tracking.record import check_name, prepare_model_dir

if TYPE_CHECKING:
    from official_trainer.lazy import keras
    from official_trainer.runs.check import CheckStep
    from official_trainer.tasks.multi_task.model import MultiTaskModel

_logger = logging.getLogger(__name__)
_DEFAULT_PREDICTION = PredictionSettings()


def run(
    job: Job,
    *,
    checkpoint: str = "latest",
    stop: StopRequest | None = None,
    prediction: PredictionSettings = _DEFAULT_PREDICTION,
) -> dict[str, float]:
    """Runs a job in its mode and returns the metrics.

    Args:
      job: what is done; the environment says which processes take part.
      checkpoint: for `eval` and `predict`: `latest`, `best` or a step.
      stop: requests to stop; None for one with the limits of the config.
      prediction: for `predict`: what is predicted, and where it goes.

    Raises:
      UserError: with the exit code for the kind of failure.
    """
    runtime = job.config.runtime
    cluster = cluster_env(os.environ, runtime)
    if job.mode == "predict":
        if (share := predict.share_of(cluster)) is None:
            return {}
        prediction = dataclasses.replace(prediction, share=share)
    elif cluster is not None and cluster.role == EVALUATOR:
        job = dataclasses.replace(job, mode="continuous_eval", until_step=None)  # it only reads the run's checkpoints
    else:
        job = dataclasses.replace(job, cluster=cluster)
    check_startable(job, prediction)
    stop = stop or StopRequest.of(runtime)
    import_tensorflow(quiet=job.quiet)
    with stop, contextlib.nullcontext() if job.serves else gin_in_force(job):  # what serves builds nothing
        try:
            return _run_in_mode(job, stop, checkpoint, prediction)
        except DataError as error:
            say_place(error, job)
            raise


def import_tensorflow(*, quiet: bool = False) -> None:
    """Imports TensorFlow, and what needs it; a command shows on its terminal that this takes seconds."""
    is_quiet = quiet or not _logger.isEnabledFor(logging.INFO)  # as `--quiet` sets it
    with working("importing TensorFlow", quiet=is_quiet):
        load("tensorflow")  # before anything else imports it, so that it comes with the Keras that is used
        with deferring_idle_keras():
            from official_trainer.runs import evaluate, train, worker  # noqa: F401


def gin_in_force(job: Job) -> AbstractContextManager[None]:
    """Binds what the gin flags set, once everything is imported that the task may call."""
    return gin_bindings.in_force(job.gin, registry.gin_modules(job.config.task))


def _run_in_mode(job: Job, stop: StopRequest, checkpoint: str, prediction: PredictionSettings) -> dict[str, float]:
    from official_trainer.runs import evaluate, train, worker

    if job.cluster is not None and job.serves:
        if os.environ.get(SIGNALLED_TOGETHER):  # then a server stays until the chief has saved what it holds
            stop.listen(lambda: NOTHING_LOST)
        parameter_server.serve(job.cluster, job.config.runtime, job.model_dir)
        return {}
    if not job.is_chief:
        return worker.work(job, stop, trains=job.mode in TRAINING_MODES)
    if job.mode in TRAINING_MODES:
        return train.train(job, stop)
    if job.mode == "eval":
        return evaluate.evaluate(job, checkpoint)
    if job.mode == "predict":
        return predict.predict(job, checkpoint, prediction)
    if job.mode == "continuous_eval":
        return evaluate.continuous_eval(job, stop)
    return evaluate.continuous_train_and_eval(job, stop)


def check_startable(job: Job, prediction: PredictionSettings = _DEFAULT_PREDICTION) -> None:
    """Refuses what can be refused without TensorFlow: a job that is not ready, a directory that is not this run's.

    Warns of what was likely not meant.

    Args:
      job: the run.
      prediction: for mode `predict`: what is predicted, and where it goes.

    Raises:
      UserError: as `run` would.
    """
    check_ready(job)
    if job.mode in TRAINING_MODES and not job.serves:
        # Training does both again; here they need no import of TensorFlow.
        if prepare_model_dir(job.model_dir, job.experiment, is_shared=job.shares_directory) is None:
            files.remove_if_empty(job.model_dir)  # until training makes it again, nothing that is refused leaves it
        job.check_changes()
    if job.mode == "predict":
        predict.check_predictable(job, prediction)
    warn(job)


def export(job: Job, *, checkpoint: str = "latest", output_dir: str | None = None) -> str:
    """Exports a checkpoint of a run as a SavedModel and returns where it is.

    Args:
      job: the run, with `export` as its mode.
      checkpoint: `latest`, `best` or a step.
      output_dir: the directory of the SavedModel. None is a version of its own in `model_dir/export`, beside that of
        the run unless `checkpoint` is what the run itself exports.
    """
    registry.get_task_cls(job.config.task)
    if problems := list(format_problems(job)):
        raise ConfigError(problems)
    for path, flag in ((job.model_dir, "--model_dir"), (output_dir or job.model_dir, "--output_dir")):
        check_name(path, flag)
    from official_trainer.tasks import export as exports

    if output_dir is not None:
        exports.check_replaceable(output_dir, "--output_dir")
    import_tensorflow()
    from official_trainer.runs.build import beside_of, export_own
    from official_trainer.runs.chosen_checkpoint import build_at, results_at

    with gin_in_force(job):
        trainer, step = build_at(job, checkpoint)
        results = results_at(job, step)
        is_own = output_dir is None and checkpoint == job.config.trainer.export.checkpoint
        beside = () if is_own else ("best" if checkpoint == "best" else "steps",)
        output_dir = output_dir or job.path("export", *beside, str(step))
        with trainer.weights_averaged():  # also where there is one: the code of the task may have changed
            formats = beside_of(job, trainer)
            exports.save(output_dir, trainer.task, trainer.model, step=step, metrics=results, beside=formats)
        if is_own:
            export_own(job, trainer, step, results)  # which finds it, and deletes what it takes the place of
    return output_dir


def model_of(job: Job, checkpoint: str = "latest") -> keras.Model | MultiTaskModel:
    """Builds the model of a run, and returns it with the weights of a checkpoint; averaged ones if the run averages.

    Args:
      job: the run, with `export` as its mode; nothing in its directory is changed.
      checkpoint: `latest`, `best` or a step.
    """
    registry.get_task_cls(job.config.task)
    check_name(job.model_dir)
    import_tensorflow(quiet=True)
    from official_trainer.runs.chosen_checkpoint import build_at

    trainer, _ = build_at(job, checkpoint)
    variables = trainer.context.model_variables
    with trainer.weights_averaged():
        values = [variable.numpy() for variable in variables]
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return trainer.model


def check(job: Job, metrics: Sequence[str] = ()) -> Iterator[CheckStep]:
    """Tries everything the run would do and yields each step as it is done; the first that fails is the last.

    Args:
      job: the run.
      metrics: what evaluations have to produce, beside what the config names.
    """
    import_tensorflow()
    from official_trainer.runs import check as dry_run

    with gin_in_force(job):
        yield from dry_run.check(job, metrics)
