"""What a SavedModel holds beside the weights of a model."""

import keras as keras3
import numpy as np
import pytest

from official_trainer.lazy import keras as keras2
from official_trainer.lazy import tf
from official_trainer.tasks import export
from official_trainer.tasks import keras as kerases
from tests.support import toy
from tests.support.cases import full

KERASES = {"2": keras2, "3": keras3}


class Served(toy.ToyTask):
    """Serves what it is told to."""

    def __init__(self, step=None):
        super().__init__(None)
        self.step = step or (lambda inputs, model: model(inputs, training=False))

    def predict_step(self, inputs, model, labels=None):
        return {"value": self.step(inputs, model)}


def served(folder, task, model):
    """Returns the serving function of an export, of the only input."""
    export.save(str(folder / "1"), task, model, step=1)
    loaded = tf.saved_model.load(str(folder / "1"))
    function = loaded.signatures["serving_default"]
    (name,) = function.structured_input_signature[1]

    def call(values, loaded=loaded):
        return function(**{name: tf.constant(values)})["value"].numpy()

    return call


def recurrent(keras, kind):
    series = keras.Input([6, 2], batch_size=4)
    layer = keras.layers.LSTM(3, stateful=True)
    if kind == "both ways":
        layer = keras.layers.Bidirectional(layer)
    if kind == "cells":
        layer = keras.layers.RNN([keras.layers.GRUCell(3), keras.layers.LSTMCell(2)], stateful=True)
    return keras.Model(series, keras.layers.Dense(1)(layer(series)))


@pytest.mark.parametrize(("kind", "which"), [full(("both ways", "2")), ("cells", "3")])
def test_a_served_recurrent_state_begins_anew_and_goes_on(tmp_path, kind, which):
    """T19: with zeros in each process that loads it, then from call to call; the state of training stays."""
    model, windows = recurrent(KERASES[which], kind), np.random.RandomState(0).randn(3, 4, 6, 2).astype("float32")
    wanted = [model(window, training=False).numpy() for window in windows]
    assert np.abs(wanted[1] - model(windows[1], training=False).numpy()).max() > 1e-4  # it has a state
    before = [state.numpy() for state in kerases.recurrent_states(model)]
    call = served(tmp_path, Served(), model)
    for state, value in zip(kerases.recurrent_states(model), before, strict=True):
        np.testing.assert_array_equal(state, value)
    for window, value in zip(windows, wanted, strict=True):
        np.testing.assert_allclose(call(window), value, atol=1e-6)
    (spec,) = export.default_signatures(Served(), model)["serving_default"].input_signature[0].values()
    assert spec.shape == [4, 6, 2]  # as many rows as there are states


def layer_that_counts(keras):
    class Counting(keras.layers.Layer):
        def build(self, shape):
            self.count = tf.Variable(2.0, trainable=False)

        def call(self, x):
            return x * self.count

    return Counting()


def table():
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2.0]), 0.0)


def of_task(name):
    """Returns what gives a task something, with which it serves."""

    def give(keras, task):
        if name == "a variable":
            task.held = tf.Variable(2.0)
            task.step = lambda x, model: model(x) * task.held
        elif name == "a model":
            task.held = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
            task.step = lambda x, model: model(x) + task.held(x)
        elif name == "a table":
            task.held = table()
            task.step = lambda x, model: model(x) + task.held.lookup(tf.cast(x[:, :1], tf.int32))
        else:
            task.held = keras.layers.IntegerLookup(vocabulary=[1, 2])
            task.step = lambda x, model: model(x) + tf.cast(task.held(tf.cast(x[:, :1], tf.int64)), tf.float32)

    return give


@pytest.mark.parametrize(
    ("name", "which"),
    [
        *(("a variable", "2"), ("a lookup", "2"), ("a layer's variable", "2")),
        *(("a model", "3"), ("a table", "3"), ("a layer's variable", "3")),
    ],
)
def test_what_a_signature_uses_beside_the_model_is_served(tmp_path, name, which):
    """T19: what a task holds, and variables of a layer that its Keras does not know; weights are there once."""
    keras = KERASES[which]
    task = Served()
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        x = keras.Input([2])
        if name == "a layer's variable":
            model = keras.Model(x, keras.layers.Dense(1)(layer_that_counts(keras)(x)))
        else:
            model = keras.Model(x, keras.layers.Dense(1)(x))
            of_task(name)(keras, task)
    values = np.array([[1.0, 3.0], [2.0, 1.0]], "float32")
    np.testing.assert_allclose(served(tmp_path, task, model)(values), task.step(tf.constant(values), model), atol=1e-6)
    names = [each for each, _ in tf.train.list_variables(str(tmp_path / "1" / "variables" / "variables"))]
    beside = {"a variable": 1, "a model": 2, "a layer's variable": int(keras is keras3)}
    assert sum("resources/" in each for each in names) == beside.get(name, 0)
