"""The Task of a compiled model: its loss, metrics and rewards as steps of the engine.

Owns: a training step and an evaluation step made of Keras's own pieces (`compute_loss`, `compute_metrics`), so that
their numbers are Keras's; a model's own `train_step` and `test_step` are called in their place; the numbers that
callbacks get. Does not own: data (`data.py`), what rewards add to a step (`rewards.py`), or when a step runs
(`engine/loop.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from official_trainer.lazy import keras, tf
from official_trainer.program.data import CallData, share_of
from official_trainer.program.rewards import rewards_of
from official_trainer.tasks import optimization
from official_trainer.tasks.autograph import convert, do_not_convert
from official_trainer.tasks.task import Task

BESIDE_METRICS = ("batch_loss", "smoothed_loss", "learning_rate")
"""Logs of training that the engine adds to the loss and the metrics; Keras has none of them."""


class ProgramTask(Task):
    """Trains a compiled model on the data of the call that runs."""

    metric_directions: ClassVar[Mapping[str, str]] = {"loss": "min"}  # Keras's mean of it declares none

    def __init__(self, params: Any, model: keras.Model, data: CallData) -> None:
        super().__init__(params)
        self._model, self._data = model, data
        self._own: dict[bool, dict[str, tf.Variable]] = {True: {}, False: {}}  # of training, and of evaluations

    def build_model(self) -> keras.Model:
        """Returns the compiled model."""
        return self._model

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        """Returns the batches of the call that runs: endless to train on, one pass to evaluate on."""
        source = self._data.of(params)
        assert source is not None
        return source.build_inputs(params, input_context, weighted=params.is_training)

    @do_not_convert
    def train_step(
        self, inputs: Any, model: keras.Model, optimizer: keras.optimizers.Optimizer, metrics: Any = None
    ) -> dict[str, Any]:
        """Runs Keras's training step, or the model's own."""
        inputs, share = share_of(inputs)
        if self._has_own_step:
            logs = self._keep(True, convert(model.train_step)(inputs))
        else:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(inputs)
            rewards = rewards_of(model)
            with tf.GradientTape() as tape:
                outputs = model(x, training=True)
                loss = convert(model.compute_loss)(x, y, outputs, weight)
                if rewards is not None:
                    loss = rewards.trained(loss, (x, y, weight), outputs, model)
                updated = loss if share is None or _adds_up(model) else loss * share
            optimization.minimize(optimizer, updated, model.trainable_variables, tape)
            self._update_metrics(True, (x, y, outputs, weight))
            logs = {self.loss: loss}
        return logs

    @do_not_convert
    def validation_step(self, inputs: Any, model: keras.Model, metrics: Any = None) -> dict[str, Any]:
        """Runs Keras's evaluation step, or the model's own."""
        if type(model).test_step is not keras.Model.test_step:
            return self._keep(False, convert(model.test_step)(inputs))
        x, y, weight = keras.utils.unpack_x_y_sample_weight(inputs)
        outputs = model(x, training=False)
        loss = convert(model.compute_loss)(x, y, outputs, weight)
        rewards = rewards_of(model)
        if rewards is not None:
            loss = rewards.evaluated(loss, (x, y, weight), outputs, model)
        self._update_metrics(False, (x, y, outputs, weight))
        return {self.loss: loss}

    def _update_metrics(self, training: bool, batch: tuple[Any, Any, Any, Any]) -> None:
        model = self._model
        if type(model).compute_metrics is not keras.Model.compute_metrics:
            self._keep(training, convert(model.compute_metrics)(*batch))
        else:
            _, y, outputs, weight = batch
            model.compiled_metrics.update_state(y, outputs, weight)  # computes no results, which are not needed here

    def _keep(self, training: bool, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Keeps the results of a model's own step; returns the loss for the engine."""
        for name, value in logs.items():
            value = tf.convert_to_tensor(value)
            if name not in self._own[training]:
                # Results of metrics are equal on all replicas; other numbers differ.
                aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
                if value.dtype.is_floating:
                    aggregation = tf.VariableAggregation.MEAN
                with tf.init_scope():
                    self._own[training][name] = tf.Variable(
                        tf.zeros(value.shape, value.dtype),
                        trainable=False,
                        synchronization=tf.VariableSynchronization.ON_READ,
                        aggregation=aggregation,
                    )
            self._own[training][name].assign(value)
        return {self.loss: tf.cast(logs.get(self.loss, 0.0), tf.float32)}

    @property
    def _has_own_step(self) -> bool:
        return type(self._model).train_step is not keras.Model.train_step

    # The numbers that callbacks and the history get, under Keras's names.

    def reported(self, logs: Mapping[str, Any], *, training: bool) -> dict[str, Any]:
        """Returns the entries of flat logs for callbacks and the history, in Keras's order."""
        if own := self._own[training]:
            return {name: logs[name] for name in own if name in logs}
        if training and self._has_own_step:  # its names are unknown until it runs after a restart
            return {name: value for name, value in logs.items() if name not in ("training_loss", *BESIDE_METRICS)}
        found: dict[str, Any] = {}
        for metric in self._model.metrics:
            if metric.name in logs:
                found[metric.name] = logs[metric.name]
            inner = {name.removeprefix(f"{metric.name}/"): name for name in logs if name.startswith(f"{metric.name}/")}
            found |= {name: logs[key] for name, key in inner.items()}  # of a metric with several numbers
        return found

    def evaluated(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the same for the logs that an evaluation has returned."""
        del logs  # the metrics still have them
        return self.current(training=False)

    def current(self, *, training: bool) -> dict[str, Any]:
        """Returns the current results of the metrics: numbers of Python, or arrays."""
        found = self._model.get_metrics_result()
        own = self.of_own_step(training=training)
        return own or {name: _of_python(value) for name, value in found.items()}

    def of_own_step(self, *, training: bool) -> dict[str, Any]:
        """Returns the last results of a model's own step; empty for Keras's steps, which return all metrics."""
        return {name: _of_python(variable) for name, variable in self._own[training].items()}

    def reset_training(self) -> None:
        """Resets the metrics of training."""
        self._model.reset_metrics()


def _of_python(value: Any) -> Any:
    value = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    return value.item() if value.ndim == 0 else value


def _adds_up(model: keras.Model) -> bool:
    """Whether a loss is a sum over examples: then the losses of parts are summed, without weights."""
    losses = tf.nest.flatten(model.compiled_loss._losses)
    return any(getattr(loss, "reduction", None) == keras.losses.Reduction.SUM for loss in losses)
