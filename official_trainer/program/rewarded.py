"""Whether a step is traced in this thread, and which rewards a compiled model has.

Owns: what steps of models without rewards need of them, without either Keras. Does not own: rewards (`rewards.py`).
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, Literal

from official_trainer.lazy import tf

_step: contextvars.ContextVar[Literal["train", "test"] | None] = contextvars.ContextVar("step", default=None)
"""The step that this thread traces or runs; None outside of steps."""


@contextlib.contextmanager
def in_step(step: Literal["train", "test"]) -> Iterator[None]:
    """For a block in which a step computes losses and rewards: it updates metrics, and training needs gradients."""
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


def in_training_step() -> bool:
    """Whether a training step is traced, or runs, in this thread."""
    return _step.get() == "train"


def in_a_step() -> bool:
    """Whether any step is traced, or runs, in this thread."""
    return _step.get() is not None


def rewards_of(model: Any) -> Any:
    """Returns the rewards with which a model was compiled; None for none."""
    return getattr(getattr(model, "compiled_loss", None), "rewards", None)


@contextlib.contextmanager
def rewards_explained(model: Any) -> Iterator[None]:
    """For a block that runs steps: names the reward that failed in Python, where TensorFlow names an operation."""
    try:
        yield
    except (tf.errors.OpError, RuntimeError):  # the latter of steps that are not traced
        rewards = rewards_of(model)
        failures = [] if rewards is None else [function.take_failure() for function in rewards.functions]
        if failure := next(filter(None, failures), None):
            raise failure from failure.__cause__
        raise
