"""What layers draw in a step, by the seed of the run."""

import itertools

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras2

from official_trainer.tasks import random_streams


def drawn(keras, seed, step):
    """Returns which of 64 values a layer drops in a step, of a model that was built with another seed."""
    with random_streams.enabled(0, keeps_seeds=False):
        model = keras.Sequential([keras.Input([64]), keras.layers.Dropout(0.5)])
        random_streams.RandomStreams(model, seed).begin_step(tf.constant(step, tf.int64))
        return tuple(np.asarray(model(tf.ones([1, 64]), training=True))[0] == 0)


def test_dropout_depends_on_the_seed_and_the_step():
    """N1: the same in another process, and another for each seed and each step."""
    for keras in (keras2, keras3):
        moments = list(itertools.product((0, 1, 2), (0, 1, 2)))
        first = [drawn(keras, seed, step) for seed, step in moments]
        assert len(set(first)) == len(moments), keras.__name__
        assert [drawn(keras, seed, step) for seed, step in moments] == first
