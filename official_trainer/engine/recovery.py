"""Recovery from a loss that is not finite: find the batch that caused it, write a report, go back or give up.

Owns: the policy in `trainer.recovery_…`, repeating steps to find the one that failed, the record of recoveries across
restarts. Does not own: noticing the failure (`loop.py`), the content of the report (`nonfinite.py`).
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.engine.loop_parts import LoopParts
from official_trainer.errors import ExitCode, UserError

_logger = logging.getLogger(__name__)

MAX_REPEAT_SECONDS = 600.0
"""Steps are repeated to find the one that failed only if that is likely to take no longer than this."""


class NonFiniteError(UserError, ArithmeticError, RuntimeError):
    """The loss or a weight is not a number, not finite, or above `trainer.loss_upper_bound`.

    A `RuntimeError` too, because that is what Model Garden raises.
    """

    exit_code = ExitCode.NON_FINITE


class DivergedError(NonFiniteError):
    """An action asks to go back; the numbers are finite, so no batch is the cause."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Decision:
    """How a run continues from a checkpoint that was saved before the failure was noticed.

    Attributes:
      step: of the checkpoint.
      count: recoveries so far.
      skipped_steps: how far the data is ahead of the steps.
      left_out: as in `Recovery`.
      pending: as in `Recovery`.
      scale: of the learning rate.
    """

    step: int
    count: int
    skipped_steps: int
    left_out: tuple[int, ...]
    pending: tuple[int, ...]
    scale: float


class Recovery:
    """Recoveries of one run: their number, the batches that are left out, and the scale of the learning rate.

    Steps are exact, so going back and repeating them brings up the same failure at the same step: that finds the batch,
    and a restart leaves out the same batches at the same places. If the failure does not come again, the machine caused
    it.
    """

    def __init__(self, parts: LoopParts) -> None:
        """Takes the parts of the loop."""
        self._parts, self._config = parts, parts.config
        self._trainer, self._store, self._diagnosis = parts.trainer, parts.store, parts.diagnosis
        self._count = 0
        self._left_out: tuple[int, ...] = ()  # each batch after this many steps, in the order of the recoveries
        self._pending: tuple[int, ...] = ()  # those that this state has not come to yet
        self._scale = 1.0
        self._decision: _Decision | None = None
        self.extra: Mapping[str, Any] = {}
        """What the manifest of the restored checkpoint records besides numbers; empty for a fresh run."""

    def loss_problem(self) -> str | None:
        """Returns what is wrong with the training loss, by the limits in `trainer`; None if it is good."""
        loss, step, config = self._trainer.mean_loss, int(self._trainer.global_step.numpy()), self._config
        if not math.isfinite(loss):
            return f"the training loss is {loss} at step {step}"
        bounded = config.recovery_max_trials >= 0 and step >= config.recovery_begin_steps
        if bounded and loss > config.loss_upper_bound:
            bound = f"trainer.loss_upper_bound={config.loss_upper_bound:g}"
            return f"the training loss is {loss:g} at step {step}, above {bound}"
        return None

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint's manifest has to hold, so that `restore` continues in the same way."""
        if not self._count:
            return {}
        left_out = {"left_out": list(self._left_out), "left_out_pending": list(self._pending)}
        return {"recoveries": self._count, **left_out, "learning_rate_scale": self._scale}

    def next_step(self, step: int) -> int | float:
        """Returns the first step after `step` before which a batch is left out; infinity without any."""
        return min((pending for pending in self._pending if pending > step), default=math.inf)

    def leave_out_if_due(self, step: int) -> None:
        """Moves the data past the batches that would come after `step`, if they have to be left out."""
        if count := self._pending.count(step):
            self._pending = tuple(pending for pending in self._pending if pending != step)
            self._trainer.train_iterator.skip(count)

    def recover(self, error: NonFiniteError, good_step: int, failed_step: int, run_to: Callable[[int], None]) -> str:
        """Goes back to an earlier checkpoint, as `trainer.recovery_…` configures; returns what was done, in words.

        Args:
          error: what happened.
          good_step: the last step known to be good; the failure came after it.
          failed_step: the step at which the failure was seen.
          run_to: runs windows of steps up to a step, and does not check the loss.

        Raises:
          NonFiniteError: `error` again, with what was found out, because no recovery is left.
        """
        self._store.wait()
        count, left_out = self._count + 1, self._left_out
        skipped = self._trainer.train_iterator.skipped_steps
        scale = self._scale * self._config.recovery_learning_rate_scale
        has_cause = not isinstance(error, DivergedError)
        can_repeat = has_cause and not self._trainer.is_async  # else no step comes again as it was
        culprit = self._find(good_step, failed_step, run_to) if can_repeat else None
        found = self._describe(culprit, good_step, failed_step) if has_cause else "an action asks to go back"
        steps = self._store.steps()
        if count > self._config.recovery_max_trials or not steps:
            raise NonFiniteError(f"{error}\n{found}") from error
        target = steps[max(0, len(steps) - self._config.recovery_checkpoints_back)]
        self._go_back(target, steps)
        policy, bad_step = self._config.recovery_data, failed_step if culprit is None else culprit
        if policy == "skip_batch":
            left_out = (*left_out, bad_step - 1)
        # The checkpoint records what was left out before it, and what was pending; all other batches come after it.
        pending = (*self._pending, *left_out[len(self._left_out) :])
        skipped = skipped + failed_step - target if policy == "skip" else self._trainer.train_iterator.skipped_steps
        self._decision = _Decision(
            step=target, count=count, skipped_steps=skipped, left_out=left_out, pending=pending, scale=scale
        )
        self._apply(self._decision)
        data = {
            "skip": f"past the data of {failed_step - target} steps",
            "skip_batch": f"leaving out the batch of step {bad_step}",
            "repeat": "with the same data",
        }[policy]
        rate = "" if scale == 1 else f", at {scale:g} times the learning rate"
        limit = self._config.recovery_max_trials
        return f"{error}\n{found}\nrecovery {count} of {limit}: back at step {target}, {data}{rate}"

    def _go_back(self, target: int, steps: Sequence[int]) -> None:
        """Restores the checkpoint of step `target`; later ones are deleted, because a restart must not restore them."""
        for step in steps:
            if step > target:
                self._store.delete(step)
        self._decision = None
        self.restore()

    def restore(self) -> bool:
        """Restores the newest checkpoint, and its record of recoveries; returns whether there is one."""
        report = self._store.restore()
        if report is None:
            return False
        self._trainer.after_restore(report)
        step = int(self._trainer.global_step.numpy())
        self.extra = self._store.manifest(step).extra
        self._count = self.extra.get("recoveries", 0)
        self._left_out = tuple(self.extra.get("left_out", ()))
        self._pending = tuple(self.extra.get("left_out_pending", ()))
        self._scale_learning_rate(self.extra.get("learning_rate_scale", 1.0))
        if self._decision is not None and self._decision.step == step and self._decision.count > self._count:
            self._apply(self._decision)
        return True

    def _apply(self, decision: _Decision) -> None:
        self._count, self._left_out, self._pending = decision.count, decision.left_out, decision.pending
        self._scale_learning_rate(decision.scale)
        if ahead := decision.skipped_steps - self._trainer.train_iterator.skipped_steps:
            self._trainer.train_iterator.skip(ahead)

    def _scale_learning_rate(self, scale: float) -> None:
        if scale != 1 or self._scale != 1:
            self._trainer.optimizer_settings.scale_learning_rate(scale)
        self._scale = scale

    def _find(self, good_step: int, failed_step: int, run_to: Callable[[int], None]) -> int | None:
        """Returns the step whose batch brings up the failure again, with the trainer just before it."""
        start, step_seconds = self._store.latest_step(), self._parts.state.median_step_seconds or 0.0
        if start is None or (failed_step - start) * step_seconds > MAX_REPEAT_SECONDS:
            return None if self._diagnosis is None else self._diagnosis.first_bad_batch(good_step, failed_step)
        self.restore()
        run_to(max(good_step, start))
        for step in range(max(good_step, start) + 1, failed_step + 1):
            run_to(step)
            if self.loss_problem():
                self.restore()
                run_to(step - 1)
                self.leave_out_if_due(step - 1)
                return step
        return None

    def _describe(self, culprit: int | None, good_step: int, failed_step: int) -> str:
        is_culprit = culprit is not None
        step = failed_step if culprit is None else culprit
        where = "" if self._diagnosis is None else self._diagnosis.write(step, is_culprit=is_culprit)
        if is_culprit:
            return f"the batch of step {step} did it; it and its tensors are in {where}"
        if int(self._trainer.global_step.numpy()) == failed_step and not self.loss_problem():
            return (
                f"it came between steps {good_step} and {failed_step}, and not again when they were repeated: the "
                f"machine, or an operation that is not deterministic; the tensors are in {where}"
            )
        return f"it came between steps {good_step} and {failed_step}; the tensors are in {where}"
