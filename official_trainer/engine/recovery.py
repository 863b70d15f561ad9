"""Recovery from a loss that is not finite: write its batch down, go back or give up.

Owns: which losses are good, the policy in `trainer.recovery_…`, and the record of recoveries across restarts. Does not
own: which step's loss is the first bad one (`train_steps.py`), noticing it (`loop.py`), what is said of its batch
(`non_finite.py`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.engine import non_finite
from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf


class NonFiniteError(UserError, ArithmeticError, RuntimeError):
    """The loss or a weight is not a number, not finite, or above `trainer.loss_upper_bound`.

    A `RuntimeError` too, because that is what Model Garden raises.

    Attributes:
      bad_step: the first step since the last summary whose loss was so; None if none was, or if it is not known.
    """

    exit_code = ExitCode.NON_FINITE

    def __init__(self, message: str, bad_step: int | None = None) -> None:
        super().__init__(message)
        self.bad_step = bad_step


class DivergedError(NonFiniteError):
    """An action asks to go back; the numbers are finite, so no batch is the cause."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Record:
    """What the manifest of a checkpoint holds of the recoveries before it, under the same names.

    Attributes:
      recoveries: their number.
      left_out: batches that are left out, each after this many steps, in the order of the recoveries.
      left_out_pending: those that the state of the checkpoint has not come to yet.
      learning_rate_scale: factor of the configured learning rate.
    """

    recoveries: int = 0
    left_out: Sequence[int] = ()
    left_out_pending: Sequence[int] = ()
    learning_rate_scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class LossBound:
    """The largest loss that counts as good.

    Attributes:
      largest: infinity for no bound.
      from_step: the first step for which there is a bound.
    """

    largest: float = math.inf
    from_step: int = 0

    @classmethod
    def of(cls, config: Any) -> LossBound:
        """Returns the bound in the section `trainer`, ours or Model Garden's."""
        if getattr(config, "recovery_max_trials", -1) < 0:
            return cls()
        return cls(config.loss_upper_bound, config.recovery_begin_steps)

    def allows(self, loss: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Returns whether the loss of a step is good, scalar bool; traced."""
        is_good = tf.math.is_finite(loss)
        if self.largest == math.inf:
            return is_good
        is_low = loss <= self.largest
        return is_good & (is_low if self.from_step <= 1 else is_low | (step < self.from_step))

    def problem(self, loss: float, step: int) -> str | None:
        """Returns what is wrong with the training loss of a step; None if it is good."""
        if not math.isfinite(loss):
            return f"the training loss is {loss} at step {step}"
        if loss > self.largest and step >= self.from_step:
            return f"the training loss is {loss:g} at step {step}, above trainer.loss_upper_bound={self.largest:g}"
        return None


class Recovery:
    """Recoveries of one run: their number, the batches that are left out, and the scale of the learning rate.

    Steps are exact: a restart leaves out the same batches at the same steps.
    """

    def __init__(self, trainer: Any, store: Any, model_dir: str, extra: Mapping[str, Any]) -> None:
        """Takes parts of the loop.

        Args:
          trainer: goes back, and has the batches.
          store: has the checkpoints to go back to.
          model_dir: the run directory, for reports; empty for none.
          extra: takes the place of a manifest's where no checkpoint is restored.
        """
        self._trainer, self._store = trainer, store
        self._config, self._model_dir = trainer.config.trainer, model_dir
        self._record = _Record()
        self.extra = extra
        """What the manifest of the restored checkpoint records besides numbers; empty for a fresh run."""

    def loss_problem(self) -> str | None:
        """Returns what is wrong with the training loss, by the limits in `trainer`; None if it is good."""
        step = int(self._trainer.global_step.numpy())
        return LossBound.of(self._config).problem(self._trainer.windows.mean_loss, step)

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint's manifest has to hold, so that `restore` continues in the same way."""
        return dataclasses.asdict(self._record) if self._record.recoveries else {}

    def next_step(self, step: int) -> int | float:
        """Returns the first step after `step` before which a batch is left out; infinity without any."""
        return min((pending for pending in self._record.left_out_pending if pending > step), default=math.inf)

    def leave_out_if_due(self, step: int) -> None:
        """Moves the data past the batches that would come after `step`, if they have to be left out."""
        pending = self._record.left_out_pending
        if count := pending.count(step):
            left = tuple(other for other in pending if other != step)
            self._record = dataclasses.replace(self._record, left_out_pending=left)
            self._trainer.train_iterator.skip(count)

    def recover(self, error: NonFiniteError, failed_step: int) -> str:
        """Goes back to an earlier checkpoint, as `trainer.recovery_…` configures; returns what was done, in words.

        Args:
          error: what happened.
          failed_step: the step at which the failure was seen.

        Raises:
          NonFiniteError: `error` again, with what is known of it, because no recovery is left.
        """
        self._store.wait()
        config, before, iterator = self._config, self._record, self._trainer.train_iterator
        count, left_out, skipped = before.recoveries + 1, before.left_out, iterator.skipped_steps
        scale = before.learning_rate_scale * config.recovery_learning_rate_scale
        cause = self._describe(error, failed_step)
        steps = self._store.steps()
        if count > config.recovery_max_trials or not steps:
            raise NonFiniteError(f"{error}\n{cause}", error.bad_step) from error
        target = steps[max(0, len(steps) - config.recovery_checkpoints_back)]
        for step in steps:
            if step > target:
                self._store.delete(step)  # a restart must not restore it
        self.restore()
        policy, bad_step = config.recovery_data, failed_step if error.bad_step is None else error.bad_step
        if policy == "skip_batch":
            left_out = (*left_out, bad_step - 1)
        # The checkpoint records what was left out before it, and what was pending; all other batches come after it.
        restored = self._record
        pending = (*restored.left_out_pending, *left_out[len(restored.left_out) :])
        self._use(_Record(recoveries=count, left_out=left_out, left_out_pending=pending, learning_rate_scale=scale))
        if policy == "skip":
            iterator.skip(skipped + failed_step - target - iterator.skipped_steps)
        data = {
            "skip": f"past the data of {failed_step - target} steps",
            "skip_batch": f"leaving out the batch of step {bad_step}",
            "repeat": "with the same data",
        }[policy]
        rate = "" if scale == 1 else f", at {scale:g} times the learning rate"
        which = f"recovery {count} of {config.recovery_max_trials}"
        return f"{error}\n{cause}\n{which}: back at step {target}, {data}{rate}"

    def restore(self) -> bool:
        """Restores the newest checkpoint, and its record of recoveries; returns whether there is one."""
        report = self._store.restore()
        if report is None:
            return False
        self._trainer.checkpoint_state.after_restore(report)
        step = int(self._trainer.global_step.numpy())
        self.extra = self._store.manifest(step).extra
        names = (field.name for field in dataclasses.fields(_Record))
        recorded: dict[str, Any] = {name: self.extra[name] for name in names if name in self.extra}
        self._use(_Record(**recorded))
        return True

    def _use(self, record: _Record) -> None:
        """Takes a record, and scales the learning rate by it."""
        before, self._record = self._record.learning_rate_scale, record
        if record.learning_rate_scale != 1 or before != 1:
            self._trainer.checkpoint_state.scale_learning_rate(record.learning_rate_scale)

    def _describe(self, error: NonFiniteError, failed_step: int) -> str:
        """Writes down the batch with which it began, and returns what is known of the cause, in words."""
        if isinstance(error, DivergedError):
            return "an action asks to go back"
        bad_step = error.bad_step
        if bad_step is not None and (batch := non_finite.batch_of_step(self._trainer, bad_step)):
            where = f"; it is in {non_finite.dump(self._model_dir, bad_step, batch)}" if self._model_dir else ""
            lines = non_finite.explain(self._trainer, bad_step, batch)
            return "\n  ".join([f"the batch of step {bad_step} is the first with such a loss{where}", *lines])
        saved_step = self._store.latest_step()
        since = "the start of this process" if saved_step is None else f"step {saved_step}, which is saved,"
        advice = non_finite.advice(self._trainer, saved_step or 0, failed_step)
        return f"it came between {since} and step {failed_step}\n  {advice}"
