"""The task of `configs.level`; its data are computed, two waves for each station."""

import numpy as np
import tensorflow as tf
import tf_keras
from official.core import base_task, task_factory

from configs import level


def heights(station, hours):
    time = np.arange(hours) + 7.0 * len(station)
    return (np.sin(time / 1.98) + 0.3 * np.sin(time / 4.1 + len(station))).astype("float32")


@task_factory.register_task_cls(level.LevelConfig)
class LevelTask(base_task.Task):
    def build_model(self):
        section = self.task_config.model.get()
        hours = tf_keras.Input([self.task_config.train_data.hours], name="hours")
        if self.task_config.model.type == "dense":
            encoded = tf_keras.layers.Dense(section.units, "tanh", name="encoder")(hours)
        else:
            sequence = tf_keras.layers.Reshape([-1, 1])(hours)
            layer = tf_keras.layers.GRU(section.units, go_backwards=section.go_backwards, name="encoder")
            encoded = layer(sequence)
        return tf_keras.Model(hours, tf_keras.layers.Dense(1, name="level")(encoded))

    def build_inputs(self, params, input_context=None):
        known, wanted = [], []
        for station in params.stations:
            all_hours = heights(station, 200)
            kept = all_hours[:150] if params.is_training else all_hours[150:]
            windows = np.lib.stride_tricks.sliding_window_view(kept, params.hours + 1)
            known.append(windows[:, :-1])
            wanted.append(windows[:, -1:])
        dataset = tf.data.Dataset.from_tensor_slices((np.concatenate(known), np.concatenate(wanted)))
        dataset = dataset.repeat() if params.is_training else dataset
        size = input_context.get_per_replica_batch_size(params.global_batch_size) if input_context else 16
        return dataset.batch(size, drop_remainder=params.drop_remainder).prefetch(2)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        loss = tf.reduce_mean(tf.square(labels - model_outputs))
        return loss + tf.add_n(aux_losses) if aux_losses else loss

    def build_metrics(self, training=True):
        return [tf_keras.metrics.RootMeanSquaredError("error")]
