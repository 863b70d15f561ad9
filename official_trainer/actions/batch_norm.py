"""Recalibration of batch-norm statistics over many batches, with weights that do not change.

Owns: which layers have such statistics, and the mean and variance over all inputs of a layer.
Does not own: the weights of the model, or restoring them (`average_checkpoints.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.autograph import engine_function
from official_trainer.tasks.random_streams import RandomStreams
from official_trainer.tasks.task import split_inputs


class BatchNormError(UserError, ValueError):
    """There are no batch-norm statistics to compute."""

    exit_code = ExitCode.CONFIG


def trained_layers(model: Any) -> list[Any]:
    """Returns the batch-norm layers of `model` whose statistics training changes: all that are not frozen."""
    names = ("moving_mean", "moving_variance", "axis")
    layers = {id(layer): layer for layer in kerases.of(model).layers(model) if getattr(layer, "trainable", False)}
    return [layer for layer in layers.values() if all(hasattr(layer, name) for name in names)]


class BatchNormStatistics:
    """The statistics of the batch-norm layers of a model over given batches.

    Each layer normalises as in training, over the batch of its replica. The result is the mean and the variance over
    all inputs of a layer together: over all batches and replicas, with the same weight for each example. So it is not a
    moving average, and not a mean of the variances of batches.
    """

    def __init__(self, model: Any, strategy: tf.distribute.Strategy, streams: RandomStreams) -> None:
        """Takes the model; its layers are collected once.

        Args:
          model: built under `strategy`.
          strategy: distributes a batch.
          streams: of the layers that draw (dropout).

        Raises:
          BatchNormError: no layer has statistics that training changes.
        """
        layers = trained_layers(model)
        if not layers:
            raise BatchNormError(
                f"the model {model.name} has no batch-norm layer that is trained, so there is nothing to recalibrate; "
                "leave recalibrate_batch_norm out"
            )
        with strategy.scope():
            self._pools = [_Pool(layer) for layer in layers]

        def on_replica(batch: Any, step: tf.Tensor) -> None:
            streams.begin_step(step)
            features, _ = split_inputs(batch)
            model(features, training=True)

        def run(batch: Any, step: tf.Tensor) -> None:
            strategy.run(on_replica, args=(batch, step))

        self._run = tf.function(engine_function(run))

    def measure(self, batches: Iterable[Any], step: int) -> int:
        """Runs the model over `batches` in training mode; returns their number.

        The model is called with the features of a batch and `training=True`, as in `Task.train_step`. Layers may change
        their own variables in training mode; restore these before `assign`.

        Args:
          batches: distributed.
          step: random layers draw as in the steps after it.

        Raises:
          BatchNormError: no layer had any input.
        """
        for pool in self._pools:
            pool.reset()
            pool.layer.call = _recorded(pool.layer.call, pool)
        count = 0
        try:
            for batch in batches:
                self._run(batch, tf.constant(step + count, tf.int64))
                count += 1
        finally:
            for pool in self._pools:
                del pool.layer.call  # the method of the class is visible again
        if not any(pool.has_inputs for pool in self._pools):
            cause = "the training data holds no batch" if count == 0 else "none of them ran in training mode"
            raise BatchNormError(f"the statistics of {len(self._pools)} batch-norm layers cannot be computed: {cause}")
        return count

    def assign(self) -> None:
        """Assigns the results to the layers; a layer without inputs keeps its statistics."""
        for pool in self._pools:
            if pool.has_inputs:
                pool.assign()


class _Pool:
    """Sums over the inputs of one layer, in float64; each replica adds its own, and reading adds those up."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self._count, self._sum, self._squares = (
            tf.Variable(
                tf.zeros(layer.moving_mean.shape, tf.float64),
                trainable=False,
                name=name,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
            for name in ("count", "sum", "squares")
        )

    def reset(self) -> None:
        for variable in (self._count, self._sum, self._squares):
            variable.assign(tf.zeros(variable.shape, tf.float64))

    def add(self, inputs: tf.Tensor, mask: tf.Tensor | None) -> None:
        """Adds the inputs of one call, `[batch, …]`, of one replica; traced."""
        values = tf.cast(inputs, tf.float64)
        is_masked = mask is not None and not getattr(self.layer, "fused", False)  # the fused kernel ignores masks
        weights = tf.cast(mask, tf.float64)[..., tf.newaxis] if is_masked else tf.ones([], tf.float64)
        weights = tf.broadcast_to(weights, tf.shape(values))
        kept = self.layer.axis if isinstance(self.layer.axis, Sequence) else [self.layer.axis % values.shape.rank]
        axes = [axis for axis in range(values.shape.rank) if axis not in list(kept)]
        for variable, terms in (
            (self._count, weights),
            (self._sum, weights * values),
            (self._squares, weights * values * values),
        ):
            variable.assign_add(tf.reshape(tf.reduce_sum(terms, axes), variable.shape))

    @property
    def has_inputs(self) -> bool:
        return bool(tf.reduce_all(_total(self._count) > 0))

    def assign(self) -> None:
        mean = _total(self._sum) / _total(self._count)
        variance = tf.maximum(_total(self._squares) / _total(self._count) - mean * mean, 0)
        for variable, value in ((self.layer.moving_mean, mean), (self.layer.moving_variance, variance)):
            variable.assign(tf.cast(value, variable.dtype))


def _total(variable: tf.Variable) -> tf.Tensor:
    return tf.identity(variable.read_value())


def _recorded(original: Callable[..., Any], pool: _Pool) -> Callable[..., Any]:
    """Returns a layer's `call` that also adds its inputs in training mode to `pool`."""
    signature = inspect.signature(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        if arguments.get("training"):
            pool.add(next(iter(arguments.values())), arguments.get("mask"))
        return original(*args, **kwargs)

    return call
