"""What trains a reward that has no gradient: estimators, chosen by `compile(reward_estimator=…)`.

Owns: `ScoreFunction`, which draws outputs and makes those likelier that were rewarded more, and
`EvolutionStrategies`, which tries other weights. Both only need values of the reward. Does not own: the values
(`reward_function.py`), how they are weighted and summed (`rewards.py`).

All that is drawn follows from (seed, step, replica): training that was killed goes on bit for bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from official_trainer.errors import nearest
from official_trainer.lazy import keras, tf
from official_trainer.program.data import ArgumentError
from official_trainer.program.reward_function import RewardError
from official_trainer.tasks import random_streams
from official_trainer.tasks.autograph import do_not_convert

_PACKAGE = "official_trainer"

Outputs = Literal["logits", "probabilities", "gaussian"]
Baseline = Literal["leave_one_out", "none"]

Evaluate = Callable[[tf.Tensor], tf.Tensor]
"""Rewards of outputs [samples, batch, …]: [samples, batch], or [samples] if each is rewarded by one number."""


def _check_choice(place: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        near = nearest(str(value), choices)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ArgumentError(f"{place}={value!r}; allowed: {', '.join(map(repr, choices))}{hint}")


def _check_number(place: str, value: Any, least: float, kinds: Any, words: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kinds) or not value >= least or value == 0:
        raise ArgumentError(f"{place}={value!r}; allowed: {words}")


@keras.saving.register_keras_serializable(_PACKAGE)
@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreFunction:
    """REINFORCE (Williams 1992): outputs are drawn, and those that were rewarded more become likelier.

    The gradient of the expected reward is the mean of (reward - baseline) * gradient of the log-probability of what was
    drawn. The baseline of each draw is the mean reward of the other draws for the same example (Kool, van Hoof and
    Welling, 2019), which leaves the estimate unbiased.

    The reward gets what was drawn: classes (int64, without the last axis of the output), or real numbers in the
    output's shape. In an evaluation, which draws nothing, it gets the likeliest: the class with the largest output, or
    the mean of the Gaussian.

    Attributes:
      outputs: what the outputs say. `logits` or `probabilities` of classes, along the last axis; `gaussian`: means of
        Gaussians with the deviation `sigma`. One for all outputs, or a dict by output name.
      samples: draws for each example.
      baseline: `leave_one_out`, or `none` for rewards as they are, which takes many more steps.
      sigma: deviation of Gaussians; it is not trained.
    """

    outputs: Outputs | Mapping[str, Outputs] = "logits"
    samples: int = 4
    baseline: Baseline = "leave_one_out"
    sigma: float = 1.0

    def __post_init__(self) -> None:
        by_output = self.outputs if isinstance(self.outputs, Mapping) else {"": self.outputs}
        for name, kind in by_output.items():
            place = f"ScoreFunction.outputs[{name!r}]" if name else "ScoreFunction.outputs"
            _check_choice(place, kind, get_args(Outputs))
        _check_choice("ScoreFunction.baseline", self.baseline, get_args(Baseline))
        least = 2 if self.baseline == "leave_one_out" else 1
        why = ", because a baseline is the mean of the other draws" if least == 2 else ""
        _check_number("ScoreFunction.samples", self.samples, least, int, f"whole numbers from {least} on{why}")
        _check_number("ScoreFunction.sigma", self.sigma, 0.0, int | float, "numbers above 0")

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` takes."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ScoreFunction:
        """Returns the estimator again."""
        return cls(**config)

    def check_names(self, names: Sequence[str]) -> None:
        """Refuses kinds of outputs that there are not, or outputs that have none.

        Raises:
          ArgumentError: names the output.
        """
        if not isinstance(self.outputs, Mapping):
            return
        for name in self.outputs:
            _check_choice("reward_estimator: an output of ScoreFunction.outputs", name, names)
        if missing := [name for name in names if name not in self.outputs]:
            raise ArgumentError(
                f"reward_estimator: ScoreFunction.outputs says nothing of the output {missing[0]!r}; "
                f"allowed: {', '.join(get_args(Outputs))}"
            )

    @do_not_convert
    def likeliest(self, name: str, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns what is rewarded in an evaluation, of the output of a name."""
        return y_pred if self._kind(name) == "gaussian" else tf.argmax(y_pred, axis=-1)

    @do_not_convert
    def estimate(self, name: str, y_pred: tf.Tensor, mask: Any, evaluate: Evaluate) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws outputs and has them rewarded.

        Args:
          name: of the output.
          y_pred: the output, [batch, …].
          mask: Keras's mask of the output; None for none. What it leaves out becomes neither likelier nor less so.
          evaluate: the rewards of what was drawn.

        Returns:
          The mean reward, and a number whose gradient is the estimate of the gradient of the mean reward; scalars.
        """
        y_pred = tf.cast(y_pred, tf.float32)
        drawn, log_probs = self._gaussian(name, y_pred) if self._kind(name) == "gaussian" else self._class(name, y_pred)
        if mask is not None and mask.shape.rank == log_probs.shape.rank - 1:
            log_probs *= tf.cast(mask, tf.float32)
        log_probs = tf.reduce_sum(log_probs, axis=list(range(2, log_probs.shape.rank)))
        rewards = tf.stop_gradient(evaluate(drawn))
        gain = rewards
        if self.baseline == "leave_one_out":
            gain = (rewards - tf.reduce_mean(rewards, axis=0)) * (self.samples / (self.samples - 1))
        if rewards.shape.rank == 1:  # all that was drawn together has earned it
            return tf.reduce_mean(rewards), tf.reduce_mean(gain * tf.reduce_sum(log_probs, axis=1))
        return tf.reduce_mean(rewards), tf.reduce_mean(gain * log_probs)

    def _kind(self, name: str) -> str:
        return self.outputs[name] if isinstance(self.outputs, Mapping) else self.outputs

    def _gaussian(self, name: str, mean: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        shape = tf.concat([[self.samples], tf.shape(mean)], axis=0)
        noise = tf.random.stateless_normal(shape, random_streams.seed(f"score function of {name}"))
        drawn = tf.stop_gradient(mean + self.sigma * noise)
        drawn = tf.ensure_shape(drawn, [self.samples, *mean.shape])
        return drawn, -0.5 * tf.square((drawn - mean) / self.sigma)  # up to what has no gradient

    def _class(self, name: str, y_pred: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        num_classes = y_pred.shape[-1]
        if y_pred.shape.rank < 2 or num_classes == 1:
            raise RewardError(
                f"reward_estimator: the output {name!r} has the shape {tuple(y_pred.shape)}, which has no two classes "
                "along its last axis to draw from; let it have a unit for each class, or set "
                "ScoreFunction(outputs='gaussian')"
            )
        is_logits = self._kind(name) == "logits"
        log_probs = tf.nn.log_softmax(y_pred) if is_logits else tf.math.log(tf.maximum(y_pred, _TINY))
        # The largest of logits and Gumbel noise is a draw; XLA does not know TensorFlow's own stateless categories.
        shape = tf.concat([[self.samples], tf.shape(y_pred)], axis=0)
        uniform = tf.random.stateless_uniform(shape, random_streams.seed(f"score function of {name}"), minval=1e-37)
        drawn = tf.argmax(tf.stop_gradient(log_probs) - tf.math.log(-tf.math.log(uniform)), axis=-1)
        drawn = tf.ensure_shape(drawn, [self.samples, *y_pred.shape[:-1]])
        return drawn, tf.reduce_sum(tf.one_hot(drawn, num_classes) * log_probs, axis=-1)


_TINY = 1e-12  # of a probability, whose logarithm is finite then


@keras.saving.register_keras_serializable(_PACKAGE)
@dataclasses.dataclass(frozen=True, kw_only=True)
class EvolutionStrategies:
    """Evolution strategies (Salimans et al. 2017): other weights are tried, and those rewarded more are moved towards.

    The reward is smoothed by Gaussian noise on the weights, and the gradient of that is estimated from the rewards of
    `population` noisy copies: sum of reward * noise / (population * sigma). Copies come in mirrored pairs if
    `antithetic` (the same noise with both signs). All copies of a step see the same batch and draw the same random
    numbers, so that their rewards differ by their weights alone; they run as in inference, without dropout, and leave
    batch statistics alone. A step takes `population` more forward passes; models with few weights learn best.

    The reward gets the outputs as they are. The loss, if there is one, is trained by its gradient beside it.

    Attributes:
      population: copies that are tried in a step.
      sigma: deviation of the noise on each weight.
      antithetic: whether copies come in mirrored pairs.
    """

    population: int = 32
    sigma: float = 0.02
    antithetic: bool = True

    def __post_init__(self) -> None:
        _check_number("EvolutionStrategies.population", self.population, 2, int, "whole numbers from 2 on")
        _check_number("EvolutionStrategies.sigma", self.sigma, 0.0, int | float, "numbers above 0")
        if self.antithetic and self.population % 2:
            raise ArgumentError(
                f"EvolutionStrategies.population={self.population}; allowed: even numbers, for mirrored pairs; "
                "or set antithetic=False"
            )

    def get_config(self) -> dict[str, Any]:
        """Returns what `from_config` takes."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> EvolutionStrategies:
        """Returns the estimator again."""
        return cls(**config)

    def check_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Refuses several replicas, none of which may change weights that all of them share.

        Raises:
          ArgumentError: there are several.
        """
        if (replicas := strategy.num_replicas_in_sync) > 1:
            raise ArgumentError(
                "reward_estimator: EvolutionStrategies needs one replica, and the model was built under a strategy "
                f"with {replicas}; build it without, or use ScoreFunction"
            )

    @do_not_convert
    def outputs(self, model: keras.Model, x: Any, like: Any) -> Any:
        """Returns the model's outputs for `x` with the weights of each copy: [population, batch, …].

        Args:
          model: whose weights are noisy meanwhile, and the same afterwards to the last bit.
          x: the features of a batch.
          like: outputs of the model for the batch, whose structure and types these have.
        """
        variables = model.trainable_variables
        weights = [tf.identity(variable) for variable in variables]
        generators = random_streams.find_generators(model)
        states = [tf.identity(generator.state) for generator in generators]

        def of_copy(number: tf.Tensor) -> Any:
            with random_streams.again():
                for generator, state in zip(generators, states, strict=True):
                    generator.state.assign(state)
                noise = self._noise(number, variables)
                for variable, weight, change in zip(variables, weights, noise, strict=True):
                    variable.assign(weight + self.sigma * change)
                return model(x, training=False)

        spec = tf.nest.map_structure(lambda output: tf.TensorSpec(output.shape, output.dtype), like)
        found = tf.map_fn(of_copy, tf.range(self.population), fn_output_signature=spec, parallel_iterations=1)
        for variable, weight in zip(variables, weights, strict=True):
            variable.assign(weight)
        return found

    @do_not_convert
    def surrogate(self, model: keras.Model, rewards: tf.Tensor) -> tf.Tensor:
        """Returns a number whose gradient is the estimate of the gradient of the reward, from rewards [population]."""
        variables = model.trainable_variables
        # A mean of all is no baseline of one of them: to divide by one less makes up for it. In pairs it cancels out.
        share = self.sigma * (self.population if self.antithetic else self.population - 1)
        by_copy = (rewards - tf.reduce_mean(rewards)) / share

        def add(sums: list[tf.Tensor], number: tf.Tensor) -> list[tf.Tensor]:
            noise = self._noise(number, variables)
            return [total + tf.cast(by_copy[number], n.dtype) * n for total, n in zip(sums, noise, strict=True)]

        zeros = [tf.zeros(variable.shape, variable.dtype.base_dtype) for variable in variables]
        gradients = tf.foldl(add, tf.range(self.population), zeros, parallel_iterations=1)
        parts = [tf.reduce_sum(tf.stop_gradient(g) * v) for g, v in zip(gradients, variables, strict=True)]
        return tf.add_n([tf.cast(part, tf.float32) for part in parts])

    def _noise(self, number: tf.Tensor, variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
        """Returns the noise on each weight of a copy, with its sign; drawn again wherever it is needed."""
        place, sign = (number // 2, 1 - 2 * (number % 2)) if self.antithetic else (number, tf.constant(1))
        offset = tf.stack([tf.cast(place, tf.int64), tf.constant(0, tf.int64)])
        found = []
        for index, variable in enumerate(variables):
            seed = random_streams.seed(f"evolution strategies {index}") + offset
            dtype = variable.dtype.base_dtype
            found.append(tf.cast(sign, dtype) * tf.random.stateless_normal(variable.shape, seed, dtype=dtype))
        return found


RewardEstimator = ScoreFunction | EvolutionStrategies
"""What `compile(reward_estimator=…)` takes."""
