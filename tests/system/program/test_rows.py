"""Ragged and sparse examples train as they do in Keras."""

import numpy as np
import pytest
import scipy.sparse

from official_trainer.lazy import keras, tf
from official_trainer.program import Program
from tests.support.cases import cases
from tests.support.toy import strategy_of

EXAMPLES = 50
TARGETS = np.linspace(0, 1, EXAMPLES, dtype=np.float32)[:, None]
DENSE = np.random.default_rng(0).normal(size=(EXAMPLES, 5)) * np.random.default_rng(1).integers(2, size=(EXAMPLES, 5))


def of_ragged():
    inputs = keras.Input([None], ragged=True)
    means = keras.layers.Lambda(lambda rows: tf.ensure_shape(tf.reduce_mean(rows, axis=1, keepdims=True), [None, 1]))
    return keras.Model(inputs, keras.layers.Dense(1)(means(inputs)))


def of_sparse():
    inputs = keras.Input([5], sparse=True)
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


def of_dense():
    inputs = keras.Input([5])
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


def ragged():
    return tf.ragged.constant([[float(n) for n in range(1 + i % 4)] for i in range(EXAMPLES)])


KINDS = {
    "ragged": (of_ragged, ragged),
    "sparse": (of_sparse, lambda: tf.sparse.from_dense(DENSE)),
    "of scipy": (of_sparse, lambda: scipy.sparse.csr_matrix(DENSE)),
}


def compiled(make, owner=lambda model: model):
    keras.utils.set_random_seed(1)
    found = owner(make())
    found.compile("sgd", "mse", metrics=["mae"])
    return found


@pytest.mark.parametrize("kind", cases(list(KINDS), "ragged"))
def test_rows_of_any_kind_train_and_predict_as_in_keras(kind):
    """K9: the history, an evaluation and predictions; the last batch is smaller."""
    make, rows = KINDS[kind]
    x, y = rows(), TARGETS
    found = []
    for owner in (Program, lambda model: model):
        program = compiled(make, owner)
        losses = program.fit(x, y, epochs=2, shuffle=False, verbose=0).history["loss"]
        found.append([*losses, *program.evaluate(x, y, verbose=0), *program.predict(x, verbose=0)[:, 0]])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.parametrize("kind", cases(list(KINDS), "of scipy"))
def test_rows_of_any_kind_are_shuffled_and_split(kind):
    """K9: Keras splits none of them; the order of a shuffled epoch is that of dense rows."""
    make, rows = KINDS[kind]
    history = compiled(make, Program).fit(rows(), TARGETS, epochs=2, validation_split=0.3, verbose=0).history
    assert len(history["val_loss"]) == 2
    if kind != "ragged":
        dense = compiled(of_dense, Program).fit(DENSE, TARGETS, epochs=2, validation_split=0.3, verbose=0).history
        assert history["loss"] == pytest.approx(dense["loss"], rel=1e-5)
        assert history["val_loss"] == pytest.approx(dense["val_loss"], rel=1e-5)


@pytest.mark.parametrize("kind", cases(["ragged", "sparse"], "sparse"))
def test_replicas_share_rows_of_any_kind(kind):
    """K9: on two replicas the same numbers, also of a batch that is smaller than the others."""
    make, rows = KINDS[kind]
    alone = compiled(make, Program).fit(rows(), TARGETS, epochs=1, verbose=0).history
    with strategy_of("mirrored2").scope():
        program = compiled(make, Program)
    assert program.fit(rows(), TARGETS, epochs=1, verbose=0).history["loss"] == pytest.approx(alone["loss"], rel=1e-5)
