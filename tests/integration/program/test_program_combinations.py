"""Arguments of `fit` together: history, calls of callbacks and weights are those of each Keras on the same seed."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from official_trainer.lazy import keras, tf
from official_trainer.program import Program
from tests import ROOT
from tests.support.cases import cases
from tests.support.fits import CASES, COMBINATIONS, IN_SHORT, KERASES, compare
from tests.support.programs import generated, light, lightly


@pytest.mark.parametrize(("name", "which"), cases(CASES, *IN_SHORT))
def test_what_comes_of_arguments_is_what_keras_makes_of_them(name, which, tmp_path):
    """K2, K3, K4, K5, N38: the history (of tf_keras to the last bit), each call, weights, outputs, files."""
    compare(name, which, tmp_path)


def test_what_differs_is_on_the_page():
    """K2: at most three combinations with each Keras, of at least 110, with the reason."""
    page = (ROOT / "docs" / "project" / "parity.md").read_text(encoding="utf-8")
    assert len(CASES) >= 110
    assert f"{len(CASES)} combinations" in page
    for which in KERASES:
        differing = {name: fit.differs[which] for name, fit in COMBINATIONS.items() if which in fit.differs}
        assert len(differing) <= 3
        for name, reason in differing.items():
            assert f"- {name}: {reason}" in page


def test_who_runs_out_of_data_is_told(caplog):
    """K2: as by Keras, and how much there should have been; nothing of an epoch that was to take all there is."""
    program = lightly(Program(light()))
    with caplog.at_level(logging.WARNING):
        program.fit(generated(7), steps_per_epoch=3, epochs=4, verbose=0)
        assert (
            "the input ran out of data at step 7 of 12, in epoch 3 of 4, and training ends; give steps" in caplog.text
        )
        caplog.clear()
        program.fit(generated(7), verbose=0)
        assert "ran out" not in caplog.text
        program.fit(generated(7), epochs=2, verbose=0)
        assert "ran out of data at step 21, in epoch 1 of 2, and training ends; give steps_per_epoch" in caplog.text


def test_a_batch_that_never_came_is_no_update():
    """K2: the optimizer counts the batches that there were; Keras's counts one more."""
    x, y = np.ones((56, 6), "float32"), np.ones((56, 3), "float32")
    inputs = keras.Input([6])
    program = Program(keras.Model(inputs, keras.layers.Dense(3)(inputs)))
    program.compile("adam", "mse")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    program.fit(dataset, steps_per_epoch=5, epochs=3, verbose=0)
    assert int(program.model.optimizer.iterations.numpy()) == 7
