"""TFRecord files of numbers, and the input pipelines that share them."""

import numpy as np
import tensorflow as tf

from official_trainer import inputs


def write(path, values):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for value in values:
            writer.write(np.int32(value).tobytes())


def parse(record):
    return {"id": tf.io.decode_raw(record, tf.int32)[0]}


def contexts(job, **settings):
    pipelines, replicas = job
    return [
        inputs.InputContext(
            num_input_pipelines=pipelines, input_pipeline_id=p, num_replicas_in_sync=replicas, **settings
        )
        for p in range(pipelines)
    ]
