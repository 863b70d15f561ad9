"""Compile and fit of Keras 3, as a Program needs them.

Owns: this implementation of the contract in `__init__.py`. Does not own: models, optimizers and metrics themselves
(`tasks/keras/keras3.py`).

Keras 3 keeps the metric `loss` apart from `compute_loss`, and all metrics of `compile` in one object, whose result is a
dictionary. Both have private names only.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_trainer.program.data import check_names
from official_trainer.program.keras_fit import KerasFit
from official_trainer.tasks.keras import keras3

_DEFAULTS = {"run_eagerly": False, "steps_per_execution": 1, "jit_compile": False}
"""Of `compile`; but `auto` for `jit_compile`, where a run would depend on the machine."""


class Keras3Fit(KerasFit):
    """Compile and fit of Keras 3.

    It checks names of outputs that only a batch shows itself, and trains what is trainable when the step is traced.
    """

    MODULE = keras

    def compile(self, model: Any, arguments: Mapping[str, Any]) -> None:
        for name in ("loss", "loss_weights"):
            _check_names(model, name, arguments[name])
        model.compile(**{name: _DEFAULTS.get(name) if value is None else value for name, value in arguments.items()})

    def compiled(self, model: Any) -> Any:
        return model._loss_tracker  # the metric `loss`, which a model may leave out of its `metrics`

    def build(self, model: Any, element_spec: Any) -> None:
        """Builds the metrics of `compile` as `fit` does; there is no public way."""
        if model.distribute_strategy.num_replicas_in_sync > 1:
            model._symbolic_build(data_batch=element_spec)

    def weighted_metrics(self, model: Any) -> Any:
        return getattr(model._compile_metrics, "_user_weighted_metrics", None)

    def compute_loss(self, model: Any, batch: Sequence[Any], *, training: bool) -> Any:
        takes_training = "training" in inspect.signature(model.compute_loss).parameters  # one of the user's may not
        return model.compute_loss(*batch, **({"training": training} if takes_training else {}))

    def update_metrics(self, model: Any, batch: Sequence[Any]) -> None:
        model.compute_metrics(*batch)

    def measure_loss(self, model: Any, loss: tf.Tensor, x: Any) -> None:
        """Updates the metric `loss` as Keras's step does; `loss` is divided by the number of replicas."""
        size = tf.shape(next(tensor for tensor in tf.nest.flatten(x) if tensor is not None))[0]
        value = loss * tf.distribute.get_strategy().num_replicas_in_sync
        self.compiled(model).update_state(value, sample_weight=size)

    def minimize(self, optimizer: Any, loss: tf.Tensor, model: Any, tape: tf.GradientTape) -> None:
        with tape:
            scaled = keras3.KERAS.scale_loss(optimizer, loss)
        variables = model.trainable_variables
        gradients = tape.gradient(scaled, variables)
        keras3.KERAS.apply(optimizer, list(zip(gradients, variables, strict=True)), after=loss)

    def steps_in(self, count: int | None, steps: int | None) -> int | None:
        return steps if count is None or steps is None else min(steps, count)

    def steps_between_calls(self, model: Any) -> int:
        return int(model.steps_per_execution)

    def last_batch(self, model: Any, batch: int) -> int:
        every = self.steps_between_calls(model)
        return (batch // every + 1) * every - 1  # also where fewer batches are left

    def first_epoch_and_batch(self, model: Any, steps: int, first_epoch: int) -> tuple[int, int]:
        # The epoch that BackupAndRestore has read, and its first batch, as Keras does; there is no public name.
        return int(model._initial_epoch or first_epoch), 0

    def take_up(self, callback: Any) -> None:
        """Undoes what a callback does again to find out whether lower values are better: it negates `min_delta`."""
        if getattr(callback, "monitor_op", callback) is None:
            callback.min_delta = abs(callback.min_delta)


KERAS = Keras3Fit()


def _check_names(model: Any, argument_name: str, argument: Any) -> None:
    """Refuses names of outputs that a model does not have, if it knows its outputs before its first batch."""
    entries = argument.values() if isinstance(argument, Mapping) else argument
    is_flat = isinstance(argument, Mapping | list | tuple) and not any(map(tf.nest.is_nested, entries))
    if is_flat and model.built and getattr(model, "outputs", None) is not None:
        names = getattr(model, "output_names", None) or [model.layers[-1].name]  # of a Sequential
        check_names(argument_name, argument, names)
