"""A Program has what its Keras model has, or says where that is."""

import numpy as np
import pytest

from official_trainer.lazy import keras
from official_trainer.program import ArgumentError, Program
from tests.support.programs import examples, light, lightly

X, Y = examples()


def test_a_program_has_the_methods_of_its_model(capsys):
    """K8: what Keras users type first in a notebook."""
    program = Program(light())
    assert (program.optimizer, program.history) == (None, None)
    lightly(program)
    fitted = program.fit(X, Y, verbose=0)
    assert program.history is fitted
    assert program.optimizer is program.model.optimizer
    program.summary(line_length=60)
    assert "Total params: 21" in capsys.readouterr().out
    assert program.get_metrics_result()["loss"] > 0
    program.reset_metrics()
    assert program.get_metrics_result()["loss"] == 0


def test_a_program_is_called_as_its_model(tmp_path):
    """K8: with and without what layers do in training alone; `save_weights` writes what `load_weights` reads."""
    inputs = keras.Input([6])
    program = Program(keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dropout(0.9)(inputs))))
    expected = program.predict(X, verbose=0)
    assert program(X).numpy() == pytest.approx(expected, abs=1e-6)
    assert program.predict_on_batch(X) == pytest.approx(expected, abs=1e-6)
    for outputs in (program(X, training=True).numpy(), program.predict_on_batch(X, training=True)):
        assert not np.allclose(outputs, expected)
    program.save_weights(tmp_path / "a.weights.h5")
    other = Program(keras.models.clone_model(program.model))
    other.load_weights(tmp_path / "a.weights.h5")
    assert (other.predict(X, verbose=0) == expected).all()


def test_what_only_the_model_has_is_named():
    """K8"""
    program = Program(light())
    with pytest.raises(
        AttributeError, match=r"^Program has no attribute 'layers', but its model has it: model\.layers$"
    ):
        program.layers  # noqa: B018
    with pytest.raises(AttributeError, match=r"^Program has no attribute 'layerz'$"):
        program.layerz  # noqa: B018


def test_a_model_of_keras_3_is_refused():
    """K8: it could be called as a function that builds a model, and would fail far from here."""
    keras3 = pytest.importorskip("keras", minversion="3")
    message = (
        r"Program: Sequential is a model of Keras 3, .* or set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported"
    )
    with pytest.raises(ArgumentError, match=message):
        Program(keras3.Sequential([keras3.layers.Dense(1)]))
