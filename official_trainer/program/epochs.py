"""Epochs of a call of `fit`, as ranges of global steps.

Owns: which steps make an epoch, after which epochs there is a validation, and what is due inside epochs.
Does not own: calling callbacks there (`callbacks.py`), or how many batches the data has (`data.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from official_trainer.config import When
from official_trainer.config.when import ANY_RUN, Moment, Span

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
class InEpochs(When):
    """Due every `steps` steps of an epoch while it is watched, and with its last step, also where the data ends early.

    Attributes:
      epochs: the epochs.
      steps: from one call of callbacks to the next.
      is_watched: returns whether something looks inside of epochs now.
      any: others whose steps are added.
    """

    epochs: Epochs
    steps: int
    is_watched: Callable[[], bool]
    any: tuple[When, ...] = ()

    @property
    def is_foreseeable(self) -> bool:
        return not self.any or super().is_foreseeable

    def next_step(self, after: int, until: int, span: Span = ANY_RUN) -> int | None:
        start, epoch_steps = self.epochs.first_step, self.epochs.steps
        epoch, batch = divmod(max(after - start, 0), epoch_steps)
        steps = self.steps if self.is_watched() else epoch_steps
        step = start + epoch * epoch_steps + min((batch // steps + 1) * steps, epoch_steps)
        other = super().next_step(after, until, span)
        return other if step > until else min(step, other or step)

    def is_due(self, moment: Moment) -> bool:
        is_in_epoch = self.next_step(moment.after, moment.step, moment.span) is not None
        return moment.ended or is_in_epoch or super().is_due(moment)
