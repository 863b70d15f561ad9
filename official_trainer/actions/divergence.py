"""Training that diverges while its loss is still finite: detected by the moving average of the loss.

Owns: when a loss counts as diverged, and the request that follows. Does not own: going back and its limits
(`trainer.recovery_…`), a loss that is not finite or above `trainer.loss_upper_bound` (handled by the loop).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from official_trainer.actions.action import Action, Request, Rollback, Run, Stop
from official_trainer.config import Above, ActionConfig, NonNegative, Positive, When

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DivergenceConfig(ActionConfig):
    """Notices a loss that is many times what its moving average was while all was well; for losses above zero.

    Attributes:
      when: the steps whose loss is looked at; with each summary, because looking more often cuts windows shorter.
      factor: how many times the moving average is too much. That of the last look that was not too much counts, of
        about 100 steps then.
      patience: how many looks in a row have to find such a loss.
      start_from_step: up to this step nothing is looked at.
      then: what is done. `warn` says so, `stop` ends training there as if it was the last step, `rollback` goes back as
        `trainer.recovery_…` says, and fails with exit code 4 if no recovery is left.
    """

    when: When | None = When(after_summary=True)
    factor: Annotated[float, Above(1)] = 3.0
    patience: Positive = 3
    start_from_step: NonNegative = 100
    then: Literal["warn", "stop", "rollback"] = "warn"

    def build(self) -> Divergence:
        return Divergence(self)


class Divergence(Action):
    """Compares the loss of the last step with its moving average at the last check that found no divergence."""

    def __init__(self, config: DivergenceConfig) -> None:
        self._config = config
        self._in_a_row = 0
        self._usual: float | None = None

    def on_step(self, run: Run) -> Request | None:
        config, trace = self._config, run.trainer.windows.loss_trace
        if run.step <= config.start_from_step:
            return None
        usual = trace["smoothed_loss"] if self._usual is None else self._usual
        loss = trace["batch_loss"]
        if not 0 < usual * config.factor < loss:
            self._in_a_row, self._usual = 0, trace["smoothed_loss"]
            return None
        self._in_a_row, self._usual = self._in_a_row + 1, usual
        if self._in_a_row < config.patience:
            return None
        self._in_a_row, self._usual = 0, None  # reported once; later losses are compared with the current average
        times = f", {config.patience} looks in a row" if config.patience > 1 else ""
        reason = (
            f"training diverges: the loss of step {run.step} is {loss:g}, more than {config.factor:g} times its moving "
            f"average of {usual:g} before{times} (action '{self.name}')"
        )
        if config.then == "warn":
            _logger.warning("%s", reason)
            return None
        return Stop(reason=reason) if config.then == "stop" else Rollback(reason=reason)

    def state(self) -> Mapping[str, Any]:
        return {} if self._usual is None else {"in_a_row": self._in_a_row, "usual": self._usual}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._in_a_row, self._usual = state.get("in_a_row", 0), state.get("usual")
