"""Rewards in addition to losses: the meaning of `compile(reward=…)` for the outputs of a model and for training.

Owns: the reward and the weight of each output, the rewards that layers add, sample weights in rewards, what a step
minimises (the loss minus the reward), and the metrics of both. Does not own: a single reward (`reward_function.py`),
training with a reward that has no gradient (`estimators.py`), callbacks that maximise a reward (`callbacks.py`).
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.lazy import keras, load, tf
from official_trainer.program.data import ArgumentError, check_names, names_of_outputs
from official_trainer.program.estimators import EvolutionStrategies, RewardEstimator, ScoreFunction
from official_trainer.program.reward_function import RewardError, RewardFunction
from official_trainer.program.rewarded import in_a_step, in_training_step
from official_trainer.tasks.autograph import do_not_convert
from official_trainer.tracking.monitored import Direction

compile_utils: Any = load("tf_keras.src.engine.compile_utils")  # Keras's own containers have no public name

_CHOICES = "reward_estimator=ScoreFunction(…) or reward_estimator=EvolutionStrategies(…)"


def _mean(name: str, direction: Direction) -> Any:
    """Returns a metric that declares its direction; of Keras's class, so that a SavedModel with it can be read."""
    metric = keras.metrics.Mean(name)
    metric.direction = direction
    return metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rewarded:
    """One output of a batch that has a reward.

    Attributes:
      name: of the output.
      position: of the output among all.
      function: its reward.
      factor: its weight in the sum of rewards.
      y_true: targets of the batch; None without any.
      y_pred: the output.
      sample_weight: weights of the examples; None for none.
    """

    name: str
    position: int
    function: RewardFunction
    factor: float
    y_true: Any
    y_pred: Any
    sample_weight: Any

    def of_samples(self, samples: tf.Tensor) -> tf.Tensor:
        """Returns the weighted rewards of outputs [samples, batch, …]: [samples, batch], or [samples]."""
        return self._weighted(self.function.of_samples(self.y_true, samples))

    def of_output(self, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns the mean reward of the batch for an output, a scalar."""
        return tf.reduce_mean(self._weighted(self.function.of_batch(self.y_true, y_pred)[None]))

    def _weighted(self, values: tf.Tensor) -> tf.Tensor:
        weight = self.sample_weight
        if weight is None:
            return values if values.shape.rank == 1 else _mean_of_examples(values)
        weight = tf.cast(weight, tf.float32)
        if weight.shape.rank == 2 and weight.shape[-1] == 1:
            weight = tf.squeeze(weight, -1)
        if values.shape.rank == 1:
            return values * tf.reduce_mean(weight)
        if (extra := values.shape.rank - 1 - weight.shape.rank) < 0:
            raise RewardError(
                f"reward {self.function.name!r} of the output {self.name!r} is a number for each example, but "
                f"sample_weight has the shape {tuple(weight.shape)}; give one weight for each example"
            )
        shape = tf.concat([[1], tf.shape(weight), [1] * extra], axis=0)
        return _mean_of_examples(values * tf.reshape(weight, shape))


def _mean_of_examples(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(values, axis=list(range(2, values.shape.rank)))


class RewardLayer(keras.layers.Layer):
    """A layer that adds a reward of its own to those of the outputs, as any layer adds losses.

    A step maximises it by its gradient, and `reward` in the history contains it. Without a Program it is a loss of the
    other sign.

    Example:
      >>> import numpy as np
      >>> from official_trainer.lazy import keras, tf
      >>> from official_trainer.program import Program, RewardLayer
      >>> class Spread(RewardLayer):
      ...     def call(self, inputs):
      ...         self.add_reward(0.1 * tf.math.reduce_std(inputs, axis=-1))  # a number for each example
      ...         return inputs
      >>> program = Program(keras.Sequential([keras.Input([4]), keras.layers.Dense(4), Spread()]))
      >>> program.compile("sgd", "mse")
      >>> sorted(program.fit(np.ones([8, 4]), np.ones([8, 4]), verbose=0).history)
      ['loss', 'reward']
    """

    @do_not_convert
    def add_reward(self, reward: Any) -> None:
        """Adds a reward; to be called in `call`.

        Args:
          reward: a number for each example, of which the mean counts, or one for the batch.
        """
        loss = -tf.reduce_mean(tf.cast(reward, tf.float32))
        loss._is_reward = True
        self.add_loss(loss)


@do_not_convert
def added_by_layers(model: keras.Model) -> list[tf.Tensor]:
    """Returns the rewards that the layers of a model have added in its last call, which are in its losses too."""
    return [-loss for loss in model.losses if getattr(loss, "_is_reward", False)]


def has_reward_layers(model: keras.Model) -> bool:
    """Whether a layer of a model may add rewards."""
    return any(isinstance(each, RewardLayer) for each in (model, *model.submodules))


class Rewards:
    """The rewards of a compiled model.

    Attributes:
      arguments: the arguments of `compile` about rewards, by name, as `compile_from_config` takes them.
      functions: the rewards of the outputs.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        reward: Any,
        reward_weights: Any,
        reward_estimator: RewardEstimator | None,
        is_overridden: bool = False,
    ) -> None:
        """Takes the arguments of `compile`.

        Args:
          model: the model with these outputs.
          reward: a reward or its name, or one for each output: a list, or a dict by output name.
          reward_weights: a number, or one for each output: a list, or a dict by output name; None for ones.
          reward_estimator: for rewards without a gradient; None if all rewards have one.
          is_overridden: whether a `compute_reward` of the user's adds rewards; then `reward` may be None, as it may be
            where layers add rewards.

        Raises:
          ArgumentError: they contradict each other, or do not fit the model.
          RewardError: a reward computed in Python has no estimator.
        """
        self.arguments = {"reward": reward, "reward_weights": reward_weights, "reward_estimator": reward_estimator}
        self._estimator = estimator = reward_estimator
        self._container = compile_utils.Container(output_names=model.output_names)
        names = names_of_outputs(model)
        if not isinstance(estimator, RewardEstimator | None):
            raise ArgumentError(f"reward_estimator={estimator!r}; allowed: {_CHOICES}, or None")
        for name in ("train_step", "test_step"):
            if getattr(type(model), name) is not getattr(keras.Model, name):
                raise ArgumentError(
                    f"reward: {type(model).__name__} has its own {name}, but the steps of Program compute rewards; "
                    f"leave out reward, or {name}"
                )
        if isinstance(estimator, EvolutionStrategies):
            estimator.check_strategy(model.distribute_strategy)
        if names is not None:
            check_names("reward", reward, names)
        has_others = is_overridden or has_reward_layers(model)
        self._by_output = {} if reward is None and has_others else _build_functions(reward)
        self.functions = [each for each in tf.nest.flatten(self._by_output) if each is not None]
        if not self.functions and not has_others:
            raise ArgumentError(
                f"reward={reward!r} has no reward for any output; leave it out, or give an output a reward"
            )
        if estimator is None:
            for function in self.functions:
                _check_has_gradient(function, not function.is_python)
        self._factors: dict[str, float] = {}
        if names is not None:
            self._check_against(names)
        self._is_built = False
        self._loss, self._total = _mean("loss", "min"), _mean("reward", "max")
        self._of_output: dict[str, Any] = {}

    def attach(self, model: keras.Model) -> None:
        """Puts them beside the losses of a model that Keras has compiled."""
        model.compiled_loss = LossesWithRewards(model, self)

    @property
    def metrics(self) -> list[Any]:
        """The loss minus the reward, the reward and, of several outputs, the reward of each; none before a batch."""
        return [self._loss, self._total, *self._of_output.values()] if self._is_built else []

    def check_compiler(self) -> None:
        """Refuses rewards that XLA cannot compile.

        Raises:
          RewardError: Python computes one of them.
        """
        for function in self.functions:
            if function.is_python:
                raise RewardError(
                    f"reward {function.name!r} is computed in Python, which XLA cannot compile; leave out jit_compile "
                    "and runtime.enable_xla"
                )

    # In a step these are called in replica context, traced.

    @do_not_convert
    def of_outputs(self, batch: tuple[Any, Any, Any], outputs: Any, model: keras.Model) -> tf.Tensor:
        """Returns the weighted sum of the outputs' mean rewards, a scalar float32; with a gradient in a training step.

        Args:
          batch: `(x, y, sample_weight)`.
          outputs: of the model for the batch.
          model: the model.

        Raises:
          RewardError: a reward has no gradient, and there is no estimator.
        """
        x, y, sample_weight = batch
        rewarded, surrogate = self._rewarded(y, outputs, sample_weight), None
        if not rewarded:
            return tf.constant(0.0)
        if not in_training_step():
            sampled = self._estimator if isinstance(self._estimator, ScoreFunction) else None
            likeliest = [sampled.likeliest(each.name, each.y_pred) if sampled else each.y_pred for each in rewarded]
            values = [each.of_output(y_pred) for each, y_pred in zip(rewarded, likeliest, strict=True)]
        elif isinstance(self._estimator, EvolutionStrategies):
            values, surrogate = self._evolved(rewarded, x, outputs, model)
        elif isinstance(self._estimator, ScoreFunction):
            values, surrogate = self._drawn(rewarded)
        else:
            values = [self._with_gradient(each) for each in rewarded]
        total = self._summed(rewarded, values)
        if surrogate is not None:  # it has the gradient, but its value is not a reward
            total = tf.stop_gradient(total) + (surrogate - tf.stop_gradient(surrogate))
        for each, value in zip(rewarded, values, strict=True):
            if each.name in self._of_output:
                self._measure(self._of_output[each.name], value, outputs)
        return total

    @do_not_convert
    def minimised(self, loss: Any, reward: tf.Tensor, outputs: Any, of_layers: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns this replica's share of the loss minus the reward.

        Args:
          loss: the result of the model's `compute_loss`, in which the rewards of layers are; None without losses.
          reward: of the outputs.
          outputs: of the model for the batch.
          of_layers: the rewards that layers have added.
        """
        reward = tf.cast(reward, tf.float32)
        self._measure(self._total, tf.add_n([reward, *of_layers]), outputs)
        share = reward / tf.distribute.get_strategy().num_replicas_in_sync
        return -share if loss is None else tf.cast(loss, tf.float32) - share

    @do_not_convert
    def measure(self, minimised: tf.Tensor, outputs: Any, model: keras.Model) -> None:
        """Adds what a step minimises to the metric `loss`.

        Raises:
          RewardError: the model hides the metrics of rewards.
        """
        self._built_for(outputs)
        self._measure(self._loss, minimised * tf.distribute.get_strategy().num_replicas_in_sync, outputs)
        if not any(metric is self._total for metric in model.metrics):
            raise RewardError(
                f"reward: {type(model).__name__}.metrics leaves out the metrics of compile, and with them the "
                "reward; let it return [*super().metrics, …]"
            )

    def _measure(self, metric: Any, value: tf.Tensor, outputs: Any) -> None:
        if in_a_step():  # outside of steps, users compute what they want to know
            size = tf.shape(tf.nest.flatten(outputs)[0])[0]
            metric.update_state(value, sample_weight=tf.cast(size, tf.float32))

    def _with_gradient(self, each: _Rewarded) -> tf.Tensor:
        sources = [each.y_pred]
        logits = getattr(each.y_pred, "_keras_logits", None)  # with which Keras's crossentropies may compute
        if logits is not None:
            sources.append(logits)
        elif not tf.executing_eagerly() and each.y_pred.op.type in ("Softmax", "Sigmoid"):
            sources += each.y_pred.op.inputs
        with tf.GradientTape() as tape:
            tape.watch(sources)
            value = each.of_output(each.y_pred)
        _check_has_gradient(each.function, any(found is not None for found in tape.gradient(value, sources)))
        return value

    def _drawn(self, rewarded: Sequence[_Rewarded]) -> tuple[list[tf.Tensor], tf.Tensor]:
        assert isinstance(self._estimator, ScoreFunction)
        values, surrogates = [], []
        for each in rewarded:
            mask = getattr(each.y_pred, "_keras_mask", None)
            output = (each.position, each.name)
            value, surrogate = self._estimator.estimate(output, each.y_pred, mask, each.of_samples)
            values.append(value)
            surrogates.append(surrogate * each.factor)
        return values, tf.add_n(surrogates)

    def _evolved(
        self, rewarded: Sequence[_Rewarded], x: Any, outputs: Any, model: keras.Model
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        assert isinstance(self._estimator, EvolutionStrategies)
        found = self._named(self._estimator.outputs(model, x, like=outputs))
        by_copy = []
        for each in rewarded:
            values = each.of_samples(tf.stop_gradient(found[each.name]))
            by_copy.append(values if values.shape.rank == 1 else tf.reduce_mean(values, axis=1))
        surrogate = self._estimator.surrogate(model, tf.stop_gradient(self._summed(rewarded, by_copy)))
        return [tf.reduce_mean(values) for values in by_copy], surrogate

    def _summed(self, rewarded: Sequence[_Rewarded], values: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.add_n([each.factor * value for each, value in zip(rewarded, values, strict=True)])

    # Outputs.

    def _rewarded(self, y: Any, outputs: Any, sample_weight: Any) -> list[_Rewarded]:
        self._built_for(outputs)
        found = self._named(outputs)
        positions = {name: position for position, name in enumerate(found)}
        targets = self._paired(y, outputs)
        weights = self._paired(sample_weight, outputs)
        return [
            _Rewarded(
                name=name,
                position=positions[name],
                function=function,
                factor=self._factors[name],
                y_true=targets[name],
                y_pred=found[name],
                sample_weight=weights[name],
            )
            for name, function in _by_name(self._by_output, list(found)).items()
        ]

    def _named(self, outputs: Any) -> dict[str, Any]:
        """Returns the outputs of a batch by their names."""
        names = sorted(outputs) if isinstance(outputs, Mapping) else self._container._output_names
        return dict(zip(names, tf.nest.flatten(outputs), strict=True))

    def _paired(self, structure: Any, outputs: Any) -> dict[str, Any]:
        """Returns targets or weights by the names of their outputs; None for each if there are none."""
        names = self._named(outputs)
        if structure is None:
            return dict.fromkeys(names)
        return dict(zip(names, tf.nest.flatten(self._container._conform_to_outputs(outputs, structure)), strict=True))

    def _built_for(self, outputs: Any) -> None:
        """Builds the metrics when the first batch shows the outputs."""
        if self._is_built:
            return
        self._container.build(outputs)
        names = list(self._named(outputs))
        self._check_against(names)
        if len(names) > 1:
            self._of_output = {name: _mean(f"{name}_reward", "max") for name in _by_name(self._by_output, names)}
        self._is_built = True

    def _check_against(self, names: Sequence[str]) -> None:
        """Refuses arguments for other outputs, or another number of them, than there are."""
        reward, weights = self.arguments["reward"], self.arguments["reward_weights"]
        check_names("reward", reward, names)
        rewarded = list(_by_name(self._by_output, names))
        if isinstance(weights, Mapping):
            check_names("reward_weights", weights, rewarded, which="outputs with a reward")
        else:
            check_names("reward_weights", weights, names)
        factors = _by_name(weights, names)
        for name in rewarded:
            factor = factors.get(name, 1.0)
            if isinstance(factor, bool) or not isinstance(factor, numbers.Real):
                raise ArgumentError(f"reward_weights: {factor!r} for the output {name!r}; allowed: numbers")
            self._factors[name] = float(factor)
        if isinstance(self._estimator, ScoreFunction):
            self._estimator.check_names(rewarded)


class LossesWithRewards(compile_utils.LossesContainer):
    """Keras's losses, with the metrics of rewards among theirs; `loss` is the loss minus the reward."""

    def __init__(self, model: keras.Model, rewards: Rewards) -> None:
        """Takes a model that Keras has compiled, with its losses, and the rewards."""
        losses = model.compiled_loss
        super().__init__(losses._user_losses, losses._user_loss_weights, output_names=model.output_names)
        self.rewards = rewards

    @property
    def metrics(self) -> list[Any]:
        loss, *of_rewards = self.rewards.metrics or [None]
        return [*([loss] if loss else []), *super().metrics[1:], *of_rewards]


def _build_functions(reward: Any) -> Any:
    """Returns the argument `reward` with functions in place of its values; None stays."""
    if not isinstance(reward, Mapping | list | tuple):
        return RewardFunction(reward, "reward")
    keyed = reward if isinstance(reward, Mapping) else dict(enumerate(reward))
    found = {key: None if each is None else RewardFunction(each, f"reward[{key!r}]") for key, each in keyed.items()}
    return found if isinstance(reward, Mapping) else list(found.values())


def _by_name(argument: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns the values of an argument by the names of their outputs; an output without a value is left out."""
    if not isinstance(argument, Mapping):
        values = argument if isinstance(argument, list | tuple) else [argument] * len(names)
        argument = dict(zip(names, values, strict=True))
    return {name: argument[name] for name in names if argument.get(name) is not None}


def _check_has_gradient(function: RewardFunction, has_gradient: bool) -> None:
    if not has_gradient:
        why = "it is computed in Python" if function.is_python else "it is not differentiable in the outputs"
        raise RewardError(
            f"reward {function.name!r} has no gradient: {why}. Choose an estimator: compile(…, {_CHOICES})"
        )
