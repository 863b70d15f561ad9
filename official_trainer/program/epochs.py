"""Epochs of a call of `fit`, as ranges of global steps.

Owns: which steps make an epoch, after which epochs there is a validation, and the trigger that is due inside epochs.
Does not own: calling callbacks there (`callbacks.py`), or how many batches the data has (`data.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from official_trainer.triggers import Moment, Trigger

UNKNOWN_STEPS = 2**40
"""Steps in an epoch of data of unknown length: training ends where the data ends, and the epoch with it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epochs:
    """The epochs of a call of `fit`.

    Attributes:
      first_step: global step before the first epoch.
      steps: steps in an epoch.
      first: number of the first epoch, from 0.
      end: number of the epoch before which training ends.
      validated: the number of epochs from one validation to the next, or the epochs with a validation, counted from 1;
        0 for no validation.
    """

    first_step: int
    steps: int
    first: int
    end: int
    validated: int | Sequence[int] = 0

    @property
    def end_step(self) -> int:
        """The last step of the call."""
        return self.first_step + (self.end - self.first) * self.steps

    def epoch_and_batch(self, step: int) -> tuple[int, int]:
        """Returns the epoch of the step after `step`, and how many of its steps are done."""
        epoch, batch = divmod(step - self.first_step, self.steps)
        return self.first + epoch, batch

    def step_of(self, epoch: int, batch: int) -> int:
        """Returns the global step after `batch` steps of an epoch; the inverse of `epoch_and_batch`."""
        return self.first_step + (epoch - self.first) * self.steps + batch

    def ends_at(self, step: int) -> bool:
        """Whether an epoch ends with `step`."""
        return step > self.first_step and (step - self.first_step) % self.steps == 0

    def is_validated(self, epoch: int) -> bool:
        """Whether there is a validation after `epoch`."""
        if isinstance(self.validated, int):
            return self.validated > 0 and (epoch + 1) % self.validated == 0
        return epoch + 1 in self.validated


@dataclasses.dataclass(frozen=True, kw_only=True)
class InEpochs(Trigger):
    """Due every `every` steps of an epoch while it is watched, and with its last step, also where the data ends early.

    Attributes:
      epochs: the epochs.
      every: steps from one call of callbacks to the next.
      is_watched: returns whether something looks inside of epochs now.
    """

    epochs: Epochs
    every: int
    is_watched: Callable[[], bool]

    def is_due(self, moment: Moment) -> bool:
        return moment.ended or super().is_due(moment)

    def _first_after(self, after: int, span: Any) -> int | None:
        start, steps = self.epochs.first_step, self.epochs.steps
        epoch, batch = divmod(max(after - start, 0), steps)
        every = self.every if self.is_watched() else steps
        return start + epoch * steps + min((batch // every + 1) * every, steps)
