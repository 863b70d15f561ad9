"""Which way Keras's callbacks look at a reward: upwards, where they were left to find out.

Owns: remembering the `mode` that a callback was built with, and turning those that guessed. Does not own: when
callbacks are called (`callbacks.py`), or which metrics are rewards (`rewards.py`).

Keras guesses by the name (`acc` and `auc` are better when higher, all else when lower). `EarlyStopping` and
`ModelCheckpoint` do so while they are built, and keep nothing that tells a guess from what somebody asked for.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from typing import Any

import numpy as np

from official_trainer.lazy import keras
from official_trainer.program.data import ArgumentError
from official_trainer.program.rewards import rewards_of

_ASKED = "_official_trainer_mode"


def remember() -> None:
    """Has Keras's callbacks remember the `mode` that they are built with; they do what they did before."""
    for cls in (keras.callbacks.EarlyStopping, keras.callbacks.ModelCheckpoint):
        if not hasattr(cls, _ASKED):
            setattr(cls, _ASKED, None)  # of those built earlier nobody knows
            cls.__init__ = _remembering(cls.__init__)


def _remembering(build: Any) -> Any:
    signature = inspect.signature(build)

    @functools.wraps(build)
    def built(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        arguments = signature.bind(self, *args, **kwargs)
        arguments.apply_defaults()
        setattr(self, _ASKED, str(arguments.arguments["mode"]))

    return built


remember()


def maximise_rewards(callbacks: Iterable[Any], model: keras.Model) -> None:
    """Has callbacks that monitor a reward, and were left to guess, take higher values for better.

    Args:
      callbacks: those of a call of `fit`, which has not begun.
      model: compiled; whose metrics say which are rewards.

    Raises:
      ArgumentError: a callback is older than this module and minimises a reward, asked for or not.
    """
    rewards = rewards_of(model)
    names = {metric.name for metric in (rewards.metrics if rewards else ()) if metric.direction == "max"}
    for callback in callbacks:
        if str(getattr(callback, "monitor", "")).removeprefix("val_") not in names:
            continue
        if isinstance(callback, keras.callbacks.ReduceLROnPlateau):
            callback.mode = "max" if callback.mode not in ("min", "max") else callback.mode
        elif hasattr(callback, _ASKED) and callback.monitor_op is np.less:
            _turn_guess(callback)


def _turn_guess(callback: Any) -> None:
    """Turns a callback that minimises, unless it was asked to."""
    asked = getattr(callback, _ASKED)
    if asked is None:
        raise ArgumentError(
            f"{type(callback).__name__}(monitor={callback.monitor!r}) minimises a reward, and was built before "
            "official_trainer.program was imported, so it cannot be told whether it is meant to; give it mode='max'"
        )
    if asked == "min":
        return
    callback.monitor_op = np.greater
    if isinstance(callback, keras.callbacks.EarlyStopping):
        callback.min_delta *= -1
    elif callback.best == np.inf:  # no threshold was given
        callback.best = -np.inf
