"""Fills every kernel with a number."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from official_trainer.actions import Action, Assign, Run
from official_trainer.config import ActionConfig, When


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillConfig(ActionConfig):
    """Fills every kernel with a number.

    Attributes:
      value: the number.
    """

    when: When | None = When(at_end=True)
    value: float = 0.25

    def build(self) -> Fill:
        return Fill(self.value)


class Fill(Action):
    def __init__(self, value: float) -> None:
        self._value = value

    def on_step(self, run: Run) -> Any:
        kernels = {path: v.numpy() for path, v in run.variables.items() if path.endswith("/kernel")}
        return Assign(values={path: np.full_like(value, self._value) for path, value in kernels.items()})
