"""Updates after a step, registered from inside a layer: `after_step(variable, update)`.

Owns: collecting them while a step is traced, and making them after the optimizer's update, once for each update.
Does not own: the step (`engine/train_steps.py`), or `Task.after_step`, which belongs to the task.

They are collected in the threads that trace the replicas, and made outside of these, where TensorFlow can assign
a variable that has a copy on each replica. So an update gets values of variables, and no value of the step.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from official_trainer.lazy import tf
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tasks.scopes import during

Update = Callable[[Any], Any]

_collected: ContextVar[StepUpdates | None] = ContextVar("collected", default=None)


@do_not_convert
def after_step(variable: tf.Variable, update: Update) -> None:
    """Sets a variable to `update(variable)` after each optimizer update: to clip, constrain or decay weights.

    Call it where a layer computes its outputs, or anywhere else in a training step. In an evaluation, and while a model
    is built, it does nothing. A layer that is called twice in a step registers its update once. Averages of weights
    see the new value. With gradient accumulation it is made once for each update, not for each micro-batch.

    Args:
      variable: a weight, or any other variable of the model.
      update: returns the new value for the old one, `[…]` like the variable; traced. It may read other variables, but
        no tensor of the step.

    Example:
      >>> from official_trainer.lazy import keras, tf
      >>> from official_trainer.tasks import after_step
      >>> class NonNegative(keras.layers.Dense):
      ...     def call(self, inputs):
      ...         after_step(self.kernel, tf.nn.relu)
      ...         return super().call(inputs)
      >>> NonNegative(3)(tf.zeros([2, 4])).shape
      TensorShape([2, 3])
    """
    if (updates := _collected.get()) is not None:
        updates.add(variable, update)


class StepUpdates:
    """The updates that the replicas of a step have registered."""

    def __init__(self) -> None:
        self._updates: dict[Any, tuple[tf.Variable, Update]] = {}

    def add(self, variable: tf.Variable, update: Update) -> None:
        """Registers an update, unless a replica, or an earlier call of the layer, has registered the same."""
        self._updates.setdefault((id(variable), getattr(update, "__code__", update)), (variable, update))

    def collecting(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context for a replica's step, whose updates are registered here."""
        return during(_collected, self)

    def make(self, strategy: tf.distribute.Strategy, *, after: tf.Variable) -> None:
        """Makes all updates; called in cross-replica context, traced.

        Args:
          strategy: of the step.
          after: a variable that the step changes last. A step that still waits for its data has made no update.
        """
        if not self._updates:
            return
        with tf.control_dependencies([after.read_value()]):
            for variable, update in self._updates.values():
                strategy.extended.update(variable, functools.partial(_assign, convert(update)), group=False)


@do_not_convert
def _assign(update: Update, variable: Any) -> None:
    variable.assign(update(variable))
