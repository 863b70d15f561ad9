"""The modes of a run, Model Garden's and `predict`, and when each evaluates.

Owns: the names, a line about each, and the error for other names. Does not own: what a mode does (`runs/train.py`,
`runs/evaluate.py`, `runs/predict.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from official_trainer.errors import ExitCode, UserError
from official_trainer.nearest import did_you_mean

Evaluates = Literal["interval", "end", "never"]
"""When a training run evaluates: at `validation_interval` and at the end, at the end only, never."""

TRAINING_MODES: Mapping[str, Evaluates] = {
    "train": "never",
    "train_and_eval": "interval",
    "train_and_post_eval": "end",
}
"""Modes that train, and when each evaluates."""

MODES: Mapping[str, str] = {
    "train": "trains only",
    "train_and_eval": "trains; evaluates at every `trainer.validation_interval` and at the end. The default",
    "train_and_post_eval": "trains, then evaluates once",
    "eval": "evaluates the newest checkpoint; the run stays as it is",
    "continuous_eval": "evaluates each checkpoint of a run in another process as it appears, until that run is done",
    "continuous_train_and_eval": "a run in `from-<step>/` for each checkpoint that appears in `task.init_checkpoint`",
    "predict": "writes the outputs of a checkpoint for all examples to files",
}
"""All modes, and what each does, in Markdown, for the reference."""

DEFAULT_MODE = "train_and_eval"


class ModeError(UserError, ValueError):
    """There is no such mode."""

    exit_code = ExitCode.CONFIG


def refuse_unknown(mode: str) -> None:
    """Refuses a name that is no mode's.

    Raises:
      ModeError: there is no such mode; lists the modes, and the nearest.
    """
    if mode in MODES:
        return
    raise ModeError(f"--mode={mode}: no such mode{did_you_mean(mode, MODES)}\nmodes: {', '.join(MODES)}")
