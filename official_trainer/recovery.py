"""What follows a loss that is not finite: which batch did it, a report, and going back or giving up.

Owns: the policy in `trainer.recovery_…`, repeating steps to find the one that failed, what has to be remembered of a
recovery across restarts. Does not own: noticing (`loop.py`), what the report says (`nonfinite.py`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from official_trainer.errors import ExitCode, UserError

_logger = logging.getLogger(__name__)

MAX_REPEAT_SECONDS = 600.0
"""Steps are repeated to find the one that failed only if that is likely to take no longer than this."""


class NonFiniteError(UserError, ArithmeticError):
    """The loss or a weight is not a number, not finite, or above `trainer.loss_upper_bound`."""

    exit_code = ExitCode.NON_FINITE


class DivergedError(NonFiniteError):
    """An action asks to go back; numbers are finite, so there is no batch to be found."""


class Diagnosis(Protocol):
    """What a recovery needs of whoever looks at a failure."""

    def first_bad_batch(self, good_step: int, failed_step: int) -> int | None:
        """Returns the first step after `good_step` with a batch that is not finite, up to `failed_step`."""

    def write(self, step: int, *, is_culprit: bool) -> str:
        """Writes a report of a step, with its batch if that is the culprit; returns where."""


class Recovery:
    """Recoveries of one run: how many there were, and which batch is to be left out.

    Steps are exact, so going back and repeating them brings up the same failure at the same step: that finds the batch,
    and a batch that is left out is left out of the same place after a restart. If it does not come up again, the
    failure was the machine's.
    """

    def __init__(
        self,
        trainer: Any,
        store: Any,
        *,
        run_to: Callable[[int], None],
        diagnosis: Diagnosis | None,
    ) -> None:
        """Takes the parts.

        Args:
          trainer: runs steps.
          store: restores checkpoints.
          run_to: runs windows of steps up to a step, without asking whether the loss is finite.
          diagnosis: looks at the failure; None leaves no report.
        """
        self._trainer, self._store = trainer, store
        self._config = trainer.config.trainer
        self._run_to, self._diagnosis = run_to, diagnosis
        self._count = 0
        self._left_out: int | None = None
        self.extra: Mapping[str, Any] = {}
        """What the manifest of the checkpoint that was restored says beside numbers; empty for a fresh run."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint's manifest has to say, so that `restore` goes on alike."""
        return {"recoveries": self._count, "batch_left_out": self._left_out} if self._count else {}

    def next_step(self, step: int) -> int | float:
        """Returns the step after `step` before which a batch is to be left out; infinity if there is none."""
        return math.inf if self._left_out is None or self._left_out <= step else self._left_out

    def leave_out_if_due(self, step: int) -> None:
        """Moves the data past the batch that would come after `step`, if it is the one to be left out."""
        if step == self._left_out:
            self._left_out = None
            self._trainer.feed.skip(1)

    def recover(self, error: NonFiniteError, good_step: int, failed_step: int, *, step_seconds: float) -> str:
        """Goes back to an earlier checkpoint, as `trainer.recovery_…` says; returns what was done, in words.

        Args:
          error: what happened.
          good_step: the last step known to be good; the failure came after it.
          failed_step: the step at which the failure was seen.
          step_seconds: how long a step takes.

        Raises:
          NonFiniteError: `error` again, with what was found out, because nothing may be tried any more.
        """
        self._store.wait()
        count = self._count + 1
        has_cause = not isinstance(error, DivergedError)
        culprit = self._find(good_step, failed_step, step_seconds) if has_cause else None
        found = self._describe(culprit, good_step, failed_step) if has_cause else "an action asks to go back"
        steps = self._store.steps()
        if count > self._config.recovery_max_trials or not steps:
            raise NonFiniteError(f"{error}\n{found}") from error
        target = steps[max(0, len(steps) - self._config.recovery_checkpoints_back)]
        for step in steps:
            if step > target:
                self._store.delete(step)  # they are what led here; a restart must not take them up
        self.restore()
        self._count, self._left_out = count, None
        policy = self._config.recovery_data
        if policy == "skip":
            self._trainer.feed.skip(failed_step - target)
        elif policy == "skip_batch":
            self._left_out = (failed_step if culprit is None else culprit) - 1
        data = {
            "skip": f"past the data of {failed_step - target} steps",
            "skip_batch": f"leaving out the batch of step {(self._left_out or 0) + 1}",
            "repeat": "with the same data",
        }[policy]
        limit = self._config.recovery_max_trials
        return f"{error}\n{found}\nrecovery {count} of {limit}: back at step {target}, {data}"

    def restore(self) -> bool:
        """Restores the newest checkpoint, and what it knows of recoveries; returns whether there is one."""
        report = self._store.restore()
        if report is None:
            return False
        self._trainer.after_restore(report)
        self.extra = self._store.manifest(int(self._trainer.global_step.numpy())).extra
        self._count, self._left_out = self.extra.get("recoveries", 0), self.extra.get("batch_left_out")
        return True

    def _find(self, good_step: int, failed_step: int, step_seconds: float) -> int | None:
        """Returns the step whose batch brings up the failure again, with the trainer just before it."""
        start = self._store.latest_step()
        if start is None or (failed_step - start) * step_seconds > MAX_REPEAT_SECONDS:
            return None if self._diagnosis is None else self._diagnosis.first_bad_batch(good_step, failed_step)
        self.restore()
        self._run_to(max(good_step, start))
        for step in range(max(good_step, start) + 1, failed_step + 1):
            self._run_to(step)
            if not math.isfinite(self._trainer.mean_loss):
                self.restore()
                self._run_to(step - 1)
                return step
        return None

    def _describe(self, culprit: int | None, good_step: int, failed_step: int) -> str:
        is_culprit = culprit is not None
        step = failed_step if culprit is None else culprit
        where = "" if self._diagnosis is None else self._diagnosis.write(step, is_culprit=is_culprit)
        if is_culprit:
            return f"the batch of step {step} did it; it and its tensors are in {where}"
        if int(self._trainer.global_step.numpy()) == failed_step and math.isfinite(self._trainer.mean_loss):
            return (
                f"it came between steps {good_step} and {failed_step}, and not again when they were repeated: the "
                f"machine, or an operation that is not deterministic; the tensors are in {where}"
            )
        return f"it came between steps {good_step} and {failed_step}; the tensors are in {where}"
