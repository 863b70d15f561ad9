"""Which way people answer: the files, the sizes and the accelerator come from the environment, as a cluster sets it."""

import dataclasses
import os

import tensorflow as tf
import tf_keras
from official.core import base_task, exp_factory, task_factory
from official.core import config_definitions as cfg

FEATURES = {"age": tf.io.FixedLenFeature([3], tf.float32), "answer": tf.io.FixedLenFeature([], tf.int64)}


@dataclasses.dataclass
class AnswersConfig(cfg.TaskConfig):
    units: int = 4
    train_data: cfg.DataConfig = dataclasses.field(default_factory=cfg.DataConfig)
    validation_data: cfg.DataConfig = dataclasses.field(default_factory=cfg.DataConfig)


@task_factory.register_task_cls(AnswersConfig)
class AnswersTask(base_task.Task):
    def build_model(self):
        ages = tf_keras.Input([3])
        return tf_keras.Model(
            ages, tf_keras.layers.Dense(2)(tf_keras.layers.Dense(self.task_config.units, "relu")(ages))
        )

    def build_inputs(self, params, input_context=None):
        dataset = tf.data.TFRecordDataset(sorted(tf.io.gfile.glob(params.input_path)))
        dataset = dataset.repeat() if params.is_training else dataset
        dataset = dataset.batch(params.global_batch_size, drop_remainder=params.is_training)
        parsed = dataset.map(lambda each: tf.io.parse_example(each, FEATURES))
        return parsed.map(lambda each: (each["age"], each["answer"]))

    def build_losses(self, labels, model_outputs, aux_losses=None):
        losses = tf_keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        return tf.reduce_mean(losses)

    def build_metrics(self, training=True):
        return [tf_keras.metrics.SparseCategoricalAccuracy("agreed")]


def data(split, is_training):
    path = os.path.join(os.environ["SURVEY_DATA"], f"{split}-*.tfrecord")
    return cfg.DataConfig(input_path=path, is_training=is_training, global_batch_size=8)


@exp_factory.register_config_factory("survey_answers")
def survey_answers():
    """Which way people of an age answer."""
    steps = int(os.environ.get("SURVEY_STEPS", "6"))
    return cfg.ExperimentConfig(
        runtime=cfg.RuntimeConfig(distribution_strategy=os.environ.get("SURVEY_STRATEGY", "one_device")),
        task=AnswersConfig(train_data=data("train", True), validation_data=data("held_out", False)),
        trainer=cfg.TrainerConfig(
            train_steps=steps,
            steps_per_loop=3,
            summary_interval=3,
            checkpoint_interval=3,
            validation_interval=3,
            optimizer_config={
                "optimizer": {"type": "adam"},
                "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.01}},
            },
        ),
    )
