"""Checkpoints of one weight."""

import tensorflow as tf


def evaluated(step):
    return tf.train.Checkpoint(global_step=tf.Variable(step, dtype=tf.int64), model=tf.Variable(float(step)))


def saved_weight(directory, step):
    return float(tf.train.load_variable(f"{directory}/ckpt-{step}", "model/.ATTRIBUTES/VARIABLE_VALUE"))
