"""The task of straight lines."""

import tensorflow as tf
import tf_keras
from official.core import base_task, task_factory

from my_garden.configs.lines import LineConfig


@task_factory.register_task_cls(LineConfig)
class LineTask(base_task.Task):
    def build_model(self):
        x = tf_keras.Input([1])
        return tf_keras.Model(x, tf_keras.layers.Dense(1)(x))

    def build_inputs(self, params, input_context=None):
        x = tf.linspace(-1.0, 1.0, 64)[:, None]
        dataset = tf.data.Dataset.from_tensor_slices((x, self.task_config.slope * x))
        dataset = dataset.repeat() if params.is_training else dataset
        return dataset.batch(params.global_batch_size)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean(tf.square(labels - model_outputs))

    def build_metrics(self, training=True):
        return [tf_keras.metrics.MeanSquaredError("error")]
