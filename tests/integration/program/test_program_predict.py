"""predict: Keras's results and order of calls, on the engine's inference step."""

from __future__ import annotations

import numpy as np
import pytest

from official_trainer.engine.inference import OutputError
from official_trainer.inputs import DataError
from official_trainer.lazy import keras, tf
from official_trainer.program import ArgumentError, Program
from tests.support.programs import CLASSES, FEATURES, examples
from tests.support.toy import strategy_of

X, Y = examples()


def nested():
    """A model whose outputs are a dictionary with a list in it, for inputs by name."""
    keras.utils.set_random_seed(1)
    left, right = keras.Input([2], name="left"), keras.Input([4], name="right")
    hidden = keras.layers.Concatenate()([left, right])
    heads = [keras.layers.Dense(size)(hidden) for size in (1, 2, 3)]
    return keras.Model({"left": left, "right": right}, {"z": heads[0], "a": [heads[1], heads[2]]})


def plain():
    keras.utils.set_random_seed(1)
    pixels = keras.Input([FEATURES])
    return keras.Model(pixels, keras.layers.Dense(CLASSES)(keras.layers.Dropout(0.5)(pixels)))


PARTS = {"left": X[:, :2], "right": X[:, 2:]}


@pytest.mark.parametrize("strategy", ["off", "mirrored2"])
def test_results_are_those_of_keras(strategy):
    """K3: same structure, same order, a row for each example; also where a replica has none."""
    expected = nested().predict(PARTS, verbose=0)
    with strategy_of(strategy).scope():
        found = Program(nested()).predict(PARTS, verbose=0)
    tf.nest.assert_same_structure(found, expected)
    for value, their_value in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        assert isinstance(value, np.ndarray)
        np.testing.assert_allclose(value, their_value, rtol=1e-5, atol=1e-6)


def test_weights_are_those_of_now_and_steps_of_the_models_own_are_called():
    """K3: a model without a compiled loss, whose weights change between two calls."""

    class Own(keras.Model):
        def predict_step(self, data):
            return {"twice": 2.0 * super().predict_step(data)}

    pixels = keras.Input([FEATURES])
    program = Program(Own(pixels, keras.layers.Dense(CLASSES)(pixels)))
    first = program.predict(X, verbose=0)["twice"]
    np.testing.assert_allclose(first, 2 * program.model(X).numpy(), rtol=1e-5, atol=1e-6)
    program.model.set_weights([weight * 3 for weight in program.model.get_weights()])
    np.testing.assert_allclose(program.predict(X, verbose=0)["twice"], 3 * first, rtol=1e-5, atol=1e-6)


def test_a_model_that_waits_for_its_first_call_is_built():
    """K3"""
    program = Program(keras.Sequential([keras.layers.Dense(CLASSES)]))
    found = program.predict(X, verbose=0, batch_size=49)
    np.testing.assert_allclose(found, program.model(X).numpy(), rtol=1e-5, atol=1e-6)


def test_one_trace_serves_all_batches_and_calls():
    """K3: a smaller last batch, or more examples, are no reason to trace again."""
    traces = []

    class Counted(keras.layers.Layer):
        def call(self, inputs):
            traces.append(inputs.shape)
            return inputs

    program = Program(keras.Sequential([keras.Input([FEATURES]), Counted()]))
    built = len(traces)
    for size in (50, 33):
        program.predict(X[:size], batch_size=8, verbose=0)
    assert len(traces) == built + 1


def test_what_cannot_be_predicted_is_refused():
    """K3"""
    program = Program(plain())
    with pytest.raises(ArgumentError, match="the data has no end; give steps, the number of batches"):
        program.predict(tf.data.Dataset.from_tensor_slices(X).batch(8).repeat(), verbose=0)
    with pytest.raises(DataError, match="there is nothing to predict: the data has no batch"):
        program.predict(tf.data.Dataset.from_tensor_slices(X).batch(8).take(0), verbose=0)
    pixels = keras.Input([FEATURES])
    summed = Program(keras.Model(pixels, keras.layers.Lambda(lambda x: tf.reduce_sum(x, axis=0))(pixels)))
    with pytest.raises(OutputError, match="needs a row for each"):
        summed.predict(X, verbose=0)
