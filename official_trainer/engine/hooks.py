"""What the loop needs of whoever runs it: a journal for numbers, and what happens as things happen.

Owns: these contracts. Does not own: when anything is called (`loop.py`), what is done then (`runs/train.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from official_trainer.actions import action
from official_trainer.actions.action import LoopState
from official_trainer.actions.schedule import Schedule
from official_trainer.engine.recovery import Diagnosis


class MetricWriter(action.MetricWriter, Protocol):
    """What the loop needs of the trackers: rows of numbers that can be taken back."""

    def rewind(self, step: int) -> None:
        """Drops everything after `step`."""


@dataclasses.dataclass(kw_only=True)
class Hooks:
    """What happens outside the numbers: the run record, progress, actions, export. Every field may be left out."""

    on_restore: Callable[[LoopState], None] = lambda state: None
    on_start: Callable[[LoopState], None] = lambda state: None
    on_phase: Callable[[str, int], None] = lambda phase, step: None
    on_window: Callable[[LoopState, int, float, float], None] = lambda state, steps, seconds, loss: None
    on_summary: Callable[[int], None] = lambda step: None
    new_traces: Callable[[], Sequence[Any]] = lambda: ()
    before_save: Callable[[int], None] = lambda step: None
    on_save: Callable[[int], None] = lambda step: None
    on_rollback: Callable[[int], None] = lambda step: None
    find_row: Callable[[int, str], Mapping[str, float] | None] = lambda step, split: None
    on_stop: Callable[[str], None] = lambda reason: None
    load_weights: Callable[[str, int], None] = lambda directory, step: None
    export: Callable[[int, Mapping[str, Any]], None] = lambda step, logs: None
    summarizes_at: Callable[[int], bool] | None = None
    """Whether there is a summary at a step, in place of `trainer.summary_interval`; an action is due there."""
    evaluates_at: Callable[[int], bool] | None = None
    """Whether there is an evaluation at a step, in place of `trainer.validation_interval`; an action is due there."""
    diagnosis: Diagnosis | None = None
    model_dir: str = ""
    actions: Schedule = dataclasses.field(default_factory=Schedule)
