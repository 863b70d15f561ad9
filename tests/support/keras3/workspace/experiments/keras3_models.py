"""`keras3_models`: one of the models in `tests/support/keras3/models.py`, trained on its arrays in their order."""

import dataclasses

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import (
    DataConfig,
    ExperimentConfig,
    ExportConfig,
    OptimizationConfig,
    TaskConfig,
    TrainerConfig,
)
from official_trainer.config import optimization as opt
from official_trainer.lazy import tf

STEPS = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keras3Config(TaskConfig):
    """A model of Keras 3.

    Attributes:
      model: its name.
      optimizer: one of `models.OPTIMIZERS`; empty for that of the model.
      dropout: share of the units set to zero while training.
      as_objects: whether the loss is an object of a class of `keras.losses`, and not a function.
    """

    model: str = "dense"
    optimizer: str = ""
    dropout: float = 0.0
    as_objects: bool = False


@register_task_cls(Keras3Config)
class Keras3Task(Task):
    """Trains it."""

    @property
    def case(self):
        from tests.support.keras3 import models

        return models.ALL[self.task_config.model]

    def build_model(self):
        from tests.support.keras3 import models

        return models.built(self.task_config.model, self.task_config.dropout)

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((self.case.features(), self.case.labels()), params, input_context)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        losses = self.case.losses
        if self.task_config.as_objects:
            import keras

            return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, model_outputs)
        if isinstance(losses, dict):  # the sum of their means, as `fit` has it
            return sum(tf.reduce_mean(loss(labels[name], model_outputs[name])) for name, loss in losses.items())
        return losses(labels, model_outputs)

    def build_metrics(self, training=True):
        import keras

        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def process_metrics(self, metrics, labels, model_outputs):
        if isinstance(labels, dict):
            labels, model_outputs = labels["kind"], model_outputs["kind"]
        super().process_metrics(metrics, labels, model_outputs)

    def create_optimizer(self, optimizer_config, runtime_config=None, dp_config=None):
        from tests.support.keras3 import models

        make = models.OPTIMIZERS[self.task_config.optimizer] if self.task_config.optimizer else self.case.optimizer
        return make()

    def train_step(self, batch, model, optimizer, metrics=None):
        logs = super().train_step(batch, model, optimizer, metrics)
        if hasattr(optimizer, "dynamic_scale"):
            logs["loss_scale"] = optimizer.dynamic_scale * 1.0  # a mean over replicas
        return logs


@register_config_factory("keras3_models")
def keras3_models() -> ExperimentConfig:
    """Fifty steps, each with its row in `metrics.jsonl`."""
    data = DataConfig(global_batch_size=16, shuffle=False)
    required = OptimizationConfig(  # the task brings its own
        optimizer=opt.OptimizerConfig(type="sgd"),
        learning_rate=opt.LrConfig(type="constant", constant=opt.ConstantLrConfig(learning_rate=0.1)),
    )
    return ExperimentConfig(
        task=Keras3Config(train_data=data, validation_data=data),
        trainer=TrainerConfig(
            train_steps=STEPS, steps_per_loop=STEPS, summary_interval=1, checkpoint_interval=STEPS,
            validation_interval=STEPS, export=ExportConfig(at_end=False), on_data_end="repeat",
            optimizer_config=required,
        ),
    )  # fmt: skip
