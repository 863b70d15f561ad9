"""What the page of decisions says of models of Keras 3."""

import numpy as np
import pytest

from official_trainer.lazy import keras
from official_trainer.program import Program
from tests.support.programs import CLASSES, FEATURES, examples

X, Y = examples()


class Around(keras.Model):
    """Has the variables of a model of Keras 3 and calls it; a closure, because Keras 2 would collect them again."""

    def __init__(self, inner):
        super().__init__()
        self._call_inner, self._losses_of = (lambda x, training: inner(x, training=training)), (lambda: inner.losses)
        self._values = [variable.value for variable in inner.variables]

    def call(self, x, training=False):
        outputs = self._call_inner(x, training)
        for loss in self._losses_of():
            self.add_loss(loss)
        return outputs


def built(keras3, dropout=0.0):
    keras3.utils.set_random_seed(1)
    layers = keras3.layers
    hidden = [layers.Dense(8, kernel_regularizer="l2"), layers.BatchNormalization(), layers.Dropout(dropout, seed=3)]
    return keras3.Sequential([layers.Input([FEATURES]), *hidden, layers.Dense(CLASSES)])


def around(keras3, model_dir=None, **settings):
    model = Around(built(keras3, **settings))
    model(X[:2])
    program = Program(model, model_dir)
    program.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return program


def test_an_adapter_would_train_a_model_of_keras_3(tmp_path):
    """K8: to the losses of Keras 3's own `fit`; a restart repeats the same bits, with dropout."""
    keras3 = pytest.importorskip("keras", minversion="3")
    theirs = built(keras3)
    theirs.compile(keras3.optimizers.SGD(0.1), keras3.losses.SparseCategoricalCrossentropy(from_logits=True))
    arguments = {"batch_size": 25, "shuffle": False, "verbose": 0}
    expected = theirs.fit(X, Y, epochs=3, **arguments).history["loss"]
    program = around(keras3)
    assert program.fit(X, Y, epochs=3, **arguments).history["loss"] == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(program.predict(X, verbose=0), theirs.predict(X, verbose=0), rtol=1e-4, atol=1e-6)
    unbroken = around(keras3, dropout=0.5).fit(X, Y, epochs=4, **arguments).history
    for epochs in (2, 4):
        history = around(keras3, str(tmp_path), dropout=0.5).fit(X, Y, epochs=epochs, **arguments).history
    assert history == unbroken
    assert unbroken["loss"] != expected
