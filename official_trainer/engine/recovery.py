"""Recovery from a loss that is not finite: find the batch that caused it, write a report, go back or give up.

Owns: the policy in `trainer.recovery_…`, repeating steps to find the one that failed, and the record of recoveries
across restarts. Does not own: noticing the failure (`loop.py`), what is said of its batch (`non_finite.py`).
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_trainer.actions.action import LoopState
from official_trainer.actions.schedule import Schedule
from official_trainer.engine import non_finite
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


def loss_problem(loss: float, step: int, config: Any) -> str | None:
    """Returns what is wrong with the training loss of a step, by the limits in `trainer`; None if it is good."""
    if not math.isfinite(loss):
        return f"the training loss is {loss} at step {step}"
    bounded = config.recovery_max_trials >= 0 and step >= config.recovery_begin_steps
    if bounded and loss > config.loss_upper_bound:
        bound = f"trainer.loss_upper_bound={config.loss_upper_bound:g}"
        return f"the training loss is {loss:g} at step {step}, above {bound}"
    return None


class Recovery:
    """Recoveries of one run: their number, the batches that are left out, and the scale of the learning rate.

    Steps are exact, so going back and repeating them brings up the same failure at the same step: that finds the batch,
    and a restart leaves out the same batches at the same places. If the failure does not come again, the machine caused
    it.
    """

    def __init__(
        self, trainer: Any, store: Any, actions: Schedule, state: LoopState, model_dir: str, extra: Mapping[str, Any]
    ) -> None:
        """Takes parts of the loop.

        Args:
          trainer: repeats steps.
          store: has the checkpoints to go back to.
          actions: say from which step on a checkpoint has what they have assigned.
          state: has how long steps take.
          model_dir: the run directory, for reports; empty for none.
          extra: takes the place of a manifest's where no checkpoint is restored.
        """
        self._trainer, self._store, self._actions, self._state = trainer, store, actions, state
        self._config, self._model_dir = trainer.config.trainer, model_dir
        self._record = _Record()
        # How the run continues from a checkpoint that was saved before the failure was noticed: the step of the
        # checkpoint, how far the data is ahead of the steps, and the record.
        self._decision: tuple[int, int, _Record] | None = None
        self.extra = extra
        """What the manifest of the restored checkpoint records besides numbers; empty for a fresh run."""

    def loss_problem(self) -> str | None:
        """Returns what is wrong with the training loss, by the limits in `trainer`; None if it is good."""
        return loss_problem(self._trainer.windows.mean_loss, int(self._trainer.global_step.numpy()), self._config)

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

    def recover(self, error: NonFiniteError, good_step: int, failed_step: int, run_to: Callable[[int], None]) -> str:
        """Goes back to an earlier checkpoint, as `trainer.recovery_…` configures; returns what was done, in words.

        Args:
          error: what happened.
          good_step: the last step whose loss was seen to be good. Its weights were not checked: a unit that is 0 in
            the forward pass can hide a NaN of a batch from the loss, and not from the gradient.
          failed_step: the step at which the failure was seen.
          run_to: runs windows of steps up to a step, and does not check the loss.

        Raises:
          NonFiniteError: `error` again, with what was found out, because no recovery is left.
        """
        self._store.wait()
        config, before, iterator = self._config, self._record, self._trainer.train_iterator
        count, left_out, skipped = before.recoveries + 1, before.left_out, iterator.skipped_steps
        scale = before.learning_rate_scale * config.recovery_learning_rate_scale
        has_cause = not isinstance(error, DivergedError)
        can_repeat = has_cause and self._trainer.context.workers is None  # else no step comes again as it was
        culprit, was_repeated = self._find(good_step, failed_step, run_to) if can_repeat else (None, False)
        found = "an action asks to go back"
        if has_cause:
            found = self._describe(culprit, good_step, failed_step, was_repeated=was_repeated)
        steps = self._store.steps()
        if count > config.recovery_max_trials or not steps:
            raise NonFiniteError(f"{error}\n{found}") from error
        target = steps[max(0, len(steps) - config.recovery_checkpoints_back)]
        for step in steps:
            if step > target:
                self._store.delete(step)  # a restart must not restore it
        self._decision = None
        self.restore()
        policy, bad_step = config.recovery_data, failed_step if culprit is None else culprit
        if policy == "skip_batch":
            left_out = (*left_out, bad_step - 1)
        # The checkpoint records what was left out before it, and what was pending; all other batches come after it.
        restored = self._record
        pending = (*restored.left_out_pending, *left_out[len(restored.left_out) :])
        skipped = skipped + failed_step - target if policy == "skip" else iterator.skipped_steps
        record = _Record(recoveries=count, left_out=left_out, left_out_pending=pending, learning_rate_scale=scale)
        self._decision = target, skipped, record
        self._apply(skipped, record)
        data = {
            "skip": f"past the data of {failed_step - target} steps",
            "skip_batch": f"leaving out the batch of step {bad_step}",
            "repeat": "with the same data",
        }[policy]
        rate = "" if scale == 1 else f", at {scale:g} times the learning rate"
        which = f"recovery {count} of {config.recovery_max_trials}"
        return f"{error}\n{found}\n{which}: back at step {target}, {data}{rate}"

    def restore(self) -> bool:
        """Restores the newest checkpoint, and its record of recoveries; returns whether there is one."""
        report = self._store.restore()
        if report is None:
            return False
        self._trainer.checkpoint_state.after_restore(report)
        step = int(self._trainer.global_step.numpy())
        self.extra = self._store.manifest(step).extra
        names = (field.name for field in dataclasses.fields(_Record))
        known: dict[str, Any] = {name: self.extra[name] for name in names if name in self.extra}
        self._use(_Record(**known))
        if self._decision is not None:
            decided, skipped_steps, record = self._decision
            if decided == step and record.recoveries > self._record.recoveries:
                self._apply(skipped_steps, record)
        return True

    def _apply(self, skipped_steps: int, record: _Record) -> None:
        self._use(record)
        if ahead := skipped_steps - self._trainer.train_iterator.skipped_steps:
            self._trainer.train_iterator.skip(ahead)

    def _use(self, record: _Record) -> None:
        """Takes a record, and scales the learning rate by it."""
        before, self._record = self._record.learning_rate_scale, record
        if record.learning_rate_scale != 1 or before != 1:
            self._trainer.checkpoint_state.scale_learning_rate(record.learning_rate_scale)

    def _checked_step(self) -> int:
        """Returns the last step whose weights were checked, by a save; without one, that at which the process began."""
        saved = self._store.latest_step()
        return self._state.start_step if saved is None else saved

    def _first_looked_at(self, failed_step: int) -> int:
        """Returns the step after which batches are looked at: as early as `MAX_REPEAT_SECONDS` of steps allow."""
        most = MAX_REPEAT_SECONDS / max(self._state.median_step_seconds or 0.0, 1e-6)
        return max(self._checked_step(), failed_step - int(most))

    def _find(self, good_step: int, failed_step: int, run_to: Callable[[int], None]) -> tuple[int | None, bool]:
        """Returns the step whose batch brings up the failure again, with the trainer just before it.

        Returns:
          The step, None if there is none, and whether the steps were repeated to find it.
        """
        start, looked = self._store.latest_step(), self._first_looked_at(failed_step)
        if start is None or start < self._actions.assigned_until or looked > start:
            has_report = bool(self._model_dir)
            return non_finite.first_bad_batch(self._trainer, looked, failed_step) if has_report else None, False
        finite_step = self._repeat_to_finite(start, max(good_step, start), run_to)
        for step in range(finite_step + 1, failed_step + 1):
            run_to(step)
            if self.loss_problem() or self._trainer.checkpoint_state.non_finite_weights():
                self.restore()
                run_to(step - 1)
                self.leave_out_if_due(step - 1)
                return step, True
        return None, True

    def _repeat_to_finite(self, start: int, good_step: int, run_to: Callable[[int], None]) -> int:
        """Repeats steps to the last one up to `good_step` whose weights are seen to be finite, and returns it.

        Where those of `good_step` are not, weights are checked at about the square root of the steps between.
        """
        has_problem = self._trainer.checkpoint_state.non_finite_weights
        self.restore()
        run_to(good_step)
        if not has_problem():
            return good_step
        finite_step, stride = start, math.isqrt(good_step - start) + 1
        self.restore()
        for step in range(start + stride, good_step, stride):
            run_to(step)
            if has_problem():
                break
            finite_step = step
        self.restore()
        run_to(finite_step)
        return finite_step

    def _describe(self, culprit: int | None, good_step: int, failed_step: int, *, was_repeated: bool) -> str:
        is_culprit = culprit is not None
        step = failed_step if culprit is None else culprit
        where = ""
        if self._model_dir:
            where = non_finite.write_report(self._model_dir, self._trainer, step, is_culprit=is_culprit)
        if is_culprit:
            found = f"the batch of step {step} did it; it and its tensors are in {where}"
            return "\n  ".join([found, *(non_finite.origin(self._trainer, step) if where else ())])
        checked, looked = self._checked_step(), self._first_looked_at(failed_step)
        came = f"it came between steps {checked} and {failed_step}"
        if was_repeated and int(self._trainer.global_step.numpy()) == failed_step and not self.loss_problem():
            return (
                f"{came}, and not again when they were repeated: the machine, or an operation that is not "
                f"deterministic; the tensors are in {where}"
            )
        if self._model_dir and not was_repeated and self._trainer.context.workers is None:
            # The steps cannot be repeated without a checkpoint before them. Their batches were looked at.
            finite = ", whose batches" if looked == checked else f"; the batches after step {looked}"
            came = f"{came}{finite} hold no value that makes a loss not finite"
            since = checked if failed_step - checked <= non_finite.MAX_REPLAYED else good_step
            if lines := non_finite.origin_in_new_model(self._trainer, since, failed_step):
                return "\n  ".join([f"{came}; the tensors are in {where}", *lines])
            came = f"{came}: either updates are too large (lower the learning rate, "
            came = f"{came}for which official-trainer find-lr suggests a value, or clip the gradients)"
            return f"{came}, or the loss is not finite for some outputs; the tensors are in {where}"
        return f"{came}; the tensors are in {where}"
