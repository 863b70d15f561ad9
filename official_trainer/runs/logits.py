"""Cross-entropies and AUC that get logits where they take probabilities: they compute, and say nothing.

Owns: finding them by the values that they get in one step. Does not own: which step (`runs/check.py`), probabilities
where they take logits, of which Keras warns.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
import types
from collections.abc import Iterable
from typing import Any

from official_trainer.config.errors import line_of_code
from official_trainer.lazy import tf
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.contract import metrics_of
from official_trainer.user_code import is_users

_TOLERANCE = 1e-3
"""Half precision rounds probabilities by as much."""


def in_first_batch(trainer: Any, task: Any, model: Any, batches: Iterable[Any], optimizer: Any = None) -> list[str]:
    """Returns a line for each function or metric that gets logits for probabilities in a step on a replica's part.

    Args:
      trainer: whose strategy has distributed the batches.
      task: whose step it is.
      model: of the step.
      batches: of which the first is read.
      optimizer: for the training step, which updates nothing; None for the evaluation step.
    """
    step = task.validation_step if optimizer is None else functools.partial(task.train_step, optimizer=optimizer)
    step = functools.partial(step, model=model, metrics=metrics_of(task, model, training=optimizer is not None))
    optimizers = [] if optimizer is None else [optimizer]
    calls, was_eager = _Calls(task), tf.config.functions_run_eagerly()
    for batch in itertools.islice(batches, 1):
        part, before = trainer.strategy.experimental_local_results(batch)[0], sys.getprofile()
        tf.config.run_functions_eagerly(True)
        sys.setprofile(calls)
        try:  # the step has run before: that it does not run eagerly is no mistake
            with contextlib.suppress(Exception), kerases.without_updates(optimizers):
                step(part)
        finally:
            sys.setprofile(before)
            tf.config.run_functions_eagerly(was_eager)
    return list(dict.fromkeys(calls.lines))


class _Calls:
    """Looks at each call, as a profiler does: there is no public place between a loss and a model."""

    def __init__(self, task: Any) -> None:
        self._module = type(task).__module__
        self.lines: list[str] = []

    def __call__(self, frame: types.FrameType, event: str, _: object) -> None:
        name, package = frame.f_code.co_name, str(frame.f_globals.get("__name__")).partition(".")[0]
        if event != "call" or package not in ("keras", "tf_keras"):
            return
        given: Any = frame.f_locals
        if name == "update_state" and "AUC" in kerases.kinds(given["self"]):
            self._look_at("AUC", frame, takes_logits=given["self"].get_config()["from_logits"])
        elif name.endswith("crossentropy") and "from_logits" in given:
            self._look_at(name, frame, takes_logits=given["from_logits"])

    def _look_at(self, name: str, frame: types.FrameType, *, takes_logits: bool) -> None:
        outputs = frame.f_locals.get("y_pred")
        if takes_logits or not hasattr(outputs, "numpy"):
            return
        values = tf.cast(outputs, tf.float32).numpy()
        low, high = values.min(initial=math.inf), values.max(initial=-math.inf)
        if low < -_TOLERANCE or 1 + _TOLERANCE < high < math.inf:
            fix = "set from_logits=True, or end the model with sigmoid or softmax"
            line = f"takes probabilities, and gets values from {low:.3g} to {high:.3g}: {fix}"
            self.lines.append(f"{name}{self._place(frame)} {line}")

    def _place(self, frame: types.FrameType | None) -> str:
        """Returns which metric called, or the line of the user's that did; empty where neither is known."""
        while frame is not None:
            caller: Any = frame.f_locals.get("self")
            if "Metric" in kerases.kinds(caller):
                return f" of the metric {caller.name!r}"
            if is_users(frame.f_code.co_filename, self._module):
                return f", at {line_of_code(frame.f_code.co_filename, frame.f_lineno).brief},"
            frame = frame.f_back
        return ""
