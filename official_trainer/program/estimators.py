"""Estimators: gradients for rewards that have none, chosen by `compile(reward_estimator=…)`.

Owns: `ScoreFunction`, which samples outputs and makes those with a higher reward likelier, and `EvolutionStrategies`,
which tries other weights. Both need only values of the reward. Does not own: the values (`reward_function.py`), how
they are weighted and summed (`rewards.py`).

All samples follow from (seed, step, replica), so training that was killed continues with the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from official_trainer.lazy import keras, tf
from official_trainer.nearest import nearest
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


@dataclasses.dataclass(frozen=True)
class _Serializable:
    """An estimator in the config of `compile`."""

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments for `from_config`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Returns the estimator of such a config."""
        return cls(**config)


@keras.saving.register_keras_serializable(_PACKAGE)
@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreFunction(_Serializable):
    """REINFORCE (Williams 1992): outputs are sampled, and those with a higher reward become likelier.

    The gradient of the expected reward is the mean of (reward - baseline) * gradient of the log-probability of the
    sample. The baseline of each sample is the mean reward of the other samples for the same example (Kool, van Hoof and
    Welling, 2019), which keeps the estimate unbiased.

    The reward gets the samples: classes (int64, without the last axis of the output), or real numbers in the output's
    shape. An evaluation samples nothing, and the reward gets the likeliest output: the class with the largest output,
    or the mean of the Gaussian.

    Attributes:
      outputs: the meaning of the outputs. `logits` or `probabilities` of classes, along the last axis; `gaussian`:
        means of Gaussians with the deviation `sigma`. One for all outputs, or a dict by output name.
      samples: samples for each example.
      baseline: `leave_one_out`, or `none` for unchanged rewards, which needs many more steps.
      sigma: deviation of Gaussians; it is not trained.

    Example:
      >>> import numpy as np
      >>> from official_trainer.lazy import keras, tf
      >>> from official_trainer.program import Program, ScoreFunction
      >>> def is_right(y_true, y_pred):  # y_pred: classes that were sampled, int64 [batch]
      ...     return tf.cast(tf.equal(tf.reshape(y_true, [-1]), y_pred), tf.float32)
      >>> x = np.eye(4, dtype="float32").repeat(16, axis=0)
      >>> program = Program(lambda: keras.Sequential([keras.Input([4]), keras.layers.Dense(4)]), seed=7)
      >>> program.compile(keras.optimizers.Adam(0.1), reward=is_right, reward_estimator=ScoreFunction(samples=8))
      >>> rewards = program.fit(x, x.argmax(axis=1), epochs=20, verbose=0).history["reward"]
      >>> rewards[-1] > 0.9
      True
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
        why = ", because a baseline is the mean of the other samples" if least == 2 else ""
        _check_number("ScoreFunction.samples", self.samples, least, int, f"whole numbers from {least} on{why}")
        _check_number("ScoreFunction.sigma", self.sigma, 0.0, int | float, "numbers above 0")

    def check_names(self, names: Sequence[str]) -> None:
        """Refuses kinds of outputs that do not exist, and outputs without a kind.

        Raises:
          ArgumentError: names the output.
        """
        if not isinstance(self.outputs, Mapping):
            return
        for name in self.outputs:
            _check_choice("reward_estimator: an output of ScoreFunction.outputs", name, names)
        if missing := [name for name in names if name not in self.outputs]:
            raise ArgumentError(
                f"reward_estimator: ScoreFunction.outputs has no entry for the output {missing[0]!r}; "
                f"allowed: {', '.join(get_args(Outputs))}"
            )

    @do_not_convert
    def likeliest(self, name: str, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns the likeliest sample of an output, whose reward an evaluation computes."""
        return y_pred if self._kind(name) == "gaussian" else tf.argmax(y_pred, axis=-1)

    @do_not_convert
    def estimate(
        self, output: tuple[int, str], y_pred: tf.Tensor, mask: Any, evaluate: Evaluate
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Samples outputs and computes their rewards.

        Args:
          output: its position among the outputs, and its name. The position decides which random numbers are drawn:
            Keras numbers the names of unnamed layers by how many there were in the process.
          y_pred: the output, [batch, …].
          mask: Keras's mask of the output; None for none. Masked elements become neither more nor less likely.
          evaluate: returns the rewards of samples.

        Returns:
          The mean reward, and a number whose gradient is the estimate of the gradient of the mean reward; scalars.
        """
        y_pred, (position, name) = tf.cast(y_pred, tf.float32), output
        seed = random_streams.seed(f"score function of output {position}")
        if self._kind(name) == "gaussian":
            noise = tf.random.stateless_normal(tf.concat([[self.samples], tf.shape(y_pred)], axis=0), seed)
            drawn = tf.ensure_shape(tf.stop_gradient(y_pred + self.sigma * noise), [self.samples, *y_pred.shape])
            log_probs = -0.5 * tf.square((drawn - y_pred) / self.sigma)  # without the constant, which has no gradient
        else:
            drawn, log_probs = self._class(name, y_pred, seed)
        if mask is not None and mask.shape.rank == log_probs.shape.rank - 1:
            log_probs *= tf.cast(mask, tf.float32)
        log_probs = tf.reduce_sum(log_probs, axis=list(range(2, log_probs.shape.rank)))
        rewards = tf.stop_gradient(evaluate(drawn))
        gain = rewards
        if self.baseline == "leave_one_out":
            gain = (rewards - tf.reduce_mean(rewards, axis=0)) * (self.samples / (self.samples - 1))
        if rewards.shape.rank == 1:  # one reward for the samples of a whole batch
            return tf.reduce_mean(rewards), tf.reduce_mean(gain * tf.reduce_sum(log_probs, axis=1))
        return tf.reduce_mean(rewards), tf.reduce_mean(gain * log_probs)

    def _kind(self, name: str) -> str:
        return self.outputs[name] if isinstance(self.outputs, Mapping) else self.outputs

    def _class(self, name: str, y_pred: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        num_classes = y_pred.shape[-1]
        if y_pred.shape.rank < 2 or num_classes == 1:
            raise RewardError(
                f"reward_estimator: the output {name!r} has the shape {tuple(y_pred.shape)}, but sampling needs "
                "at least two classes along its last axis; give it a unit for each class, or set "
                "ScoreFunction(outputs='gaussian')"
            )
        is_logits = self._kind(name) == "logits"
        log_probs = tf.nn.log_softmax(y_pred) if is_logits else tf.math.log(tf.maximum(y_pred, _TINY))
        # The argmax of logits plus Gumbel noise is a sample; XLA lacks TensorFlow's stateless_categorical.
        shape = tf.concat([[self.samples], tf.shape(y_pred)], axis=0)
        uniform = tf.random.stateless_uniform(shape, seed, minval=1e-37)
        drawn = tf.argmax(tf.stop_gradient(log_probs) - tf.math.log(-tf.math.log(uniform)), axis=-1)
        drawn = tf.ensure_shape(drawn, [self.samples, *y_pred.shape[:-1]])
        return drawn, tf.reduce_sum(tf.one_hot(drawn, num_classes) * log_probs, axis=-1)


_TINY = 1e-12  # the smallest probability, so that logarithms are finite


@keras.saving.register_keras_serializable(_PACKAGE)
@dataclasses.dataclass(frozen=True, kw_only=True)
class EvolutionStrategies(_Serializable):
    """Evolution strategies (Salimans et al. 2017): tries other weights, and moves towards those with higher rewards.

    The reward is smoothed by Gaussian noise on the weights, and the gradient of that is estimated from the rewards of
    `population` noisy copies: sum of reward * noise / (population * sigma). Copies come in mirrored pairs if
    `antithetic` (the same noise with both signs). All copies of a step see the same batch and the same random numbers,
    so that only their weights make their rewards differ; they run as in inference, without dropout, and do not change
    batch statistics. A step needs `population` more forward passes; models with few weights learn best.

    The reward gets the unchanged outputs. A loss is trained too, by its own gradient.

    Attributes:
      population: copies that are tried in a step.
      sigma: deviation of the noise on each weight.
      antithetic: whether copies come in mirrored pairs.

    Example:
      >>> import numpy as np
      >>> from official_trainer.lazy import keras, tf
      >>> from official_trainer.program import EvolutionStrategies, Program
      >>> def share_of_hits(y_true, y_pred):  # has no gradient
      ...     return tf.reduce_mean(tf.cast(tf.abs(y_true - y_pred) < 0.5, tf.float32), axis=-1)
      >>> x = np.linspace(-1, 1, 64, dtype="float32")[:, None]
      >>> program = Program(lambda: keras.Sequential([keras.Input([1]), keras.layers.Dense(1)]), seed=7)
      >>> estimator = EvolutionStrategies(population=16, sigma=0.1)
      >>> program.compile(keras.optimizers.SGD(0.2), reward=share_of_hits, reward_estimator=estimator)
      >>> rewards = program.fit(x, 3 * x, epochs=20, verbose=0).history["reward"]
      >>> rewards[-1] > rewards[0]
      True
    """

    population: int = 32
    sigma: float = 0.02
    antithetic: bool = True

    def __post_init__(self) -> None:
        _check_number("EvolutionStrategies.population", self.population, 2, int, "whole numbers from 2 on")
        _check_number("EvolutionStrategies.sigma", self.sigma, 0.0, int | float, "numbers above 0")
        if self.antithetic and self.population % 2:
            raise ArgumentError(
                f"EvolutionStrategies.population={self.population}; allowed: even numbers, for mirrored pairs; or set "
                "antithetic=False"
            )

    def check_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Refuses several replicas: they share the weights, so that none of them can try others.

        Raises:
          ArgumentError: there are several replicas.
        """
        if (replicas := strategy.num_replicas_in_sync) > 1:
            raise ArgumentError(
                "reward_estimator: EvolutionStrategies needs one replica, but the model was built under a strategy "
                f"with {replicas}; build it without a strategy, or use ScoreFunction"
            )

    @do_not_convert
    def outputs(self, model: keras.Model, x: Any, like: Any) -> Any:
        """Returns the model's outputs for `x` with the weights of each copy: [population, batch, …].

        Args:
          model: its weights are noisy during the call, and have the same bits before and after.
          x: the features of a batch.
          like: outputs of the model for the batch; the result has their structure and types.
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
        """Returns a number whose gradient is the estimate of the gradient of the reward.

        Args:
          model: the model.
          rewards: of the copies, `[population]`.
        """
        variables = model.trainable_variables
        # The mean includes the copy itself, which biases it as a baseline: dividing by one less corrects that. In
        # pairs the baseline cancels out.
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
        """Returns the noise on each weight of a copy, with its sign; computed again wherever it is needed."""
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
