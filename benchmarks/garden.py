"""The digits experiments as a Model Garden user would write them, and its driver: `python -m benchmarks.garden`.

They have the model, data, batch, steps, evaluations and checkpoints of `experiments/digits.py`; the driver does what
Model Garden's own `train.py` files do, and imports what they import. Nothing of `official_trainer` is used here.
"""

from __future__ import annotations

import dataclasses
import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf
import tf_keras
from absl import app, flags
from official.common import distribute_utils
from official.common import flags as tfm_flags
from official.core import base_task, exp_factory, task_factory, train_lib, train_utils
from official.core import config_definitions as cfg
from official.modeling import optimization
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


@dataclasses.dataclass
class DigitsConfig(cfg.TaskConfig):
    """Digits and their classifier."""

    network: str = "cnn"
    dropout: float = 0.4
    train_data: cfg.DataConfig = dataclasses.field(
        default_factory=lambda: cfg.DataConfig(is_training=True, global_batch_size=64)
    )
    validation_data: cfg.DataConfig = dataclasses.field(
        default_factory=lambda: cfg.DataConfig(is_training=False, global_batch_size=360, drop_remainder=False)
    )


@task_factory.register_task_cls(DigitsConfig)
class DigitsTask(base_task.Task):
    """Says which digit an image shows."""

    def build_model(self):
        layers = tf_keras.layers
        image = tf_keras.Input([8, 8, 1], name="image")
        x = convolutions(image, self.task_config.dropout) if self.task_config.network == "cnn" else hidden_layer(image)
        x = layers.Dropout(self.task_config.dropout)(x) if self.task_config.dropout else x
        return tf_keras.Model(image, layers.Dense(10, name="logits")(x))

    def build_inputs(self, params, input_context=None):
        images, labels = split(params.is_training)
        dataset, batch_size = tf.data.Dataset.from_tensor_slices((images, labels)), params.global_batch_size
        if input_context is not None:
            batch_size = input_context.get_per_replica_batch_size(batch_size)
            dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
        dataset = dataset.cache()
        if params.is_training:
            dataset = dataset.shuffle(len(labels)).repeat()
        return dataset.batch(batch_size, drop_remainder=params.drop_remainder).prefetch(tf.data.AUTOTUNE)

    def build_losses(self, labels, model_outputs, aux_losses=None):
        losses = tf_keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)
        return tf.reduce_mean(losses)

    def build_metrics(self, training=True):
        return [tf_keras.metrics.SparseCategoricalAccuracy("accuracy")]


def convolutions(image, dropout):
    layers, x = tf_keras.layers, image
    for filters in (32, 64):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = layers.Flatten()(layers.MaxPool2D()(x))
    return layers.Dense(128, activation="relu")(layers.Dropout(dropout)(x))


def hidden_layer(image):
    return tf_keras.layers.Dense(64, activation="relu")(tf_keras.layers.Flatten()(image))


def split(is_training):
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype("float32").reshape(-1, 8, 8, 1)
    train_x, validation_x, train_y, validation_y = train_test_split(
        images, labels.astype("int32"), test_size=0.2, random_state=0, stratify=labels
    )
    return (train_x, train_y) if is_training else (validation_x, validation_y)


def digits_cnn():
    return experiment(DigitsConfig(), train_steps=1200, learning_rate=2e-3)


def digits_mlp():
    return experiment(DigitsConfig(network="mlp", dropout=0.2), train_steps=2000, learning_rate=3e-3)


def experiment(task, train_steps, learning_rate):
    return cfg.ExperimentConfig(
        task=task,
        trainer=cfg.TrainerConfig(
            train_steps=train_steps,
            steps_per_loop=100,  # Model Garden writes summaries at multiples of this only
            summary_interval=100,
            checkpoint_interval=400,
            validation_interval=200,
            validation_steps=-1,
            best_checkpoint_export_subdir="best",
            best_checkpoint_eval_metric="accuracy",
            optimizer_config=optimization.OptimizationConfig(
                {
                    "optimizer": {"type": "adam"},
                    "learning_rate": {
                        "type": "cosine",
                        "cosine": {"initial_learning_rate": learning_rate, "decay_steps": train_steps},
                    },
                    "warmup": {"type": "linear", "linear": {"warmup_steps": 50}},
                }
            ),
        ),
    )


def main(_):
    from official.common import registry_imports  # noqa: F401, as Model Garden's drivers do

    params = train_utils.parse_configuration(flags.FLAGS)
    model_dir = flags.FLAGS.model_dir
    train_utils.serialize_config(params, model_dir)
    serve_if_told()
    strategy = distribute_utils.get_distribution_strategy(params.runtime.distribution_strategy, num_gpus=0)
    with strategy.scope():
        task = task_factory.get_task(params.task, logging_dir=model_dir)
    train_lib.run_experiment(
        distribution_strategy=strategy, task=task, mode=flags.FLAGS.mode, params=params, model_dir=model_dir
    )


def serve_if_told():
    """Serves for ever in a worker and a parameter server of a coordinator, as TensorFlow's guide says."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec().as_dict()
    if "ps" in cluster and resolver.task_type != "chief":
        tf.distribute.Server(cluster, resolver.task_type, resolver.task_id, protocol="grpc").join()


if __name__ == "__main__":
    for factory in (digits_cnn, digits_mlp):
        exp_factory.register_config_factory(factory.__name__)(factory)
    tfm_flags.define_flags()
    flags.mark_flags_as_required(["experiment", "mode", "model_dir"])
    app.run(main)
