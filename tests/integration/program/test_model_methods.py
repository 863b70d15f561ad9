"""A Program has what its Keras model has."""

import inspect

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
    epochs = []
    one_callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(epoch))
    fitted = program.fit(X, Y, verbose=0, callbacks=one_callback)  # which needs no list
    assert epochs == [0]
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
    assert not np.allclose(program(X, training=True).numpy(), expected)
    program.save_weights(tmp_path / "a.weights.h5")
    other = Program(keras.models.clone_model(program.model))
    other.load_weights(tmp_path / "a.weights.h5")
    assert (other.predict(X, verbose=0) == expected).all()


def test_what_only_the_model_has_is_the_models():
    """K8: to read and to set; names of the user's own are set on the Program."""
    program = lightly(Program(light()))
    assert program.layers is not None
    assert program.get_layer(index=1) is program.model.layers[1]
    program.trainable, program.note, program.stop_training = False, "mine", True
    assert (program.model.trainable, program.note, program.model.stop_training) == (False, "mine", True)
    with pytest.raises(AttributeError, match="'layerz'"):
        program.layerz  # noqa: B018


def names_of_a_model():
    return [name for name in dir(keras.Model) if not name.startswith("_")]


LEFT_OUT = {
    "compile": ["pss_evaluation_shards"],
    "evaluate": ["max_queue_size", "workers", "use_multiprocessing"],
    "fit": ["max_queue_size", "workers", "use_multiprocessing"],
    "load_weights": ["skip_mismatch", "by_name", "options"],
    "predict": ["max_queue_size", "workers", "use_multiprocessing"],
    "save": ["save_format"],
}
"""Parameters of Keras that a Program refuses; those of `load_weights` and `save` are there on its model."""
OTHER_DEFAULTS = {"compute_metrics": {"sample_weight": None}, "predict": {"x": None}}
"""Where Keras has None, which means the same, or no default."""


def test_methods_of_a_model_take_what_keras_documents():
    """K8: the same parameters in the same order, but those of LEFT_OUT, so that calls by position mean the same."""
    for name in names_of_a_model():
        ours, theirs = getattr(Program, name, None), getattr(keras.Model, name)
        if not inspect.isfunction(ours) or not callable(theirs):
            continue
        taken, expected = (inspect.signature(each).parameters.values() for each in (ours, theirs))
        taken, expected = ({p.name: p for p in each if p.kind != p.VAR_POSITIONAL} for each in (taken, expected))
        if any(p.kind == p.VAR_KEYWORD for p in taken.values()):
            continue
        found = [each for each, p in expected.items() if each not in taken and p.kind != p.VAR_KEYWORD]
        assert found == LEFT_OUT.get(name, []), name
        shared = [each for each in expected if each in taken]
        assert list(taken)[: len(shared)] == shared, name
        usual = {each: expected[each].default for each in shared}
        assert {each: taken[each].default for each in shared} == {**usual, **OTHER_DEFAULTS.get(name, {})}, name


def test_what_builds_no_model_is_refused():
    """K8: a function that returns nothing; what is no function."""
    with pytest.raises(ArgumentError, match=r"is no Keras model, nor a function that builds one: it returned None"):
        Program(lambda: None)
    with pytest.raises(ArgumentError, match=r"^Program: 'model.h5' is no Keras model, nor a function that builds one$"):
        Program("model.h5")
