"""Optimizers, schedules and weight averages, built from `trainer.optimizer_config`.

Owns: the optimizer of a config, a scale of its learning rate, and `WeightAverage`, the moving average of weights. Does
not own: the section's fields (`config/optimization.py`), what differs between the Kerases (`keras/`), when averages are
swapped in (`engine/evaluation.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from official_trainer.config import ConfigError, Problem
from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.scopes import during

_model: ContextVar[Any] = ContextVar("model", default=None)


def of_model(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which optimizers are built for a model: of its Keras."""
    return during(_model, model)


def build_optimizer(optimizer_config: Any, runtime_config: Any = None) -> Any:
    """Returns the optimizer with its learning-rate schedule, wrapped for loss scaling under float16.

    It is of the Keras of the model that is trained; outside of `of_model`, of the one that the process uses.

    Args:
      optimizer_config: the section `trainer.optimizer_config`.
      runtime_config: the section `runtime`; None for no loss scaling.

    Raises:
      ConfigError: an optimizer or a learning rate is not set, or cannot be used.
    """
    if problems := list(unset(optimizer_config)):
        raise ConfigError(problems)
    model = _model.get()
    implementation = kerases.of(model) if model is not None else kerases.in_use()[-1]
    return implementation.build_optimizer(optimizer_config, runtime_config)


def unset(optimizer_config: Any) -> Iterator[Problem]:
    """Yields what an optimizer cannot be built without and the section does not set."""
    for name, example in (("optimizer", "adam"), ("learning_rate", "constant")):
        one_of = getattr(optimizer_config, name, None)  # the ranking experiments of Model Garden have other sections
        if one_of is not None and one_of.type is None:
            path = f"trainer.optimizer_config.{name}.type"
            yield Problem("is not set, and training needs one", path, fix=f"for example {path}={example}")


def build_slots(optimizer: Any, variables: Sequence[Any]) -> None:
    """Creates the slot variables of an optimizer now, so that a checkpoint can be matched with all of them.

    For a program that saves an optimizer itself; a Trainer does it.

    Args:
      optimizer: of either Keras.
      variables: the trainable variables of the model.
    """
    kerases.of(optimizer).build_slots(optimizer, variables)


def without_averaging(optimizer: Any) -> Any:
    """Returns the optimizer inside Model Garden's EMA wrapper, which starts averages from zero; others unchanged."""
    is_wrapper = any(cls.__name__ == "ExponentialMovingAverage" for cls in type(optimizer).__mro__)
    if is_wrapper and type(optimizer).__module__.startswith("official."):
        return optimizer._optimizer  # it has no public name
    return optimizer


def learning_rate(optimizer: Any, global_step: tf.Variable) -> tf.Tensor:
    """Returns the rate of the next update, a scalar float32.

    Of a schedule in an optimizer of tf_keras that is not legacy, it is that of the last update, as with Model Garden.
    """
    rate = optimizer.learning_rate
    if callable(rate):
        rate = rate(getattr(optimizer, "iterations", global_step))
    return tf.convert_to_tensor(rate)


def learning_rates(optimizer: Any, global_step: tf.Variable) -> dict[str, tf.Tensor]:
    """Returns the rate of the next update by its name in logs; of several optimizers in one, the rate of each."""
    sub_optimizers = getattr(optimizer, "optimizers", [optimizer])
    rates = [learning_rate(sub_optimizer, global_step) for sub_optimizer in sub_optimizers]
    return dict(zip(rate_names(optimizer), rates, strict=True))


def rate_names(optimizer: Any) -> list[str]:
    """Returns the names of `learning_rates`."""
    if not hasattr(optimizer, "optimizers"):
        return ["learning_rate"]
    numbered = enumerate(optimizer.optimizers)  # with Model Garden's names
    return [f"{type(sub_optimizer).__name__}_{i}_learning_rate" for i, sub_optimizer in numbered]


def described(optimizer: Any) -> str:
    """Returns an optimizer in words: `Adam(learning_rate=0.001)`; of a schedule, the name of its class."""
    held = kerases.inner(optimizer)
    rate = kerases.of(held).rate(held)
    shown = f"{float(rate.numpy()):g}" if isinstance(rate, tf.Variable) else type(rate).__name__
    return f"{type(held).__name__}(learning_rate={shown})" if rate is not None else type(held).__name__


class FixedRateError(UserError, TypeError):
    """The learning rate of an optimizer cannot be scaled."""

    exit_code = ExitCode.CONFIG


class RateScale:
    """Multiplies the learning rate of an optimizer by a number, without a further variable in checkpoints.

    A rate that is a variable of the optimizer is set to the product. A schedule is wrapped in another one.
    """

    def __init__(self, optimizer: Any) -> None:
        """Takes the optimizer, before it is traced.

        Raises:
          FixedRateError: its rate is neither a variable nor a schedule.
        """
        implementation = kerases.of(optimizer)
        rate = implementation.rate(optimizer)
        self._rate: tf.Variable | None = rate if isinstance(rate, tf.Variable) else None
        if self._rate is not None:
            self._unscaled = self._rate.numpy()
        elif "LearningRateSchedule" in kerases.kinds(rate):
            self._scale = tf.Variable(1.0, trainable=False, name="learning_rate_scale")
            implementation.set_schedule(optimizer, lambda step: rate(step) * tf.cast(self._scale, tf.float32))
        else:
            name = type(kerases.inner(optimizer)).__name__
            raise FixedRateError(
                f"trainer.recovery_learning_rate_scale: the learning rate of {name} cannot be scaled, because it is "
                "neither a variable nor a LearningRateSchedule; give the optimizer one, or set this to 1"
            )

    def set(self, scale: float) -> None:
        """Sets the rate to `scale` times the configured one, from the next step on."""
        if self._rate is None:
            self._scale.assign(scale)
        else:
            self._rate.assign(self._unscaled * scale)


class WeightAverage:
    """Exponential moving average of a model's weights (Polyak and Juditsky, 1992).

    Averages start from the weights themselves. While swapped in, the model's variables hold the averages and
    `values` the weights; both are exchanged value by value, so swapping twice changes no bit.

    Attributes:
      values: the averages, one variable for each weight.
      items: what a checkpoint holds of them, by name; with tf_keras Model Garden's wrapper as `optimizer`, which holds
        the optimizer and the averages, as its driver saves both.
    """

    def __init__(self, model: Any, config: Any, optimizer: Any = None) -> None:
        """Creates the averages; called under the strategy's scope.

        Args:
          model: whose weights are averaged.
          config: the section `trainer.optimizer_config.ema`.
          optimizer: of the model, without averaging; None if it is not trained.
        """
        averages = kerases.of(model).averages(model, optimizer, trainable_only=config.trainable_weights_only)
        self._weights, self.values, self.items = averages.weights, averages.values, averages.items
        self._config = config
        self._extended = tf.distribute.get_strategy().extended
        self.reset()

    @property
    def pairs(self) -> list[tuple[tf.Variable, tf.Variable]]:
        """Each weight that is averaged, with its average."""
        return list(zip(self._weights, self.values, strict=True))

    def reset(self) -> None:
        """Restarts the averages from the current weights."""
        for value, weight in zip(self.values, self._weights, strict=True):
            value.assign(tf.convert_to_tensor(weight))

    def update(self, step: tf.Tensor) -> None:
        """Moves every average towards its weight; called in cross-replica context after update number `step`."""
        steps = tf.cast(step, tf.float32) - float(self._config.start_step)
        decay = tf.constant(self._config.average_decay, tf.float32)
        if self._config.dynamic_decay:
            decay = tf.minimum(decay, (1.0 + steps) / (10.0 + steps))
        rate = 1.0 - tf.where(steps < 0.0, 0.0, decay)
        for value, weight in zip(self.values, self._weights, strict=True):
            self._extended.update(value, _move_towards, args=(weight, rate), group=False)

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Puts the averages into the model for a `with` block; an exception swaps them out too."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for value, weight in zip(self.values, self._weights, strict=True):
            held = tf.identity(tf.convert_to_tensor(value))
            value.assign(tf.convert_to_tensor(weight))
            weight.assign(held)


def _move_towards(value: tf.Variable, weight: tf.Tensor, rate: tf.Tensor) -> None:
    weight = tf.cast(weight, value.dtype)
    value.assign_sub(tf.cast(rate, value.dtype) * (value - weight))
