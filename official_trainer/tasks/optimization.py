"""Optimizers, schedules and weight averages, built from `trainer.optimizer_config`.

Owns: building the optimizer with Model Garden's own factory, its slots, applying gradients in a traced step, a scale of
its learning rate, and `WeightAverage`, the moving average of weights. Does not own: the section's fields
(`config/optimization.py`), when averages are swapped in (`engine/evaluation.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from official.modeling import optimization as garden_optimization

from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import keras, tf
from official_trainer.tasks.autograph import convert, do_not_convert


def build_optimizer(optimizer_config: Any, runtime_config: Any = None) -> keras.optimizers.Optimizer:
    """Returns the optimizer with its learning-rate schedule, wrapped for loss scaling under float16.

    The factory is Model Garden's, so an experiment from there trains with the same optimizer classes. Its EMA wrapper
    is not used: `WeightAverage` replaces it.
    """
    factory = garden_optimization.OptimizerFactory(optimizer_config.replace(ema=None))
    optimizer = factory.build_optimizer(factory.build_learning_rate())
    if runtime_config is None or runtime_config.mixed_precision_dtype != "float16":
        return optimizer
    if runtime_config.loss_scale in (None, "dynamic"):
        return keras.mixed_precision.LossScaleOptimizer(optimizer)
    scale = runtime_config.loss_scale
    return keras.mixed_precision.LossScaleOptimizer(optimizer, dynamic=False, initial_scale=scale)


def without_averaging(optimizer: Any) -> Any:
    """Returns the optimizer inside Model Garden's EMA wrapper, which starts averages from zero; others unchanged."""
    if isinstance(optimizer, garden_optimization.ExponentialMovingAverage):
        return optimizer._optimizer  # it has no public name
    return optimizer


def build_slots(optimizer: Any, variables: Sequence[tf.Variable]) -> None:
    """Creates the optimizer's slot variables now, so that a checkpoint can be matched with all of them."""
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    elif hasattr(optimizer, "_create_all_weights"):  # a legacy one creates slots lazily; there is no public way
        optimizer._create_all_weights(variables)


@contextlib.contextmanager
def without_updates(optimizer: Any) -> Iterator[None]:
    """In a `with` block, steps that are traced with `optimizer` neither update weights nor create slots.

    It stays the same object, because some models of Model Garden have the optimizer themselves.
    """
    if optimizer is None:
        yield
        return
    optimizer.apply_gradients = do_not_convert(lambda *args, **kwargs: tf.no_op())
    try:
        yield
    finally:
        del optimizer.apply_gradients


def hyperparameters(optimizer: Any) -> list[tf.Variable]:
    """Returns the variables that hold an optimizer's settings: learning rate, decay, momentum."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    if isinstance(optimizer, keras.optimizers.legacy.Optimizer):
        settings = list(optimizer._hyper.values())  # there is no public way to read them
    else:
        settings = [getattr(optimizer, "_learning_rate", None)]
    return [value for value in settings if isinstance(value, tf.Variable)]


_SMALL_MODEL = 10_000  # weights


@do_not_convert
def apply_gradients(optimizer: Any, grads_and_vars: Iterable[tuple[Any, tf.Variable]], *, after: tf.Tensor) -> None:
    """Updates weights in a traced step; an update is not counted before `after`, scalar, is computed.

    Without that, Keras's optimizers would count a step whose data never arrived. They also sum the gradients of a
    single replica, which delays all updates until the last gradient is computed. That takes a twentieth of a small
    model's step, so it is left out there; a large model's step is faster with it, because updates do not compete with
    the remaining gradients.
    """
    pairs = list(grads_and_vars)
    strategy = tf.distribute.get_strategy()
    sums = strategy.num_replicas_in_sync > 1 or isinstance(strategy, tf.distribute.ParameterServerStrategy)
    is_small = sum(variable.shape.num_elements() or 0 for _, variable in pairs) <= _SMALL_MODEL
    options = {"experimental_aggregate_gradients": False} if is_small and not sums and _is_keras_own(optimizer) else {}
    with _counting_after(after, optimizer):
        convert(optimizer.apply_gradients)(pairs, **options)


def minimize(optimizer: Any, loss: tf.Tensor, weights: Sequence[tf.Variable], tape: tf.GradientTape) -> None:
    """Updates weights by the gradients of a loss, like `optimizer.minimize`, through `apply_gradients`."""
    if _is_keras_own(optimizer) and hasattr(optimizer, "compute_gradients"):
        apply_gradients(optimizer, optimizer.compute_gradients(loss, weights, tape), after=loss)
    else:
        with tf.control_dependencies([loss]):
            optimizer.minimize(loss, weights, tape=tape)


def _is_keras_own(optimizer: Any) -> bool:
    """Whether an optimizer applies and aggregates gradients with Keras's own code."""
    kind = type(optimizer)
    parts = (kind, getattr(optimizer, "gradient_aggregator", kind))
    return all(part.__module__.startswith("tf_keras.") for part in parts)


def _counting_after(tensor: tf.Tensor, optimizer: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which an update is counted after `tensor` is computed."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    if _is_keras_own(inner):
        if isinstance(inner, keras.optimizers.legacy.Optimizer):
            return contextlib.nullcontext()  # counts after it has updated the weights
        repeated = [inner.iterations, *hyperparameters(inner)]
        is_plain = all("_cached_value" in vars(variable) for variable in repeated)  # of one replica
        if is_plain and not inner.jit_compile:
            return _read_once(repeated, after=tensor)
    return tf.control_dependencies([tensor])


@contextlib.contextmanager
def _read_once(variables: Sequence[tf.Variable], *, after: tf.Tensor) -> Iterator[None]:
    """Reads variables once, after a tensor is computed; in the `with` block, reading them returns that value.

    Keras's optimizers read their counter and rate again for each weight, so TensorFlow repeats the computations with
    both. That takes a tenth of a small model's step.
    """
    with tf.control_dependencies([after]):
        for variable in variables:
            variable._cached_value = variable.read_value()  # as if it had a caching device
    try:
        yield
    finally:
        for variable in variables:
            variable._cached_value = None


def learning_rate(optimizer: Any, global_step: tf.Variable) -> tf.Tensor:
    """Returns the rate of the next update, a scalar float32."""
    rate = optimizer.learning_rate
    if callable(rate):
        rate = rate(getattr(optimizer, "iterations", global_step))
    return tf.convert_to_tensor(rate)


def learning_rates(optimizer: Any, global_step: tf.Variable) -> dict[str, tf.Tensor]:
    """Returns the rate of the next update by its name in logs; of several optimizers in one, the rate of each."""
    parts = getattr(optimizer, "optimizers", [optimizer])
    rates = [learning_rate(part, global_step) for part in parts]
    return dict(zip(rate_names(optimizer), rates, strict=True))


def rate_names(optimizer: Any) -> list[str]:
    """Returns the names of `learning_rates`."""
    if not hasattr(optimizer, "optimizers"):
        return ["learning_rate"]
    parts = enumerate(optimizer.optimizers)  # with Model Garden's names
    return [f"{type(part).__name__}_{i}_learning_rate" for i, part in parts]


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
        holder = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
        is_legacy = isinstance(holder, keras.optimizers.legacy.Optimizer)
        rate = getattr(holder, "learning_rate" if is_legacy else "_learning_rate", None)  # the other one's is a value
        self._rate: tf.Variable | None = rate if isinstance(rate, tf.Variable) else None
        if self._rate is not None:
            self._unscaled = self._rate.numpy()
        elif isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            self._scale = tf.Variable(1.0, trainable=False, name="learning_rate_scale")
            setattr(holder, "learning_rate" if is_legacy else "_learning_rate", _scaled(rate, self._scale))
        else:
            raise FixedRateError(
                f"trainer.recovery_learning_rate_scale: the learning rate of {type(holder).__name__} cannot be scaled, "
                "because it is neither a variable nor a LearningRateSchedule; give the optimizer one, or set this to 1"
            )

    def set(self, scale: float) -> None:
        """Sets the rate to `scale` times the configured one, from the next step on."""
        if self._rate is None:
            self._scale.assign(scale)
        else:
            self._rate.assign(self._unscaled * scale)


def _scaled(schedule: Any, scale: tf.Variable) -> Any:
    """Returns a schedule times a variable."""

    class Scaled(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: tf.Tensor) -> tf.Tensor:
            return schedule(step) * tf.cast(scale, tf.float32)

        def get_config(self) -> dict[str, Any]:
            return schedule.get_config()

    return Scaled()


class WeightAverage:
    """Exponential moving average of a model's weights (Polyak and Juditsky, 1992).

    Averages start from the weights themselves. While swapped in, the model's variables hold the averages and
    `values` the weights; both are exchanged value by value, so swapping twice changes no bit.

    Attributes:
      values: the averages, one variable for each weight.
      optimizer: for checkpoints: Model Garden's wrapper, which holds the optimizer and the averages, as its driver
        saves both; never called.
      alone: for checkpoints that hold the averages beside the optimizer, as this package saved them before.
    """

    def __init__(self, model: keras.Model, config: Any, optimizer: Any = None) -> None:
        """Creates the averages; called under the strategy's scope.

        Args:
          model: whose weights are averaged.
          config: the section `trainer.optimizer_config.ema`.
          optimizer: of the model, without averaging; None if it is not trained.
        """
        trainable_only = config.trainable_weights_only
        self.optimizer = garden_optimization.ExponentialMovingAverage(
            tf.train.Checkpoint() if optimizer is None else optimizer, trainable_weights_only=trainable_only
        )
        self.optimizer.shadow_copy(model)
        weights = model.trainable_variables if trainable_only else model.variables
        self._weights = [w for w in weights if w.dtype.is_floating]
        self._config = config
        self._is_swapped_in = False
        self._extended = tf.distribute.get_strategy().extended
        self.values = [self.optimizer.get_slot(weight, "average") for weight in self._weights]
        self.alone = tf.train.Checkpoint(values=self.values)
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
        self._is_swapped_in = True
        try:
            yield
        finally:
            self.swap_out()

    def swap_out(self) -> None:
        """Restores the model's weights, if the averages are in it."""
        if self._is_swapped_in:
            self._is_swapped_in = False
            self._swap()

    def _swap(self) -> None:
        for value, weight in zip(self.values, self._weights, strict=True):
            held = tf.identity(tf.convert_to_tensor(value))
            value.assign(tf.convert_to_tensor(weight))
            weight.assign(held)


def _move_towards(value: tf.Variable, weight: tf.Tensor, rate: tf.Tensor) -> None:
    weight = tf.cast(weight, value.dtype)
    value.assign_sub(tf.cast(rate, value.dtype) * (value - weight))
