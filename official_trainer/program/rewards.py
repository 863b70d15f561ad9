"""Rewards: what training maximises, each a metric of the compiled model and a loss of the weight −w in its steps.

Owns: the output, the function and the weight of each reward of `compile`, and their weighted sum for a batch. Does not
own: the metrics of a compiled model, which Keras keeps and saves, or the step (`trainer.py`).
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.lazy import tf
from official_trainer.program import keras_fit
from official_trainer.program.data import ArgumentError, check_names, names_of_outputs
from official_trainer.tasks.autograph import convert, do_not_convert


@functools.cache
def reward_class(module: Any) -> Any:
    """Returns the class of rewards of a Keras, which its files of models can hold."""

    @module.saving.register_keras_serializable("official_trainer")
    class Reward(module.metrics.MeanMetricWrapper):  # of either Keras
        """The mean of a function of targets and outputs, which training maximises.

        Attributes:
          function: returns a number for each example, or one for the batch.
          weight: of its mean in what is maximised.
          output_name: of its output; None for the only one.
        """

        direction = "max"

        def __init__(self, function: Any, weight: float = 1.0, output_name: str | None = None) -> None:
            super().__init__(function, name="reward")
            self.function, self.weight, self.output_name = function, weight, output_name

        def get_config(self) -> dict[str, Any]:
            function = module.saving.serialize_keras_object(self.function)
            return {"function": function, "weight": self.weight, "output_name": self.output_name}

        @classmethod
        def from_config(cls, config: Mapping[str, Any]) -> Any:
            function = module.saving.deserialize_keras_object(config["function"])
            return cls(**{**config, "function": function})

    return Reward


def with_rewards(model: Any, weighted_metrics: Any, reward: Any, reward_weights: Any) -> Any:
    """Returns the argument `weighted_metrics` of Keras's `compile`, with a metric for each reward.

    Args:
      model: to be compiled.
      weighted_metrics: as Keras takes it.
      reward: a function, or one for each output: a list, or a dict by output name; None for none.
      reward_weights: a number, or one for each output: a list, or a dict by output name; None for ones.

    Raises:
      ArgumentError: they do not fit the outputs of the model, or each other.
    """
    if reward is None:
        if reward_weights is not None:
            raise ArgumentError(f"{reward_weights=} has no effect without a reward; give reward=… too, or leave it out")
        return weighted_metrics
    if step := next((name for name in ("train_step", "test_step") if keras_fit.overrides(model, name)), None):
        raise ArgumentError(
            f"reward: {type(model).__name__} has its own {step}, but the steps of Program compute rewards; leave out "
            f"reward, or {step}"
        )
    module = keras_fit.of(model).MODULE
    names = names_of_outputs(model) or (sorted(reward) if isinstance(reward, Mapping) else ["output"])
    functions = _by_output("reward", reward, names)
    weights = _by_output("reward_weights", reward_weights, names)
    if isinstance(reward_weights, Mapping):
        check_names("reward_weights", reward_weights, list(functions), which="outputs with a reward")
    rewards = {}
    for name, function in functions.items():
        weight = weights.get(name, 1.0)
        if isinstance(weight, bool) or not isinstance(weight, numbers.Real) or not math.isfinite(weight):
            raise ArgumentError(f"reward_weights: {weight!r} for the output {name!r}; allowed: finite numbers")
        output = None if len(names) == 1 else name
        rewards[name] = reward_class(module)(_function(module, function), float(weight), output)
    if len(names) == 1:
        given = weighted_metrics.get(names[0]) if isinstance(weighted_metrics, Mapping) else weighted_metrics
        return [*_listed(given), *rewards.values()]
    if not isinstance(weighted_metrics, Mapping | None):
        raise ArgumentError("weighted_metrics: beside rewards of several outputs, give a dict by output name")
    check_names("weighted_metrics", weighted_metrics, names)
    given = weighted_metrics or {}
    return {name: [*_listed(given.get(name)), *_listed(rewards.get(name))] for name in names}


def rewards_of(model: Any) -> list[Any]:
    """Returns the rewards with which a model was compiled."""
    fit = keras_fit.of(model)
    metrics = tf.nest.flatten(fit.weighted_metrics(model))
    return [metric for metric in metrics if isinstance(metric, reward_class(fit.MODULE))]


@do_not_convert
def weighted_sum(model: Any, y: Any, y_pred: Any, sample_weight: Any, *, training: bool) -> tf.Tensor:
    """Returns the sum of the mean rewards of a batch times their weights, a scalar float32.

    Args:
      model: compiled.
      y: targets, in the structure of the outputs.
      y_pred: outputs.
      sample_weight: weights of the examples, for all outputs or for each; None for none.
      training: whether a step trains, so that each reward needs a gradient.

    Raises:
      ArgumentError: there are no targets, or a reward has no gradient.
    """
    if y is None:
        raise ArgumentError("y is missing: a reward is computed of targets and outputs, as a loss is")
    total = tf.constant(0.0)
    for reward in rewards_of(model):
        targets, outputs, weights = (_part(model, tree, reward.output_name) for tree in (y, y_pred, sample_weight))
        total += reward.weight * _mean(reward, targets, outputs, weights, training=training)
    return total


def _mean(reward: Any, y: Any, y_pred: Any, weight: Any, *, training: bool) -> tf.Tensor:
    if y.shape.rank is not None and y.shape.rank + 1 == y_pred.shape.rank and y_pred.shape[-1] == 1:
        y = y[..., None]  # as Keras does for losses; else [n] and [n, 1] make [n, n]
    sources = [y_pred]
    if (logits := getattr(y_pred, "_keras_logits", None)) is not None:  # with which Keras's crossentropies compute
        sources.append(logits)
    elif not tf.executing_eagerly() and y_pred.op.type in ("Softmax", "Sigmoid"):
        sources += y_pred.op.inputs
    with tf.GradientTape() as tape:
        tape.watch(sources)
        values = tf.cast(convert(reward.function)(y, y_pred), tf.float32)
        if weight is not None:
            weight = tf.cast(weight, tf.float32)
            while weight.shape.rank < (values.shape.rank or 0):
                weight = weight[..., None]
            values *= weight
        mean = tf.reduce_mean(values)
    if training and all(gradient is None for gradient in tape.gradient(mean, sources)):
        name = getattr(reward.function, "__name__", type(reward.function).__name__)
        raise ArgumentError(f"reward {name!r} has no gradient: it is not differentiable in the outputs of the model")
    return mean


def _part(model: Any, structure: Any, output: str | None) -> Any:
    """Returns what belongs to an output in targets, outputs or weights."""
    if isinstance(structure, Mapping):
        return structure.get(output) if output is not None else next(iter(structure.values()))
    if isinstance(structure, list | tuple):
        return structure[0 if output is None else list(names_of_outputs(model) or ()).index(output)]
    return structure


def _by_output(argument_name: str, argument: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns the values of an argument by the names of their outputs; an output without a value is left out."""
    check_names(argument_name, argument, names)
    if not isinstance(argument, Mapping):
        values = argument if isinstance(argument, list | tuple) else [argument] * len(names)
        argument = dict(zip(names, values, strict=True))
    return {name: value for name, value in argument.items() if value is not None}


def _listed(metrics: Any) -> list[Any]:
    if metrics is None:
        return []
    return list(metrics) if isinstance(metrics, list | tuple) else [metrics]


def _function(module: Any, reward: Any) -> Any:
    """Refuses a reward that is no function, and returns it."""
    if not callable(reward) or isinstance(reward, module.losses.Loss | module.metrics.Metric):
        raise ArgumentError(
            f"reward={reward!r}: a reward is a function of (y_true, y_pred) that returns a number for each example; "
            "give a loss as loss=…, a metric as metrics=…"
        )
    return reward
