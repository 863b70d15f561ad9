"""What `compile` says of a model, and what can be computed from that at once.

Owns: Keras's `compile` with rewards, its config, losses and metrics of outputs at hand. Does not own: what
goes over data (`program.py`), what a reward is (`rewards.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import keras, tf
from official_trainer.program.data import ArgumentError
from official_trainer.program.engine import Engine
from official_trainer.program.estimators import RewardEstimator
from official_trainer.program.rewards import add_rewards, given_rewards, rewards_of
from official_trainer.program.settings import Settings

if TYPE_CHECKING:
    from official_trainer.program.experiment import ExperimentEngine


class NotCompiledError(UserError, RuntimeError):
    """A method needs what `compile` sets."""

    exit_code = ExitCode.CONFIG

    def __init__(self, method: str) -> None:
        super().__init__(f"{method}() needs an optimizer and a loss; call compile() first")


class Compiled:
    """A model that is compiled, or is going to be; a part of `Program`, not used alone.

    Attributes:
      model: the Keras model.
    """

    model: Any
    _engine: Engine
    _settings: Settings
    _experiment: ExperimentEngine | None = None

    def compile(  # noqa: PLR0913 - the signature is Keras's, with rewards
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
        loss_weights: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: bool | None = None,
        reward: Any = None,
        reward_weights: Any = None,
        reward_estimator: RewardEstimator | None = None,
    ) -> None:
        """Says what trains the model, in Keras's words; see `keras.Model.compile`.

        A reward is maximised: what is minimised, and told as `loss`, is the loss minus the reward.

        Args:
          optimizer: an optimizer, or its name or config.
          loss: a loss or its name, or one for each output.
          metrics: metrics or their names, or some for each output.
          loss_weights: weights of the outputs' losses.
          weighted_metrics: metrics that sample weights count in.
          run_eagerly: whether steps are run in Python, not traced.
          steps_per_execution: steps from one call of callbacks for batches to the next. How many steps run at once
            is the engine's own business.
          jit_compile: whether XLA compiles training steps, as `runtime.enable_xla` has it; once for each batch size.
          reward: a function of (y_true, y_pred) that returns a number for each example, a `PythonReward`, an
            `async def` or a name; or one for each output, as a list or a dict by output name.
          reward_weights: weights of the outputs' rewards: a number, a list, or a dict by output name.
          reward_estimator: `ScoreFunction` or `EvolutionStrategies`, for rewards that have no gradient.

        Raises:
          ArgumentError: rewards do not fit the model, or each other.
          RewardError: a reward of Python has no estimator.
        """
        settings = dict(locals())
        settings.pop("self")
        if self._experiment is not None:
            raise ArgumentError(
                "compile: an experiment says what trains its model; use from_experiment(params_override=…)"
            )
        settings["optimizer"] = self._settings.optimizer(optimizer)
        of_rewards = {name: settings.pop(name) for name in ("reward", "reward_weights", "reward_estimator")}
        with self._engine.scope():
            rewards = given_rewards(self.model, **of_rewards)
            self.model.compile(**settings)
            if rewards is not None:
                add_rewards(self.model, rewards)

    def get_compile_config(self) -> dict[str, Any]:
        """Returns what was compiled as JSON takes it, for `compile_from_config`."""
        of_rewards = {} if (rewards := rewards_of(self.model)) is None else rewards.given
        serialized = {name: keras.saving.serialize_keras_object(value) for name, value in of_rewards.items()}
        return {**self.model.get_compile_config(), **serialized}

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compiles with what `get_compile_config` has returned."""
        known = {key: keras.saving.deserialize_keras_object(value) for key, value in config.items()}
        self.compile(**known)

    @property
    def metrics(self) -> list[Any]:
        """The model's metrics, losses included."""
        return list(self.model.metrics)

    @property
    def metrics_names(self) -> list[str]:
        """The names of `metrics`."""
        return list(self.model.metrics_names)

    @property
    def stop_training(self) -> bool:
        """Whether somebody has asked that `fit` ends."""
        return bool(self.model.stop_training)

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        self.model.stop_training = value

    # Outputs at hand.

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> tf.Tensor:
        """Returns the loss of outputs, minus their reward, and adds it up; see `keras.Model.compute_loss`."""
        loss = self.model.compute_loss(x, y, y_pred, sample_weight)
        rewards = rewards_of(self.model)
        return loss if rewards is None else rewards.evaluated(loss, (x, y, sample_weight), y_pred, self.model)

    def compute_reward(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> tf.Tensor:
        """Returns the weighted sum of the rewards of outputs, a scalar float32, as an evaluation computes it.

        Args:
          x: features; no reward looks at them.
          y: targets; None if rewards need none.
          y_pred: outputs of the model.
          sample_weight: weights of the examples.

        Raises:
          ArgumentError: `compile` was given no reward.
        """
        if (rewards := rewards_of(self.model)) is None:
            raise ArgumentError("compute_reward: the program has no reward; give compile one by reward=")
        with self._engine.scope():
            return rewards.value(*tf.nest.map_structure(_as_tensor, (y, y_pred, sample_weight)))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Adds outputs to the metrics, and returns what these say then; see `keras.Model.compute_metrics`."""
        return dict(self.model.compute_metrics(x, y, y_pred, sample_weight))

    def get_metrics_result(self) -> dict[str, Any]:
        """Returns what the metrics say now, by name."""
        return dict(self.model.get_metrics_result())

    def _check_compiled(self, method: str) -> None:
        if getattr(self.model, "optimizer", None) is None:
            raise NotCompiledError(method)


def _as_tensor(value: Any) -> Any:
    return None if value is None else tf.convert_to_tensor(value)
