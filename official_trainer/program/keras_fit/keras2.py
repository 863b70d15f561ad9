"""Compile and fit of tf_keras, that is Keras 2, as a Program needs them.

Owns: this implementation of the contract in `__init__.py`. Does not own: the import of tf_keras (`lazy.py`), or
rewards (`program/rewards.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.lazy import keras, load, tf
from official_trainer.program.data import check_names, names_of_outputs
from official_trainer.program.keras_fit import KerasFit
from official_trainer.tasks.autograph import convert

training_utils: Any = load("tf_keras.src.engine.training_utils")  # it has no public name


class Keras2Fit(KerasFit):
    """Compile and fit of tf_keras."""

    MODULE = keras

    def compile(self, model: Any, arguments: Mapping[str, Any]) -> None:
        model.compile(**arguments)
        self.check_outputs(model)

    def compiled(self, model: Any) -> Any:
        return model.compiled_loss

    def check_outputs(self, model: Any) -> None:
        losses = model.compiled_loss
        names = losses._output_names if model.outputs is None else names_of_outputs(model)
        if names is None:
            return
        check_names("loss", losses._user_losses, names)
        check_names("loss_weights", losses._user_loss_weights, names)

    def weighted_metrics(self, model: Any) -> Any:
        return getattr(getattr(model, "compiled_metrics", None), "_user_weighted_metrics", None)

    def compute_loss(self, model: Any, batch: Sequence[Any], *, training: bool) -> Any:
        return convert(model.compute_loss)(*batch)

    def measure_reward(self, model: Any, reward: tf.Tensor, minimised: tf.Tensor, outputs: Any) -> None:
        size = tf.cast(tf.shape(tf.nest.flatten(outputs)[0])[0], tf.float32)
        losses = model.compiled_loss
        if not model.loss:  # then Keras has not measured it
            if not losses.built:
                losses.build(outputs)
            batch_loss = minimised * tf.distribute.get_strategy().num_replicas_in_sync
            losses.metrics[0].update_state(batch_loss, sample_weight=size)
        else:
            for mean in losses.metrics[:1]:  # none where a `compute_loss` of the model's does not call Keras's
                mean.total.assign_sub(reward * size)

    def update_metrics(self, model: Any, batch: Sequence[Any]) -> None:
        model.compiled_metrics.update_state(*batch[1:])  # computes no results, which are not needed in a step

    def minimize(self, optimizer: Any, loss: tf.Tensor, model: Any, tape: tf.GradientTape) -> None:
        with tf.control_dependencies([loss]):  # a step whose data never came must not count
            optimizer.minimize(loss, model.trainable_variables, tape=tape)

    def count(self, model: Any, *, training: bool) -> None:
        _counter(model, training).assign_add(1)

    def reset_count(self, model: Any, *, training: bool) -> None:
        _counter(model, training).assign(0)

    def as_compiled(self, model: Any) -> contextlib.AbstractContextManager[Any]:
        context: contextlib.AbstractContextManager[Any] = training_utils.RespectCompiledTrainableState(model)
        return context

    def steps_between_calls(self, model: Any) -> int:
        steps = model._steps_per_execution  # of a model that is not compiled, None
        return 1 if steps is None else int(steps.numpy())

    def first_epoch_and_batch(self, model: Any, steps: int, first_epoch: int) -> tuple[int, int]:
        epoch, batch = model._maybe_load_initial_counters_from_ckpt(steps, first_epoch)
        return int(epoch), int(batch)


KERAS = Keras2Fit()


def _counter(model: Any, training: bool) -> Any:
    return model._train_counter if training else model._test_counter  # callbacks of tf_keras read them
