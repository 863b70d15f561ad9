"""Compile and fit of Keras 3, as a Program needs them.

Owns: this implementation of the contract in `__init__.py`. Does not own: models, optimizers and metrics themselves
(`tasks/keras/keras3.py`).

Keras 3 keeps the metric `loss` apart from `compute_loss`, and all metrics of `compile` in one object, whose result is a
dictionary. Both have private names only.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_trainer.program.data import ArgumentError, check_names
from official_trainer.tasks.keras import keras3
from official_trainer.tasks.metrics import inner_metrics

MODULE = keras

_DEFAULTS = {"run_eagerly": False, "steps_per_execution": 1, "jit_compile": False}
"""Of `compile`; but `auto` for `jit_compile`, where a run would depend on the machine."""

_BATCHES = {True: ("on_train_batch_begin", "on_train_batch_end"), False: ("on_test_batch_begin", "on_test_batch_end")}
_OF_BATCHES = ("on_batch_begin", "on_batch_end")  # which those of training call


def compile(model: Any, arguments: Mapping[str, Any]) -> None:
    """Compiles a model."""
    for place in ("loss", "loss_weights", "metrics", "weighted_metrics"):
        if place.startswith("loss") or isinstance(arguments[place], Mapping):
            _check_names(model, place, arguments[place])
    model.compile(**{name: _DEFAULTS.get(name) if value is None else value for name, value in arguments.items()})


def _check_names(model: Any, place: str, argument: Any) -> None:
    """Refuses names of outputs that a model does not have, if it knows its outputs before its first batch."""
    entries = argument.values() if isinstance(argument, Mapping) else argument
    is_flat = isinstance(argument, Mapping | list | tuple) and not any(
        isinstance(each, Mapping | tuple) or (isinstance(each, list) and place.startswith("loss")) for each in entries
    )
    if is_flat and model.built and getattr(model, "outputs", None) is not None:
        check_names(place, argument, getattr(model, "output_names", None) or [model.layers[-1].name])  # of a Sequential


def compiled(model: Any) -> Any:
    """Returns the metric `loss`, which a model may leave out of its `metrics`."""
    return model._loss_tracker


def build(model: Any, element_spec: Any) -> None:
    """Builds the metrics of `compile` as `fit` does; there is no public way."""
    if model.distribute_strategy.num_replicas_in_sync > 1:
        model._symbolic_build(data_batch=element_spec)


def check_outputs(model: Any) -> None:
    """Does nothing: Keras 3 has checked its arguments when the first batch came, and its error names them."""


def build_rewards(model: Any, arguments: Mapping[str, Any], *, is_overridden: bool) -> Any:
    """Refuses rewards."""
    given = [name for name, value in arguments.items() if value is not None]
    if given or is_overridden:
        what = given[0] if given else "compute_reward"
        raise ArgumentError(
            f"{what}: rewards are for models of tf_keras (`from official_trainer.lazy import keras`), and "
            f"{type(model).__name__} is of Keras 3; give the negative of a reward that has a gradient as a loss"
        )


def attach_rewards(model: Any, rewards: Any) -> None:
    """Is not called: there are none."""


def rewards_of_layers(model: Any) -> list[Any]:
    """Returns none."""
    return []


def with_fixed_scale(optimizer: Any, scale: Any) -> Any:
    """Refuses it: Keras 3 has only scales that change."""
    raise ArgumentError(
        f"runtime.loss_scale={scale}: the loss scale of Keras 3 changes; leave it out, or give "
        f"compile(optimizer=keras.optimizers.LossScaleOptimizer(…, initial_scale={scale}))"
    )


def compute_loss(model: Any, batch: Sequence[Any], *, training: bool) -> Any:
    """Returns the result of `compute_loss`; one of the user's may not take `training`."""
    takes_training = "training" in inspect.signature(model.compute_loss).parameters
    return model.compute_loss(*batch, **({"training": training} if takes_training else {}))


def update_metrics(model: Any, batch: Sequence[Any]) -> None:
    """Updates the metrics."""
    model.compute_metrics(*batch)


def measure_loss(model: Any, loss: tf.Tensor, x: Any) -> None:
    """Updates the metric `loss` as Keras's step does; `loss` is divided by the number of replicas."""
    size = tf.shape(next(each for each in tf.nest.flatten(x) if each is not None))[0]
    value = loss * tf.distribute.get_strategy().num_replicas_in_sync
    compiled(model).update_state(value, sample_weight=size)


def minimize(optimizer: Any, loss: tf.Tensor, model: Any, tape: tf.GradientTape) -> None:
    """Updates the weights."""
    with tape:
        scaled = keras3.scale_loss(optimizer, loss)
    variables = model.trainable_variables
    gradients = tape.gradient(scaled, variables)
    keras3.apply(optimizer, list(zip(gradients, variables, strict=True)), after=loss)


def adds_up(model: Any) -> bool:
    """Whether a loss is a sum over examples."""
    return any(getattr(loss, "reduction", None) == "sum" for loss in tf.nest.flatten(model.loss))


def count(model: Any, *, training: bool) -> None:
    """Does nothing: callbacks of Keras 3 count themselves."""


def reset_count(model: Any, *, training: bool) -> None:
    """Does nothing."""


def as_compiled(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a context without effect: Keras 3 trains what is trainable when the step is traced."""
    return contextlib.nullcontext()


def steps_between_calls(model: Any) -> int:
    """Returns `steps_per_execution`."""
    return int(model.steps_per_execution)


def first_place(model: Any, steps: int, first_epoch: int) -> tuple[int, int]:
    """Returns the epoch that `BackupAndRestore` has read, and its first batch, as Keras does."""
    return int(model._initial_epoch or first_epoch), 0  # there is no public name


def looks_at_batches(callback: Any, *, training: bool) -> bool:
    """Whether a callback has a method for batches of its own, also as an attribute; or says so itself."""
    said = getattr(callback, "_implements_train_batch_hooks" if training else "_implements_test_batch_hooks", None)
    if said is not None:
        return bool(said())
    names = (*_BATCHES[training], *(_OF_BATCHES if training else ()))
    return any(
        getattr(method := getattr(callback, name), "__func__", method) is not getattr(keras.callbacks.Callback, name)
        for name in names
    )


def take_up(callback: Any) -> None:
    """Undoes what a callback does again when it finds out whether lower values are better: it negates `min_delta`."""
    if getattr(callback, "monitor_op", callback) is None:
        callback.min_delta = abs(callback.min_delta)


def names(metric: Any) -> dict[str, str]:
    """Returns the name of a metric, or the names of all metrics of `compile`, of which one may have several numbers."""
    if inner_metrics(metric) == [metric]:
        return {metric.name: metric.name}
    found: dict[str, str] = {}
    for name, value in metric.result().items():
        found |= {inner: f"{name}/{inner}" for inner in value} if isinstance(value, Mapping) else {name: name}
    return found


def results(model: Any) -> dict[str, Any]:
    """Returns the results; those of a metric with several numbers under their own names, as callbacks get them."""
    found: dict[str, Any] = {}
    for name, value in model.get_metrics_result().items():
        found |= value if isinstance(value, Mapping) else {name: value}
    return found


def names_in_order(model: Any) -> list[str]:
    """Returns the names of metrics, without those of outputs, as Keras does."""
    return [each.name for metric in model.metrics for each in inner_metrics(metric)]
