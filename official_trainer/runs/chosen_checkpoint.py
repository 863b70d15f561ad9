"""The checkpoint that a command means by `latest`, `best` or a step, and what is known of it.

Owns: finding it, verified, in the run directory or among the best ones; its results; the warning about other bindings.
Does not own: which checkpoints a directory holds (`checkpoints/manifest.py`), or which is best (`checkpoints/best.py`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.manifest import CheckpointError, committed_steps
from official_trainer.engine.trainer import Trainer
from official_trainer.errors import ExitCode
from official_trainer.runs.build import best_checkpoint, build
from official_trainer.runs.job import Job
from official_trainer.runs.resume import config_changes
from official_trainer.runs.resume.config_changes import gin_names
from official_trainer.tracking.jsonl import numbers_of, read_rows
from official_trainer.tracking.record import read_run

_logger = logging.getLogger(__name__)


class DeletedError(CheckpointError):
    """The run, which trains on, has deleted a checkpoint before it was read."""

    exit_code = ExitCode.RETRY


def find_checkpoint(job: Job, checkpoint: str) -> tuple[str, int]:
    """Returns directory and step of the newest (`latest`), the `best` or a numbered checkpoint of a run, verified.

    Raises:
      CheckpointError: it is not there, or it is damaged.
    """
    directory, steps = job.model_dir, committed_steps(job.model_dir)
    if checkpoint == "best":
        best = best_checkpoint(job)
        directory = job.path(job.config.trainer.best_checkpoint_export_subdir)
        best_step = None if best is None else best.named_step if best.step is None else best.step
        steps = () if best_step is None else (best_step,)
    if not steps:
        fix = "train first"
        if job.mode == "eval" and checkpoint == "latest":
            fix = (
                "only the model's first weights, which are random, could be evaluated. Train first, or name the "
                "weights of another run: task.init_checkpoint=DIR"
            )
        raise CheckpointError(f"{directory} holds no checkpoint to {job.mode.replace('_', ' ')}; {fix}")
    newest = steps[-1] if checkpoint == "best" else manifest.saved_steps(directory)[-1]  # which may be damaged
    if checkpoint not in ("latest", "best", *map(str, (*steps, newest))):
        saved = ", ".join(map(str, steps))
        raise CheckpointError(f"{directory} has no checkpoint of step {checkpoint}; saved steps: {saved}")
    step = newest if checkpoint in ("latest", "best") else int(checkpoint)
    with deletion_explained(directory, step, was_there=step in steps):
        if damage := manifest.damage(directory, step):
            others = [other for other in steps if other != step]
            fix = f"; name another with --checkpoint: {', '.join(map(str, others))}" if others else ""
            raise CheckpointError(f"{manifest.prefix(directory, step)} is damaged: {damage}{fix}")
    return directory, step


@contextlib.contextmanager
def deletion_explained(directory: str, step: int, *, was_there: bool = True) -> Iterator[None]:
    """Makes a DeletedError of the error of a block that reads a checkpoint, if it is gone by now."""
    try:
        yield
    except Exception as error:
        if not was_there or manifest.is_committed(directory, step):
            raise
        raise DeletedError(
            f"{manifest.prefix(directory, step)} was deleted before it was read: its run trains on, and keeps only its "
            "newest checkpoints (trainer.max_to_keep) and its best ones. Start this command again, with "
            "--checkpoint=latest, =best or a step that is saved"
        ) from error


def build_at(job: Job, checkpoint: str) -> tuple[Trainer, int]:
    """Returns the trainer of a job with the weights of the checkpoint that `find_checkpoint` finds, and its step."""
    directory, step = find_checkpoint(job, checkpoint)
    trainer = build(job)
    load_weights(job, trainer, directory, step)
    return trainer, step


def load_weights(job: Job, trainer: Trainer, directory: str, step: int) -> None:
    """Loads the weights of a checkpoint that was found before the model was built.

    Raises:
      CheckpointError: it is damaged; or, as a DeletedError, it is gone, because its run has gone on meanwhile.
    """
    warn_of_gin(job, directory, step)  # first: it may be why the weights do not fit
    with deletion_explained(directory, step):
        trainer.checkpoint_state.load_weights(directory, step)


def results_at(job: Job, step: int) -> dict[str, float]:
    """Returns what an evaluation at a step has found, by the rows of the run; nothing if there was none."""
    for folder in ("", "continuous_eval"):
        path = job.path(folder, "metrics.jsonl")
        rows = read_rows(path) if files.exists(path) else []
        for row in reversed(rows):
            if (row["split"], row["step"]) == ("validation", step):
                return numbers_of(row)
    return {}


def warn_of_gin(job: Job, directory: str, step: int) -> None:
    """Warns that a checkpoint was saved under other gin bindings: its model may be another one."""
    try:
        facts = manifest.read(directory, step).run
    except manifest.UnreadableManifestError:  # deleted since it was read: Model Garden's driver does not wait for us
        return
    if not (changes := config_changes.gin_changes(facts, job.gin)):
        return
    kept = job.path(gin_names((read_run(job.model_dir) or {}).get("mode", ""))[0])
    fix = f"; --gin_file={kept} has them" if files.exists(kept) else ""
    lines = "\n  ".join(map(str, changes))
    _logger.warning("checkpoint %d was saved under other gin bindings%s:\n  %s", step, fix, lines)
