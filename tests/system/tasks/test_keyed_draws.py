"""TensorFlow's random operations in steps that XLA compiles give the same after every restart."""

import numpy as np
import tensorflow as tf

from official_trainer.tasks.random_streams import RandomStreams
from tests.support import toy
from tests.support.draws import category, noise, shuffled


def test_compiled_steps_draw_what_their_number_says():
    """N1: under XLA too, which draws in its own way."""
    streams = RandomStreams(toy.ToyTask(None).build_model(), seed=4)
    place = tf.Variable(0, dtype=tf.int64)
    drawn = []
    for number in (3, 4, 3):
        place.assign(number)

        @tf.function(jit_compile=True)
        def step():
            with streams.named("train", place):
                return noise(0), shuffled(0), category(0)

        drawn.append([value.numpy() for value in step()])
    for first, other, again in zip(*drawn, strict=True):
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)
