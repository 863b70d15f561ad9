"""Trainings that leave nothing behind: the trainer for them, and `--overfit_batches`.

Owns: which jobs can be tried; how long a model trains on a few batches, and whether it has learned them; `overfit`, the
same from Python. Does not own: repeating the batches (`engine/train_iterator.py`), the search for a learning rate
(`find_lr.py`). Imports no TensorFlow by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from official_trainer.config import ConfigError, Problem, resolve
from official_trainer.distributed.environment import cluster_env
from official_trainer.distributed.strategy import strategy_name
from official_trainer.errors import UserError
from official_trainer.runs import from_python, run
from official_trainer.runs.job import Job, check_ready
from official_trainer.runs.mistakes import report
from official_trainer.tracking import closing, flatten
from official_trainer.tracking.console import Console, format_number

if TYPE_CHECKING:
    from official_trainer.engine.trainer import Trainer

_LEARNED, _DONE = 0.1, 0.01
"""Parts of the first loss: at or below the first one the model has learned, below the second one it need not go on."""

_MOST_STEPS, _MOST_PASSES = 1000, 100
_LINES = 40
_ADVICE = (
    "the loss is not near zero. Look at the labels that the loss gets, whether the last layer gives logits where the "
    "loss wants logits, whether weights are trainable, and the learning rate, which `official-trainer find-lr` "
    "suggests. With label smoothing, weight decay or dropout it cannot be 0"
)


class NotLearnedError(UserError, RuntimeError):
    """Model and loss did not learn a few batches by heart."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OverfitResult:
    """What came of training on a few batches.

    Attributes:
      num_batches: how many there were.
      steps: how many were trained.
      first_loss: of the first pass over the batches.
      last_loss: of the last steps.
      metrics: training metrics of the last steps, by name.
    """

    num_batches: int
    steps: int
    first_loss: float
    last_loss: float
    metrics: Mapping[str, float]

    def __str__(self) -> str:
        first, last = format_number(self.first_loss), format_number(self.last_loss)
        batches = f"{self.num_batches} {'batch' if self.num_batches == 1 else 'batches'}, {self.steps} steps"
        metrics = [f"{name} {format_number(value)}" for name, value in self.metrics.items()]
        return ", ".join([f"{batches}: loss {first} at first, {last} at last", *metrics])


def overfit(
    experiment: str,
    num_batches: int = 2,
    *,
    overrides: Sequence[str] = (),
    config_files: Sequence[str] = (),
    imports: Sequence[str] = (),
) -> OverfitResult:
    """Does what `official-trainer train --overfit_batches` does: trains on the first batches alone, and keeps nothing.

    `num_batches` are global ones. The other arguments, and errors, are those of `official_trainer.run`.

    Raises:
      NotLearnedError: the loss did not fall to a tenth of the first.
    """
    with from_python.job_of(experiment, "train", None, overrides, config_files, imports) as job, report.noted():
        return overfit_job(job, num_batches)


@contextlib.contextmanager
def trainer_of(job: Job, what: str, sets: Sequence[str] = ()) -> Iterator[Trainer]:
    """Returns a trainer with its first weights, for a `with` block; the run directory of the job is left alone.

    Args:
      job: the run that is tried.
      what: the flag or verb that tries it, for messages.
      sets: overrides of the run's config.

    Raises:
      ConfigError: the job cannot be tried in one process.
    """
    check_ready(job)
    runtime = job.config.runtime
    cluster = cluster_env(os.environ, runtime)
    if cluster is not None or strategy_name(runtime, None) in ("multi_worker_mirrored", "parameter_server"):
        where = f"by {cluster.source} it is one of several" if cluster is not None else "this strategy has several"
        fix = "start it on one machine, with the strategy mirrored, one_device or off"
        path = "runtime.distribution_strategy"
        raise ConfigError([Problem(f"{what} runs in one process, and {where}", path, fix=fix)])
    run.import_tensorflow(quiet=job.quiet)
    from official_trainer.runs.build import build

    resolved = resolve(job.config, experiment=job.experiment, sets=sets) if sets else job.resolved
    with run.gin_in_force(job), tempfile.TemporaryDirectory(prefix="official-trainer-") as folder:
        trainer = build(dataclasses.replace(job, resolved=resolved, model_dir=folder), trains=True)
        trainer.initialize()
        yield trainer


def overfit_job(job: Job, num_batches: int) -> OverfitResult:
    """Trains on the first batches of the training data until the loss is near zero, or for long enough.

    Nothing is evaluated, saved or exported, and no actions run. It is at most 1000 steps, or 100 passes if these are
    more, and never more than `trainer.train_steps`.

    Args:
      job: the run that the batches, the model and the learning rate are those of.
      num_batches: global batches, at least 1.

    Raises:
      NotLearnedError: the loss did not fall to near zero.
      ConfigError: the job cannot be tried in one process.
    """
    limit = max(_MOST_STEPS, _MOST_PASSES * num_batches)
    limit = min(limit, job.config.trainer.train_steps or limit)
    with trainer_of(job, "--overfit_batches") as trainer:
        trainer.train_iterator.builder.repeat_first(num_batches)
        console = Console(sys.stdout, end_step=limit, quiet=job.quiet)
        with closing(console):  # windows of whole passes over the batches, the first one a single pass
            first = logs = flatten(trainer.train(min(num_batches, limit)))
            steps, window = trainer.context.step, num_batches * math.ceil(limit / _LINES / num_batches)
            done = _DONE * first["training_loss"] if first["training_loss"] > 0 else -math.inf
            while steps < limit and done < logs["training_loss"] < math.inf:  # a NaN ends it too
                logs = flatten(trainer.train(min(window, limit - steps)))
                steps = trainer.context.step
                console.log("train", steps, logs)
    others = {name: logs[name] for name in logs if not name.endswith("_loss") and "learning_rate" not in name}
    losses = {"first_loss": first["training_loss"], "last_loss": logs["training_loss"]}
    result = OverfitResult(num_batches=num_batches, steps=steps, metrics=others, **losses)
    if not _is_learned(result.first_loss, result.last_loss):
        raise NotLearnedError(f"{result}\n{_ADVICE}")
    return result


def _is_learned(first: float, last: float) -> bool:
    """Returns whether a loss has come down to a tenth; one that began at 0 or below, whether it fell. A NaN has not."""
    return last <= _LEARNED * first if first > 0 else last < first
