"""How a run of a Model Garden experiment differs here from a run by Model Garden, for one configuration.

Owns: these sentences, for `check`. Does not own: fields without effect (`sections.py`), the full list
(`docs/model_garden.md`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from official_trainer.garden.sections import GardenMultiEval, GardenMultiTask

_EVENTS = {"checkpoint_interval": "saved", "validation_interval": "evaluated", "summary_interval": "summarized"}


def differences(config: Any) -> Iterator[str]:
    """Yields one sentence for each thing that differs, the field first.

    Args:
      config: an experiment of Model Garden, as ours.
    """
    trainer, runtime = config.trainer, config.runtime
    if runtime.distribution_strategy == "auto":
        yield (
            "runtime.distribution_strategy: auto uses all GPUs of the machine, or its CPU if it has no GPU; Model "
            "Garden's default is mirrored with num_gpus=0, which always uses the CPU"
        )
    for name, done in _EVENTS.items():
        interval = getattr(trainer, name)
        if interval % trainer.steps_per_loop:
            yield (
                f"trainer.{name}: {done} exactly every {interval} steps; Model Garden: at the end of the loop of "
                f"{trainer.steps_per_loop} steps that contains the step"
            )
    if isinstance(config, GardenMultiTask | GardenMultiEval):
        yield from _of_several(config)
    elif trainer.optimizer_config.ema is not None:
        yield (
            "trainer.optimizer_config.ema: averages start from the weights, and an evaluation changes no bit of them; "
            "in Model Garden they start from zero, and are swapped by adding and subtracting"
        )
    if runtime.loss_scale is not None and trainer.optimizer_config.ema is not None:
        yield "runtime.loss_scale: can be combined with ema; in Model Garden it cannot"
    yield (
        "validation_loss: the mean over examples; in Model Garden the mean over batches, where a smaller last batch "
        "counts as much as a full one"
    )
    if trainer.best_checkpoint_eval_metric:
        yield (
            f"trainer.best_checkpoint_eval_metric: before training it is checked that evaluations produce "
            f"{trainer.best_checkpoint_eval_metric}; in Model Garden the first evaluation fails if they do not"
        )


def _of_several(config: Any) -> Iterator[str]:
    """Yields what differs when several tasks are trained, or several sets evaluated."""
    trainer = config.trainer
    yield "trainer.recovery_max_trials: has an effect; Model Garden has no recovery for several tasks or sets"
    if trainer.validation_summary_subdir != "validation":
        yield "trainer.validation_summary_subdir: has an effect; in Model Garden it is always validation"
    if trainer.optimizer_config.ema is not None:
        yield (
            "trainer.optimizer_config.ema: averages start from the weights, and evaluations use them; in Model Garden "
            "they start from zero, and no evaluation uses them"
        )
    if isinstance(config, GardenMultiTask) and trainer.trainer_type == "interleaving":
        yield "trainer.task_sampler: drawn with runtime.seed; in Model Garden the seed is always 0"
        if trainer.task_sampler.type == "annealing":
            yield (
                "trainer.task_sampler.annealing: does not change after total_steps; in Model Garden it continues to "
                "change, until rare tasks are the most frequent"
            )
