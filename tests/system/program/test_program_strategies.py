"""Whole runs of fit on two replicas."""

from __future__ import annotations
import numpy as np
import pytest
from official_trainer.lazy import keras, tf
from official_trainer.program import Program
from tests.support.cases import cases
from tests.support.programs import CLASSES, FEATURES, examples, lightly
from tests.support.toy import strategy_of


X, Y = examples()


def build():
    pixels = keras.Input([FEATURES])
    return keras.Model(pixels, keras.layers.Dense(CLASSES, kernel_regularizer="l2")(pixels))


def on(strategy, make=build, model_dir=None, **settings):
    keras.utils.set_random_seed(1)
    with strategy_of(strategy).scope():
        return lightly(Program(make(), model_dir), **settings)


def test_callbacks_and_a_step_of_the_models_own(tmp_path):
    """K5, K6: batches are counted for callbacks, and a run directory is what it is on one replica."""

    class Own(keras.Model):
        def train_step(self, data):
            return {**super().train_step(data), "two": tf.constant(2.0)}

    class Counts(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_train_batch_end(self, batch, logs=None):
            self.seen.append(int(self.model._train_counter.numpy()))

        def on_test_end(self, logs=None):
            self.seen.append(-int(self.model._test_counter.numpy()))

    def own():
        pixels = keras.Input([FEATURES])
        return Own(pixels, keras.layers.Dense(CLASSES)(pixels))

    counts = Counts()
    program = on("mirrored2", own, str(tmp_path / "run"))
    arguments = {"batch_size": 20, "epochs": 2, "verbose": 0}
    history = program.fit(X, Y, validation_data=(X, Y), callbacks=[counts], **arguments).history
    assert counts.seen == [1, 2, 3, -3, 4, 5, 6, -3]
    again = on("mirrored2", own, str(tmp_path / "run"))
    assert again.fit(X, Y, validation_data=(X, Y), **arguments).history == history
