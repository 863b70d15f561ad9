"""A trainer for a try-out that leaves nothing behind: no run directory, no checkpoint.

Owns: building it, and the folder that its task may write to. Does not own: what is tried (`overfit.py`, `find_lr.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator

from official_trainer.engine.trainer import Trainer
from official_trainer.runs.build import build
from official_trainer.runs.job import Job


@contextlib.contextmanager
def trainer_of(job: Job) -> Iterator[Trainer]:
    """Returns a trainer with its first weights, for a `with` block; the run directory of the job is left alone."""
    with tempfile.TemporaryDirectory(prefix="official-trainer-") as folder:
        trainer = build(dataclasses.replace(job, model_dir=folder), trains=True)
        trainer.initialize()
        yield trainer
