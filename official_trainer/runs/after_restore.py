"""What a training run checks and adapts once its newest checkpoint is restored.

Owns: the refusal of a run directory whose checkpoints are gone, and what a changed config needs besides other values.
Does not own: which changes are refused (`resume/config_changes.py`, `resume/data_layout.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.engine.trainer import Trainer
from official_trainer.files import RUN_FILE
from official_trainer.runs.job import Job
from official_trainer.runs.resume import config_changes, data_layout


def check_fresh(job: Job, saved_step: int | None) -> None:
    """Refuses to start from step 0 where the run has saved a checkpoint before.

    Args:
      job: the run.
      saved_step: step of its newest checkpoint, by its record; None without any.

    Raises:
      CheckpointError: there is one on record.
    """
    if saved_step is not None:
        raise CheckpointError(
            f"{job.model_dir} holds no checkpoint, but this run has saved one at step {saved_step} "
            f"({job.path(RUN_FILE)}). Starting again from step 0 would hide that. Put the checkpoints "
            "back, or name another --model_dir, or delete this directory to start from nothing here."
        )


def check_layout(job: Job, trainer: Trainer, step: int) -> str | None:
    """Refuses other input pipelines than the checkpoint was saved with, where examples would change their order.

    Returns:
      A notice about a change that is accepted; None without a change.
    """
    if (pipelines := trainer.train_iterator.pipelines()) is None:
        return None
    return data_layout.check(job.model_dir, step, pipelines, allow_change=job.allow_config_change)


def apply_changes(job: Job, trainer: Trainer, step: int) -> Sequence[config_changes.Change]:
    """Adapts the trainer to a changed config, whose old values the checkpoint has brought back; returns the changes.

    Raises:
      ConfigError: a change is not safe, and changes are not allowed.
    """
    changes = {change.path: change for change in job.check_changes(step)}
    if any(path.startswith("trainer.optimizer_config.") for path in changes):
        trainer.checkpoint_state.use_configured_optimizer()
    if size := changes.get("task.train_data.global_batch_size"):
        trainer.train_iterator.position.change_batch_size(step, int(size.before), int(size.after))
    return tuple(changes.values())
