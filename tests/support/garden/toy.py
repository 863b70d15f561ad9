"""A task and an experiment of Model Garden, as small as they can be."""

import tensorflow as tf
from official.core import base_task, config_definitions
from official.modeling import optimization as garden_optimization

from official_trainer.lazy import keras
from tests.support import toy


class GardenTask(base_task.Task):
    """The toy task, written for Model Garden: per-batch mean loss, compiled nowhere, no start step."""

    def build_model(self):
        return toy.ToyTask(None).build_model()

    def build_inputs(self, params, input_context=None):
        dataset = toy.examples(toy.NUM_EXAMPLES)
        dataset = dataset.repeat() if params.is_training else dataset
        size = input_context.get_per_replica_batch_size(params.global_batch_size)
        return dataset.batch(size, drop_remainder=params.is_training)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        loss = keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        return tf.reduce_mean(loss)

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy("accuracy")]


def garden_config(**optimizer):
    return config_definitions.ExperimentConfig(
        task=config_definitions.TaskConfig(
            train_data=config_definitions.DataConfig(global_batch_size=10, is_training=True),
            validation_data=config_definitions.DataConfig(global_batch_size=40, is_training=False),
        ),
        trainer=config_definitions.TrainerConfig(
            train_steps=20,
            optimizer_config=garden_optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "adam"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}},
                    **optimizer,
                }
            ),
        ),
    )
