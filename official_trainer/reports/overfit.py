"""`--overfit_batches`: trains on a few batches again and again, to see whether model and loss can learn at all.

Owns: how long it trains, and the verdict. Does not own: repeating the batches (`engine/train_iterator.py`).
Imports no TensorFlow by itself.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping

from official_trainer.errors import UserError
from official_trainer.reports.trial import trainer_of
from official_trainer.runs.job import Job
from official_trainer.tracking import closing, flatten
from official_trainer.tracking.console import Console, format_number

_LEARNED, _DONE = 0.1, 0.01
"""Parts of the first loss: at or below the first one the model has learned, below the second one it need not go on."""

_MOST_STEPS, _MOST_PASSES = 1000, 100
_LINES = 40


class NotLearnedError(UserError, RuntimeError):
    """Model and loss did not learn a few batches by heart."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learning:
    """How far a model has learned a few batches by heart.

    Attributes:
      batches: how many.
      steps: training steps.
      first_loss: mean loss of the first pass over them.
      last_loss: mean loss of the last passes.
      first_rate: the learning rate at the first step; None if there are several.
      last_rate: the same at the last step.
      metrics: the training metrics of the last passes, by name.
    """

    batches: int
    steps: int
    first_loss: float
    last_loss: float
    first_rate: float | None
    last_rate: float | None
    metrics: Mapping[str, float]

    @property
    def fraction(self) -> float:
        """The last loss as a part of the first; of a loss that is not above 0, 0 if it fell and 1 if it did not."""
        if self.first_loss > 0:
            return self.last_loss / self.first_loss
        return 0.0 if self.last_loss < self.first_loss else 1.0

    @property
    def has_learned(self) -> bool:
        """Whether the loss fell to near zero."""
        return self.fraction <= _LEARNED  # a NaN has not

    def __str__(self) -> str:
        first, last = format_number(self.first_loss), format_number(self.last_loss)
        of_first = f" ({self.fraction:.1%} of it)" if self.first_loss > 0 and math.isfinite(self.fraction) else ""
        batches = "1 batch" if self.batches == 1 else f"{self.batches} batches"
        parts = [f"{batches}, {self.steps} steps: loss {first} at first, {last} at last{of_first}"]
        return ", ".join([*parts, *(f"{name} {format_number(value)}" for name, value in self.metrics.items())])


def overfit(job: Job, num_batches: int) -> Learning:
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
        trainer.train_iterator.repeat_first(num_batches)
        console = Console(sys.stdout, end_step=limit, quiet=job.quiet)
        with closing(console):  # windows of whole passes over the batches, the first one a single pass
            first = logs = flatten(trainer.train(min(num_batches, limit)))
            steps, window = trainer.context.step, num_batches * math.ceil(limit / _LINES / num_batches)
            done = _DONE * first["training_loss"] if first["training_loss"] > 0 else -math.inf
            while steps < limit and done < logs["training_loss"] < math.inf:  # a NaN ends it too
                logs = flatten(trainer.train(min(window, limit - steps)))
                steps = trainer.context.step
                console.log("train", steps, logs)
    named = {"training_loss", "batch_loss", "smoothed_loss"}
    learning = Learning(
        batches=num_batches,
        steps=steps,
        first_loss=first["training_loss"],
        last_loss=logs["training_loss"],
        first_rate=first.get("learning_rate"),
        last_rate=logs.get("learning_rate"),
        metrics={name: value for name, value in logs.items() if name not in named and "learning_rate" not in name},
    )
    if not learning.has_learned:
        raise NotLearnedError(f"{learning}\n{_advice(learning)}")
    return learning


def _advice(learning: Learning) -> str:
    """Returns what a loss that is not near zero may mean, and what to try."""
    if not math.isfinite(learning.last_loss):
        return "the loss is not finite: lower the learning rate, or look for a logarithm of 0 in the loss"
    rate = ""
    if learning.first_rate is not None and learning.last_rate is not None:
        span = f"{format_number(learning.first_rate)} to {format_number(learning.last_rate)}"
        rate = f" (it went from {span}; `official-trainer find-lr` suggests one)"
    if learning.fraction > 0.9:
        return (
            "the loss hardly fell. Look at the labels that the loss gets, whether the last layer gives logits where "
            f"the loss wants logits, whether weights are trainable, and the learning rate{rate}"
        )
    return (
        "the loss fell, but not to near zero. That is as it should be where the loss cannot be 0 (label smoothing, "
        f"weight decay, dropout, equal inputs with other labels); else try more steps or another learning rate{rate}"
    )
