"""A command that prints whether TensorFlow's runtime has been started, before and after an operation of its own."""

import tensorflow as tf
from tensorflow.python.eager import context


def has_started():
    return context.context()._context_handle is not None


if __name__ == "__main__":
    print("before:", has_started())
    tf.zeros([])
    print("after:", has_started())
