"""Programs that are trained by rewards."""

from __future__ import annotations

import numpy as np

from official_trainer.lazy import keras, tf
from official_trainer.program import EvolutionStrategies, Program, ScoreFunction
from tests.support.toy import strategy_of

EXAMPLES, FEATURES, CLASSES = 50, 6, 3


def examples():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
    return x, (x[:, :1] > 0).astype(np.float32) + x[:, 1:2]


def build(units=1, seed=1):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input([FEATURES])
    return keras.Model(inputs, keras.layers.Dense(units, kernel_regularizer="l2", name="out")(inputs))


@keras.saving.register_keras_serializable("tests")
def closeness(y_true, y_pred):
    return -tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)


@keras.saving.register_keras_serializable("tests")
def is_right(y_true, y_pred):
    chosen = y_pred if np.ndim(y_pred) == 0 else np.argmax(y_pred)
    return 1.0 if chosen == y_true else 0.0


def rewarded(model=None, model_dir=None, **settings):
    program = Program(build() if model is None else model, model_dir)
    program.compile(**{"optimizer": "sgd", "reward": closeness, **settings})
    return program


def weights_of(program):
    return program.model.get_weights()


def assert_alike(found, expected, rtol=1e-5):
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=rtol, atol=1e-6)


def under_a_strategy(units=1, rate=0.01, **settings):
    with strategy_of("mirrored2").scope():
        return rewarded(build(units), optimizer=keras.optimizers.SGD(rate), **settings)


ESTIMATORS = {
    "score": (ScoreFunction(samples=4), 0.02),
    "evolution": (EvolutionStrategies(population=32, sigma=0.1), 0.02),
}
