"""What users draw from TensorFlow, in pipelines and in steps."""

import tensorflow as tf


def shuffled(index):
    return tf.random.shuffle(tf.range(8)) + tf.random.uniform([], maxval=100, dtype=tf.int32)


def noise(index):
    return tf.random.normal([3]) + tf.random.uniform([3]) + tf.random.truncated_normal([3])


def category(index):
    return tf.random.categorical(tf.math.log([[0.25, 0.25, 0.5]]), 20)
