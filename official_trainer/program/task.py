"""The Task of a model that was compiled: what `compile` says, as the engine's steps.

Owns: a training step and an evaluation step out of Keras's own pieces (`compute_loss`, `compute_metrics`), so that
their numbers are Keras's; a model's own `train_step` and `test_step` are called in their place. Does not own: data
(`data.py`), what rewards add to a step (`rewards.py`), or when a step runs (`loop.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from official_trainer.autograph import as_written, rewritten
from official_trainer.inputs import InputContext
from official_trainer.lazy import keras, tf
from official_trainer.program.data import Source
from official_trainer.program.rewards import rewards_of
from official_trainer.task import Task


class ProgramTask(Task):
    """Trains a compiled model on the data of the call of `fit` that runs.

    Attributes:
      training: the data to train on.
      validation: the data to evaluate on.
    """

    training: Source | None = None
    validation: Source | None = None

    def __init__(self, params: Any, model: keras.Model) -> None:
        super().__init__(params)
        self._model = model

    def build_model(self) -> keras.Model:
        """Returns the compiled model."""
        return self._model

    def build_inputs(self, params: Any, input_context: InputContext | None = None) -> tf.data.Dataset:
        """Returns the batches of the call that runs: endless to train on, one pass to evaluate on."""
        context = InputContext.adopt(input_context)
        if params.is_training:
            assert self.training is not None
            return self.training.batches(context.start_step, context.elements_per_step)
        assert self.validation is not None
        return self.validation.one_pass(context.elements_per_step)

    @as_written
    def train_step(
        self, inputs: Any, model: keras.Model, optimizer: keras.optimizers.Optimizer, metrics: Any = None
    ) -> dict[str, Any]:
        """Runs Keras's training step, or the model's own."""
        if type(model).train_step is not keras.Model.train_step:
            logs = self._own(rewritten(model.train_step)(inputs))
        else:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(inputs)
            rewards = rewards_of(model)
            with tf.GradientTape() as tape:
                outputs = model(x, training=True)
                loss = rewritten(model.compute_loss)(x, y, outputs, weight)
                if rewards is not None:
                    loss = rewards.trained(loss, (x, y, weight), outputs, model)
            optimizer.minimize(loss, model.trainable_variables, tape=tape)
            _update_metrics(model, x, y, outputs, weight)
            logs = {self.loss: loss}
        with tf.control_dependencies([logs[self.loss]]):
            model._train_counter.assign_add(1)  # callbacks of Keras look at it
        return logs

    @as_written
    def validation_step(self, inputs: Any, model: keras.Model, metrics: Any = None) -> dict[str, Any]:
        """Runs Keras's evaluation step, or the model's own."""
        if type(model).test_step is not keras.Model.test_step:
            return self._own(rewritten(model.test_step)(inputs))
        x, y, weight = keras.utils.unpack_x_y_sample_weight(inputs)
        outputs = model(x, training=False)
        loss = rewritten(model.compute_loss)(x, y, outputs, weight)
        rewards = rewards_of(model)
        if rewards is not None:
            loss = rewards.evaluated(loss, (x, y, weight), outputs, model)
        _update_metrics(model, x, y, outputs, weight)
        with tf.control_dependencies([loss]):
            model._test_counter.assign_add(1)
        return {self.loss: loss}

    def _own(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what a model's own step has returned, with a loss that the engine can look at."""
        return {self.loss: tf.cast(logs.get(self.loss, 0.0), tf.float32)}


def _update_metrics(model: keras.Model, x: Any, y: Any, outputs: Any, weight: Any) -> None:
    if type(model).compute_metrics is not keras.Model.compute_metrics:
        rewritten(model.compute_metrics)(x, y, outputs, weight)
    else:
        model.compiled_metrics.update_state(y, outputs, weight)  # without the results, which nobody asks for here
