"""Which of three grape varieties a wine is made of, from 13 measurements (178 wines, in scikit-learn).

An experiment is three things, all in this file: a config (what can be set), a task (model, data, loss, metrics) and a
function that returns the values to start from.
"""

import dataclasses

import keras

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import ExperimentConfig, Fraction, Positive, TaskConfig, TrainerConfig, opt


@dataclasses.dataclass(frozen=True, kw_only=True)
class WineConfig(TaskConfig):
    """Wines and their classifier.

    Attributes:
      hidden: units of each hidden layer.
      dropout: share of the units set to zero while training.
      held_out: share of the wines kept for validation.
    """

    hidden: tuple[Positive, ...] = (32,)
    dropout: Fraction = 0.1
    held_out: Fraction = 0.3


@register_task_cls(WineConfig)
class WineTask(Task):
    """Tells three grape varieties apart."""

    def build_model(self):
        layers = [keras.Input([13], name="measurements"), keras.layers.BatchNormalization(momentum=0.9)]
        for units in self.task_config.hidden:
            layers += [keras.layers.Dense(units, activation="relu"), keras.layers.Dropout(self.task_config.dropout)]
        return keras.Sequential([*layers, keras.layers.Dense(3, name="logits")])

    def build_inputs(self, params, input_context=None):
        from sklearn.datasets import load_wine

        measurements, labels = load_wine(return_X_y=True)
        arrays = measurements.astype("float32"), labels
        return inputs.from_arrays(arrays, params, input_context, held_out=self.task_config.held_out)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def predict_step(self, inputs, model, labels=None):
        return {"probabilities": keras.activations.softmax(self.inference_step(inputs, model))}


@register_config_factory("my_experiment")
def my_experiment():
    """Three grape varieties told apart by 13 measurements."""
    trainer = TrainerConfig(
        train_steps=200,
        summary_interval=50,
        checkpoint_interval=100,
        validation_interval=50,
        best_checkpoint_eval_metric="accuracy",
        optimizer_config=opt.adam(0.01),
    )
    return ExperimentConfig(task=WineConfig(), trainer=trainer)
