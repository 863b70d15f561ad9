"""Whether a run goes on from the checkpoint that it has restored: whether its rows, its data and its config fit.

Owns: what is compared when a checkpoint is restored, and what a changed config changes in the trainer. Does not own:
how data is divided (`resume/data_layout.py`), which changes of a config are safe (`resume/config_changes.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.manifest import CheckpointError, RunFacts
from official_trainer.engine.trainer import Trainer
from official_trainer.files import RUN_FILE
from official_trainer.runs.build import RunTrackers
from official_trainer.runs.job import Job
from official_trainer.runs.resume import data_layout
from official_trainer.runs.resume.config_changes import Change

_logger = logging.getLogger(__name__)


def check_restored(
    job: Job, trainer: Trainer, trackers: RunTrackers, step: int, saved_step: int | None
) -> Sequence[Change]:
    """Checks a restored checkpoint against a job, and adapts the trainer to a changed config.

    Args:
      job: the run.
      trainer: restored, or at step 0.
      trackers: the rows are compared; the console shows what has changed.
      step: of the checkpoint; 0 without one.
      saved_step: of the newest checkpoint that the run has saved; None for none.

    Returns:
      What has changed in the config.

    Raises:
      CheckpointError: there is none, and the run has saved one before.
      LayoutChangeError: examples would change their order, which is not allowed.
      ConfigError: a change is not safe, and changes are not allowed.
    """
    if step == 0:
        if saved_step is None:
            return ()
        raise CheckpointError(
            f"{job.model_dir} holds no checkpoint, but this run has saved one at step {saved_step} "
            f"({job.path(RUN_FILE)}). Starting again from step 0 would hide that. Put the checkpoints "
            "back, or name another --model_dir, or delete this directory to start from nothing here."
        )
    data, allows = trainer.train_iterator.data, job.allow_config_change
    pipelines = data.num_pipelines() if data is trainer.train_iterator.builder else None
    if pipelines is not None and (
        notice := data_layout.notice_of_change(job.model_dir, step, pipelines, allow_change=allows)
    ):
        trackers.console.message(notice)
    facts = manifest.read(job.model_dir, step).run
    last, rows = facts.last_row, trackers.rows
    if last is not None and not rows.holds(last):
        _logger.warning(
            "%s does not hold the row of %s at step %s, which this run wrote before its checkpoint of step %d: the "
            "file was emptied, cut, or replaced by that of another run. The run goes on, and adds its rows to it.",
            *(rows.path, last["split"], last["step"], step),
        )
    changes = {change.path: change for change in job.check_changes(step)}
    if any(path.startswith("trainer.optimizer_config.") for path in changes):
        trainer.checkpoint_state.use_configured_optimizer()
    if size := changes.get("task.train_data.global_batch_size"):
        trainer.train_iterator.position.change_batch_size(step, int(size.before), int(size.after))
    if pipelines is not None:
        _compare_sources(job, trainer, trackers, step, facts)
    return list(changes.values())


def _compare_sources(job: Job, trainer: Trainer, trackers: RunTrackers, step: int, facts: RunFacts) -> None:
    """Compares the data with that of the checkpoint: its number of examples, its fingerprint, what orders it."""
    iterator = trainer.train_iterator
    if saved := (facts.data or {}).get("sources"):
        iterator.iterator()  # whose first batch is the next one to train on
        context = iterator.builder.context
        if context is not None and (change := data_layout.change_of_sources(saved, data_layout.sources_of(context))):
            checkpoint, allows = f"--model_dir={job.model_dir}: ckpt-{step}", job.allow_config_change
            trackers.console.message(data_layout.accepted(checkpoint, change, allow_change=allows))
    if change := data_layout.change_of_sources(facts.validation_sources, validation_sources(trainer)):
        _logger.warning("the results of evaluations before step %d are of other data: %s", step, change)


def validation_sources(trainer: Trainer) -> list[dict[str, Any]]:
    """Returns what says of each source of validation data that it is the same."""
    contexts = (validation_set.builder.context for validation_set in trainer.evaluation.sets)
    return [facts for context in contexts if context is not None for facts in data_layout.sources_of(context)]
