"""What this process's own part of a training step takes: waiting for its data, and computing its gradients.

Owns: the clock readings inside a traced step. Does not own: what they mean for the processes together
(`runs/health/slow_worker.py`), or how they travel (`train_steps.py`).

Processes that train together end each step together, so the time of a step says nothing about one of them. Its own part
ends where its gradients are ready: from there on it waits for the others. Both ends are read by an operation of the
step, because no Python runs in a window.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from typing import Any

from official_trainer.lazy import tf
from official_trainer.tasks import keras as kerases


class StepTimes:
    """Sums up the own parts of steps; for a process without others, and for steps that XLA compiles, it does nothing.

    A step that applies gradients several times counts up to the first time, and with several local replicas up to the
    first one of them that is ready.
    """

    def __init__(self, optimizer: Any, *, is_used: bool) -> None:
        """Takes the optimizer, whose `apply_gradients` ends the own part of a step."""
        self._sums: Any = None
        if not is_used or optimizer is None:
            return
        with futures.ThreadPoolExecutor(1) as outside:  # of the strategy in scope, which would mirror the variables
            self._sums, self._mark = outside.submit(_create).result()
        self._taken = (0.0, 0.0)
        kerases.of(optimizer).intercept(optimizer, self._apply)

    @property
    def variables(self) -> list[tf.Variable]:
        """What steps change here."""
        return [] if self._sums is None else [self._sums, self._mark]

    def next(self, get_inputs: Callable[[], Any]) -> Any:
        """Returns `get_inputs()`; traced."""
        if self._sums is None:
            return get_inputs()
        with tf.device("CPU:0"):
            began = tf.timestamp()
        with tf.control_dependencies([began]):
            inputs = get_inputs()
        with tf.device("CPU:0"), tf.control_dependencies(tf.nest.flatten(inputs, expand_composites=True)[:1]):
            now = tf.timestamp()
            ends = [self._sums.assign_add([now - began, 0.0], read_value=False), self._mark.assign(now)]
        with tf.control_dependencies(ends):
            return tf.nest.map_structure(tf.identity, inputs, expand_composites=True)

    def take(self) -> tuple[float, float] | None:
        """Returns for how many seconds steps waited for data since the last call, and computed; None if unknown."""
        if self._sums is None:
            return None
        before, (waited, computed) = self._taken, self._sums.numpy().tolist()
        self._taken = waited, computed
        return waited - before[0], computed - before[1]

    def _apply(self, apply: Callable[..., Any], pairs: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(pairs)
        gradients = [gradient for gradient, _ in pairs if gradient is not None]
        if gradients:
            # The first layer's come last. A device runs on after an operation has begun: a number on the host is there.
            first = tf.reshape(getattr(gradients[0], "values", gradients[0]), [-1])[:1]
            with tf.device("CPU:0"), tf.control_dependencies([*tf.nest.flatten(gradients), tf.identity(first)]):
                now, mark = tf.timestamp(), self._mark.read_value()
                computed = tf.where(mark > 0, now - mark, tf.zeros_like(now))
                with tf.control_dependencies([computed]):
                    self._sums.assign_add([tf.zeros_like(now), computed], read_value=False)
                    self._mark.assign(0.0, read_value=False)
        return apply(pairs, *args, **kwargs)


def _create() -> tuple[Any, Any]:
    with tf.device("CPU:0"):
        options = {"dtype": tf.float64, "trainable": False}
        return tf.Variable([0.0, 0.0], **options, name="step_seconds"), tf.Variable(0.0, **options, name="step_mark")
