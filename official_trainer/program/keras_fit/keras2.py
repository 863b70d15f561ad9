"""Compile and fit of tf_keras, that is Keras 2, as a Program needs them.

Owns: this implementation of the contract in `__init__.py`. Does not own: the import of tf_keras (`lazy.py`), rewards
(`program/rewards.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.lazy import keras, load, tf
from official_trainer.program.data import ArgumentError, check_names, names_of_outputs
from official_trainer.program.rewards import LossesWithRewards, Rewards, added_by_layers, has_reward_layers
from official_trainer.tasks.autograph import convert
from official_trainer.tasks.keras import keras2

training_utils: Any = load("tf_keras.src.engine.training_utils")  # it has no public name

MODULE = keras


def compile(model: Any, arguments: Mapping[str, Any]) -> None:
    """Compiles a model."""
    model.compile(**arguments)
    check_outputs(model)


def compiled(model: Any) -> Any:
    """Returns the container of the losses."""
    return model.compiled_loss


def build(model: Any, element_spec: Any) -> None:
    """Does nothing: containers of tf_keras create theirs in a traced step."""


def check_outputs(model: Any) -> None:
    """Refuses losses, their weights and metrics for other outputs than the model has.

    Of a model whose outputs only a batch shows, they are checked after the first.

    Raises:
      ArgumentError: names the argument, and the outputs.
    """
    losses, metrics = model.compiled_loss, model.compiled_metrics
    names = losses._output_names if model.outputs is None else names_of_outputs(model)
    if names is None:
        return
    of_losses = {"loss": losses._user_losses, "loss_weights": losses._user_loss_weights}
    of_metrics = {"metrics": metrics._user_metrics, "weighted_metrics": metrics._user_weighted_metrics}
    for place, argument in {**of_losses, **of_metrics}.items():
        if place in of_losses or isinstance(argument, Mapping):  # a list of metrics may be for one output, or for all
            check_names(place, argument, names)


def build_rewards(model: Any, arguments: Mapping[str, Any], *, is_overridden: bool) -> Any:
    """Returns the rewards of a model."""
    idle = [f"{name}={value!r}" for name, value in arguments.items() if value is not None]
    if arguments["reward"] is None and idle and not is_overridden:
        raise ArgumentError(f"{idle[0]} has no effect without a reward; give reward=… too, or leave it out")
    has_rewards = arguments["reward"] is not None or is_overridden or has_reward_layers(model)
    return Rewards(model, **arguments, is_overridden=is_overridden) if has_rewards else None


def attach_rewards(model: Any, rewards: Any) -> None:
    """Puts rewards beside the losses."""
    model.compiled_loss = LossesWithRewards(model, rewards)


def rewards_of_layers(model: Any) -> list[Any]:
    """Returns the rewards that layers have added."""
    return added_by_layers(model)


def with_fixed_scale(optimizer: Any, scale: Any) -> Any:
    """Returns an optimizer with a loss scale."""
    inner = keras.optimizers.get(optimizer)
    return keras.mixed_precision.LossScaleOptimizer(inner, dynamic=False, initial_scale=scale)


def compute_loss(model: Any, batch: Sequence[Any], *, training: bool) -> Any:
    """Returns the result of `compute_loss`."""
    return convert(model.compute_loss)(*batch)


def update_metrics(model: Any, batch: Sequence[Any]) -> None:
    """Updates the metrics; computes no results, which are not needed in a step."""
    model.compiled_metrics.update_state(*batch[1:])


def measure_loss(model: Any, loss: tf.Tensor, x: Any) -> None:
    """Does nothing: `compute_loss` does it."""


def minimize(optimizer: Any, loss: tf.Tensor, model: Any, tape: tf.GradientTape) -> None:
    """Updates the weights."""
    keras2.minimize(optimizer, loss, model.trainable_variables, tape)


def adds_up(model: Any) -> bool:
    """Whether a loss is a sum over examples."""
    losses = tf.nest.flatten(model.compiled_loss._losses)
    return any(getattr(loss, "reduction", None) == keras.losses.Reduction.SUM for loss in losses)


def count(model: Any, *, training: bool) -> None:
    """Counts a step."""
    _counter(model, training).assign_add(1)


def reset_count(model: Any, *, training: bool) -> None:
    """Sets the counter to 0."""
    _counter(model, training).assign(0)


def _counter(model: Any, training: bool) -> Any:
    return model._train_counter if training else model._test_counter  # callbacks of tf_keras read them


def as_compiled(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns tf_keras's own context."""
    context: contextlib.AbstractContextManager[Any] = training_utils.RespectCompiledTrainableState(model)
    return context


def steps_between_calls(model: Any) -> int:
    """Returns `steps_per_execution`."""
    steps = model._steps_per_execution  # of a model that is not compiled, None
    return 1 if steps is None else int(steps.numpy())


def first_place(model: Any, steps: int, first_epoch: int) -> tuple[int, int]:
    """Returns where a backup of Keras's ends."""
    epoch, batch = model._maybe_load_initial_counters_from_ckpt(steps, first_epoch)
    return int(epoch), int(batch)


def looks_at_batches(callback: Any, *, training: bool) -> bool:
    """Whether a callback looks at batches, as tf_keras asks it."""
    looks = callback._implements_train_batch_hooks if training else callback._implements_test_batch_hooks
    return bool(looks())


def take_up(callback: Any) -> None:
    """Does nothing."""


def names(metric: Any) -> dict[str, str]:
    """Returns the name of a metric."""
    return {metric.name: metric.name}


def results(model: Any) -> dict[str, Any]:
    """Returns the results."""
    return dict(model.get_metrics_result())


def names_in_order(model: Any) -> list[str]:
    """Returns the names of the metrics."""
    return list(model.metrics_names)
