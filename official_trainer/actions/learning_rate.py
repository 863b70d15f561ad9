"""The learning rate as rows and a curve, at configurable steps.

Owns: these rows, of the split `optimizer`. Does not own: the rate in each summary of training
(`engine/train_steps.py`).
"""

from __future__ import annotations

import dataclasses

from official_trainer.actions.action import Action, Run
from official_trainer.config import ActionConfig, When


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearningRateConfig(ActionConfig):
    """Records the learning rate that the next step will use."""

    when: When | None = When(n_times=100)

    def build(self) -> LearningRate:
        return LearningRate()


class LearningRate(Action):
    """Records the rate of the optimizer's schedule, and the loss scale if there is one."""

    def on_step(self, run: Run) -> None:
        from official_trainer.tasks import optimization  # imports TensorFlow

        values = optimization.learning_rates(run.trainer.optimizer, run.trainer.global_step)
        if hasattr(run.trainer.optimizer, "loss_scale"):
            values["loss_scale"] = run.trainer.optimizer.loss_scale
        run.tracker.log("optimizer", run.step, values)
