"""Tasks whose predictions can be told apart, and reading what they left behind."""

import tensorflow as tf

from official_trainer import inputs
from official_trainer.tasks import random_streams
from tests.support import toy


def records(params, input_context):
    return inputs.from_tfrecords(params, input_context, parse_fn=parse)


def parse(record):
    return tf.io.decode_raw(record, tf.float32)


def stream(params, input_context):
    size = input_context.get_per_replica_batch_size(params.global_batch_size)
    return tf.data.Dataset.from_tensor_slices(toy.FEATURES).batch(size)


def arrays(params, input_context):
    return inputs.from_arrays(toy.FEATURES, params, input_context)


class Noisy(toy.ToyTask):
    """Draws, in three ways, and returns several outputs in a nest; some are left out."""

    pipeline = None

    def build_inputs(self, params, input_context=None):
        return type(self).pipeline(params, input_context)

    def inference_step(self, inputs, model):
        logits = model(inputs, training=False)
        noise = tf.random.stateless_normal(tf.shape(logits), random_streams.seed("noise"))
        drawn = tf.random.uniform([tf.shape(inputs)[0]])
        noises = {"noise": logits + noise, "dropout": model(inputs, training=True), "none": None}
        return {"logits": logits, "with": noises, "drawn": drawn, "features": inputs}
