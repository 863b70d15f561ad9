"""Programs on one replica and on two."""

from __future__ import annotations

import numpy as np

from official_trainer.lazy import keras
from official_trainer.program import Program
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


def assert_alike(found, expected, rtol=1e-6):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=rtol, err_msg=name)
