"""Whole runs of fit on two replicas."""

from __future__ import annotations

import numpy as np
import pytest

from official_trainer.lazy import keras, tf
from official_trainer.program import Program
from tests.support.cases import cases
from tests.support.programs import CLASSES, FEATURES, assert_alike, examples, lightly
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
    assert history["two"] == [2.0, 2.0], "of numbers that replicas have for themselves, the mean"
    again = on("mirrored2", own, str(tmp_path / "run"))
    assert again.fit(X, Y, validation_data=(X, Y), **arguments).history == history


@pytest.mark.parametrize(("shuffle", "batch_size"), cases([(True, 7), ("batch", 10)], (True, 7)))
def test_two_replicas_train_like_one(shuffle, batch_size):
    """K2, K4, T16: also where the last batch is smaller, odd, or one example for two replicas; with weights."""
    arguments = {"batch_size": batch_size, "shuffle": shuffle, "epochs": 3, "verbose": 0, "validation_split": 0.3}
    arguments |= {"sample_weight": np.linspace(0.1, 2, 43).astype("float32")}
    one, two = on("off"), on("mirrored2")
    assert_alike(two.fit(X[:43], Y[:43], **arguments).history, one.fit(X[:43], Y[:43], **arguments).history)
    assert two.evaluate(X, Y, batch_size=batch_size, verbose=0) == pytest.approx(
        one.evaluate(X, Y, batch_size=batch_size, verbose=0), rel=1e-6
    )
    found, expected = (each.predict(X, batch_size=batch_size, verbose=0) for each in (two, one))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_replica_without_an_example_changes_nothing():
    """K2: layers with statistics of batches stay finite."""

    def normalising():
        pixels = keras.Input([FEATURES])
        return keras.Model(pixels, keras.layers.Dense(CLASSES)(keras.layers.BatchNormalization()(pixels)))

    program = on("mirrored2", normalising)
    history = program.fit(X[:41], Y[:41], batch_size=8, epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert all(np.isfinite(weight).all() for weight in program.model.get_weights())
    assert np.isfinite(program.train_on_batch(X[:1], Y[:1])).all()


def test_a_loss_that_is_a_sum_is_one_on_two_replicas():
    """K2: nothing is weighted by the size of a replica's part."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    arguments = {"shuffle": False, "batch_size": 9, "epochs": 2, "verbose": 0}
    plain = {"make": lambda: keras.Sequential([keras.layers.Dense(CLASSES, input_shape=[FEATURES])]), "loss": loss}
    weights = [
        (p := on(name, **plain)).fit(X, Y, **arguments) and p.model.get_weights() for name in ("off", "mirrored2")
    ]
    for left, right in zip(*weights, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-7)
