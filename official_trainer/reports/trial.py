"""A trainer for a try-out that leaves nothing behind: no run directory, no checkpoint.

Owns: which jobs can be tried, building the trainer, and the folder that its task may write to. Does not own: what is
tried (`overfit.py`, `find_lr.py`). Imports no TensorFlow by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from official_trainer.config import ConfigError, Problem, resolve
from official_trainer.distributed.environment import cluster_env
from official_trainer.distributed.strategy import strategy_name
from official_trainer.runs import run
from official_trainer.runs.job import Job, check_ready

if TYPE_CHECKING:
    from official_trainer.engine.trainer import Trainer


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
