"""Early stopping: training ends when a metric of the evaluation no longer improves.

Owns: the section, and counting evaluations without an improvement, which a restart continues. Does not own: ending
a run (`engine/loop.py`), keeping the best checkpoint (`checkpoints/best.py`, `checkpoint.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from official_trainer.actions.action import Action, Run, Stop
from official_trainer.config import ActionConfig, NonNegative, NonNegativeFloat, When
from official_trainer.tracking.monitored import Direction, Value, is_better, required_value, show

_PRIORITY = 100  # after the actions that keep what is best


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyStoppingConfig(ActionConfig):
    """Ends training when a metric of the evaluation has not improved for a while.

    A run that ended so stays ended when it is started again, unless `patience` is raised. `trainer.export.checkpoint`
    says which weights are exported then.

    Attributes:
      monitor: the metric; `a|b` names `b` inside `a`.
      mode: whether its higher (`max`) or lower (`min`) values are better; `auto` takes what the metric declares.
      min_delta: an improvement is more than this.
      patience: evaluations without an improvement after which training ends; with 0, as with 1, the first of them.
      baseline: until the metric has been better than this, nothing counts as an improvement.
      start_from_step: evaluations before this step do not count.
    """

    monitor: str = ""
    mode: Literal["auto", "min", "max"] = "auto"
    min_delta: NonNegativeFloat = 0.0
    patience: NonNegative = 0
    baseline: float | None = None
    start_from_step: NonNegative = 0
    priority: int = _PRIORITY

    def problems(self) -> Iterator[tuple[str, str]]:
        if not self.monitor:
            yield "monitor", "must name a metric of the evaluation, for example monitor: validation_loss"

    def build(self) -> EarlyStopping:
        return EarlyStopping(self)


class EarlyStopping(Action):
    """Counts evaluations in a row without an improvement."""

    when = When(after_eval=True)
    priority = _PRIORITY

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self._config = config
        self._direction: Direction = "max"
        self.restore({})

    def monitored(self) -> tuple[str, ...]:
        return (self._config.monitor,)

    def state(self) -> dict[str, Any]:
        state = {"monitor": self._config.monitor, "wait": self._wait}
        return state if self._best is None else {**state, "best": self._best, "best_step": self._best_step}

    def restore(self, state: Mapping[str, Any]) -> None:
        saved = state if state.get("monitor") == self._config.monitor else {}  # numbers of another metric do not apply
        self._wait = int(saved.get("wait", 0))
        self._best: Value | None = saved.get("best")
        self._best_step = int(saved.get("best_step", 0))

    def on_start(self, run: Run) -> Stop | None:
        config, choose = self._config, run.trainer.evaluation.chosen_direction
        limits = {"min_delta": config.min_delta or None, "baseline": config.baseline}
        self._direction = choose(config.monitor, config.mode, **limits)
        if self._best is not None and isinstance(self._best, Mapping) != callable(self._direction):
            self.restore({})  # the task has declared another way to compare since
        return self._stop_if_used_up()

    def on_eval(self, run: Run, logs: Mapping[str, float]) -> Stop | None:
        config = self._config
        if run.step < config.start_from_step:
            return None
        value = required_value(logs, config.monitor, self._direction)
        improves = is_better(value, self._best, self._direction, min_delta=config.min_delta)
        if improves:
            self._best, self._best_step = value, run.step
        is_enough = improves and is_better(value, config.baseline, self._direction, min_delta=config.min_delta)
        self._wait = 0 if is_enough else self._wait + 1
        return self._stop_if_used_up()

    def _stop_if_used_up(self) -> Stop | None:
        return None if self._wait < max(1, self._config.patience) else Stop(reason=self._reason())

    def _reason(self) -> str:
        config, count = self._config, f"{self._wait} evaluation{'s' if self._wait > 1 else ''}"
        best = "it was never a number"
        if self._best is not None:
            best = f"its best is {show(self._best)} (step {self._best_step})"
        beyond = f", beyond the baseline {config.baseline:g}" if config.baseline is not None else ""
        by = f" by more than {config.min_delta:g}" if config.min_delta else ""
        return f"early stopping: {config.monitor} has not improved{by} in {count}{beyond}; {best}"
