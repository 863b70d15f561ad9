"""What a run of a Model Garden experiment does otherwise here than there, for its configuration.

Owns: these sentences, for `check`. Does not own: what has no effect (`mirror.py` says that of fields), the full list
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
            "runtime.distribution_strategy: auto takes all GPUs of the machine, and its CPU if there are none; there "
            "the default is mirrored with num_gpus=0, which is the CPU whatever there is"
        )
    for name, done in _EVENTS.items():
        interval = getattr(trainer, name)
        if interval % trainer.steps_per_loop:
            yield (
                f"trainer.{name}: {done} at every {interval} steps exactly; there at the end of the loop of "
                f"{trainer.steps_per_loop} steps in which that falls"
            )
    if isinstance(config, GardenMultiTask | GardenMultiEval):
        yield from _of_several(config)
    elif trainer.optimizer_config.ema is not None:
        yield (
            "trainer.optimizer_config.ema: averages start from the weights, and an evaluation changes no bit of them; "
            "there they start from zero, and are swapped by adding and subtracting"
        )
    if runtime.loss_scale is not None and trainer.optimizer_config.ema is not None:
        yield "runtime.loss_scale: goes together with ema; there it does not"
    yield "validation_loss: every example counts the same; there every batch, however small the last one is"
    if trainer.best_checkpoint_eval_metric:
        yield (
            f"trainer.best_checkpoint_eval_metric: that evaluations produce {trainer.best_checkpoint_eval_metric} is "
            "made sure of before training; there the first evaluation fails if they do not"
        )


def _of_several(config: Any) -> Iterator[str]:
    """Yields what differs where several tasks are trained, or several sets evaluated."""
    trainer = config.trainer
    yield "trainer.recovery_max_trials: is heeded; there several tasks, and several sets, have no recovery"
    if trainer.validation_summary_subdir != "validation":
        yield "trainer.validation_summary_subdir: is heeded; there it is always validation"
    if trainer.optimizer_config.ema is not None:
        yield (
            "trainer.optimizer_config.ema: averages start from the weights, and evaluations use them; there they start "
            "from zero, and no evaluation uses them"
        )
    if isinstance(config, GardenMultiTask) and trainer.trainer_type == "interleaving":
        yield "trainer.task_sampler: the task of a step is drawn by runtime.seed; there by a seed that is always 0"
        if trainer.task_sampler.type == "annealing":
            yield (
                "trainer.task_sampler.annealing: stays as it is after total_steps; there it goes on, until rare tasks "
                "are the most frequent"
            )
