"""The modes of a run, Model Garden's words for them and one more, and when each evaluates.

Owns: the names and the refusal of others. Does not own: what a mode does (`runs/train.py`, `runs/evaluate.py`,
`runs/predict.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from official_trainer.errors import ExitCode, UserError

Evaluates = Literal["interval", "end", "never"]
"""When a training run evaluates: at `validation_interval` and at the end, at the end only, never."""

TRAINING_MODES: Mapping[str, Evaluates] = {
    "train": "never",
    "train_and_eval": "interval",
    "train_and_post_eval": "end",
}
"""Modes that train, and when each evaluates."""

MODES = (*TRAINING_MODES, "eval", "continuous_eval", "continuous_train_and_eval", "predict")

DEFAULT_MODE = "train_and_eval"


class ModeError(UserError, ValueError):
    """There is no such mode."""

    exit_code = ExitCode.CONFIG


def check(mode: str) -> None:
    """Refuses what is not a mode.

    Raises:
      ModeError: lists the modes, and the nearest.
    """
    if mode in MODES:
        return
    from official_trainer.errors import nearest  # only now: `--help` needs the names alone, and at once

    near = nearest(mode, MODES)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ModeError(f"--mode={mode}: no such mode{hint}\nmodes: {', '.join(MODES)}")
