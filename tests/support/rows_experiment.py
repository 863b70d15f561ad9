"""`rows`: an experiment over any source of a config, whose metric is the mean of the numbers of its examples."""

import numpy as np

from official_trainer import Task, inputs, register_config_factory, register_task_cls
from official_trainer.config import DataConfig, ExperimentConfig, ExportConfig, TaskConfig, TrainerConfig, opt
from official_trainer.lazy import keras, tf


class RowsConfig(TaskConfig):
    """Nothing to set but the data."""


def number_of(example):
    """Returns the number of an example: of a record, of an image by its first pixel, of a row."""
    if isinstance(example, bytes):
        return int.from_bytes(example[:8], "little")
    return int.from_bytes(example["image"][0, 0].tobytes(), "little") if "image" in example else example["id"]


def numbered(example):
    number = number_of(example)
    return np.array([number % 2, 1], np.float32), np.float32(number)


@register_task_cls(RowsConfig)
class RowsTask(Task):
    """Tells the number of a row."""

    def build_model(self):
        return keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])

    def build_inputs(self, params, input_context=None):
        return inputs.from_source(params.source, params, input_context, transforms=[numbered])

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.abs(labels - model_outputs[:, 0])

    def build_metrics(self, training=True):
        return [keras.metrics.Mean("number")]

    def process_metrics(self, metrics, labels, model_outputs):
        metrics[0].update_state(labels)


@register_config_factory("rows")
def rows() -> ExperimentConfig:
    """Two epochs of forty-eight rows."""
    data = DataConfig(global_batch_size=8)
    trainer = TrainerConfig(
        train_steps=12,
        summary_interval=6,
        checkpoint_interval=6,
        validation_interval=6,
        export=ExportConfig(at_end=False),
        optimizer_config=opt.adam(0.1),
    )
    return ExperimentConfig(task=RowsConfig(train_data=data, validation_data=data), trainer=trainer)
