"""A whole program in one file."""

import pytest

from official_trainer.lazy import keras, tf
from official_trainer.program import ArgumentError, Program, load_program
from tests.support.programs import examples, light, lightly

X, Y = examples()


def test_a_program_is_read_without_the_code_that_built_it(tmp_path):
    """K9: weights, optimizer, losses and metrics; it evaluates and trains on as the one that was saved. Keras too."""
    program = lightly(Program(light(), seed=5), optimizer="adam")
    program.train_on_batch(X, Y)
    program.save(tmp_path / "program.keras")
    read = load_program(tmp_path / "program.keras", seed=5)
    assert read.test_on_batch(X, Y, return_dict=True) == program.test_on_batch(X, Y, return_dict=True)
    assert read.optimizer.iterations.numpy() == program.optimizer.iterations.numpy() > 0
    assert read.train_on_batch(X, Y) == pytest.approx(program.train_on_batch(X, Y), rel=1e-5)
    model = keras.models.load_model(tmp_path / "program.keras")
    assert model.optimizer.iterations.numpy() == program.optimizer.iterations.numpy() - 1


def test_layers_and_rewards_that_are_not_registered_are_given(tmp_path):
    """K9, K1"""

    class Doubling(keras.layers.Layer):
        def call(self, inputs):
            return 2 * inputs

    def nearness(y_true, y_pred):
        return -tf.reduce_mean(tf.abs(tf.cast(y_true, tf.float32)[:, None] - y_pred), axis=-1)

    inputs = keras.Input([6])
    program = lightly(Program(keras.Model(inputs, Doubling()(keras.layers.Dense(3)(inputs)))), reward=nearness)
    program.save(tmp_path / "program.keras")
    for given in ({}, {"Doubling": Doubling}):
        with pytest.raises(ArgumentError, match=r"load_program: .*program\.keras cannot be read: .* in custom_objects"):
            load_program(tmp_path / "program.keras", custom_objects=given)
    read = load_program(tmp_path / "program.keras", custom_objects={"Doubling": Doubling, "nearness": nearness})
    assert (read.predict(X, verbose=0) == program.predict(X, verbose=0)).all()
    assert read.test_on_batch(X, Y) == pytest.approx(program.test_on_batch(X, Y))


def test_a_file_that_is_no_program_is_named(tmp_path):
    """K9"""
    (tmp_path / "broken.keras").write_bytes(b"no archive")
    for name in ("broken.keras", "missing.keras"):
        with pytest.raises(ArgumentError, match=rf"load_program: .*{name} cannot be read"):
            load_program(tmp_path / name)


def test_code_in_a_file_does_not_run(tmp_path):
    """K9: a function that Keras would write into the file; what may contain such functions is not read."""
    inputs = keras.Input([6])
    model = keras.Model(inputs, keras.layers.Lambda(lambda x: 2 * x)(inputs))
    model.save(tmp_path / "program.keras")
    with pytest.raises(ArgumentError, match=r"load_program: .*program\.keras cannot be read: .*code execution"):
        load_program(tmp_path / "program.keras")
    (tmp_path / "saved_model").mkdir()
    (tmp_path / "saved_model" / "saved_model.pb").write_bytes(b"")
    for name in ("program.h5", "saved_model"):
        with pytest.raises(ArgumentError, match=rf"load_program: filepath='.*{name}'; allowed: a path that ends with"):
            load_program(tmp_path / name)
