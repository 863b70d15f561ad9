"""Batches that steps take, as Keras makes them; losses and their weights for outputs that a model does not have."""

import numpy as np
import pytest

from official_trainer.lazy import keras
from official_trainer.program import ArgumentError, Program
from tests.support.cases import cases

X, Y = np.zeros([4, 3], np.float32), np.zeros([4, 1], np.float32)


def layers():
    inputs = keras.Input([3])
    return inputs, [keras.layers.Dense(1, name=name)(inputs) for name in ("left", "right")]


def listed():
    inputs, outputs = layers()
    return keras.Model(inputs, outputs), [Y, Y]


def named():
    inputs, (left, right) = layers()
    return keras.Model(inputs, {"a": left, "b": right}), {"a": Y, "b": Y}


class Subclass(keras.Model):
    """Only a batch shows its outputs."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return {"a": self.dense(inputs), "b": self.dense(inputs)}


def fit(made, **settings):
    model, targets = made
    program = Program(model)
    program.compile("sgd", **{"loss": "mse", **settings})
    return program.fit(X, targets, verbose=0).history


UNFIT = [
    (listed, {"loss": {"left": "mse", "rigt": "mse"}}, r"loss\['rigt'\]: the outputs are left, right; .*'right'\?"),
    (listed, {"loss": ["mse"]}, r"loss needs one entry for each of the 2 outputs \(left, right\), .*it has 1"),
    (listed, {"loss_weights": [1.0, 2.0, 3.0]}, r"loss_weights needs one entry for each of the 2 .*it has 3"),
    (named, {"loss": {"a": "mse", "bb": "mse"}}, r"loss\['bb'\]: the outputs are a, b$"),
    (named, {"loss_weights": {"a": 1.0, "zz": 2.0}}, r"loss_weights\['zz'\]: the outputs are a, b"),
    (lambda: (Subclass(), {"a": Y, "b": Y}), {"loss": {"a": "mse", "bb": "mse"}}, r"loss\['bb'\]: the outputs"),
]


def test_arguments_for_outputs_that_are_not_there_are_refused():
    """K1: Keras trains without them, and says nothing."""
    for make, settings, message in UNFIT:
        with pytest.raises(ArgumentError, match=message):
            fit(make(), **settings)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (listed, {"loss": {"left": "mse"}, "loss_weights": {"left": 2.0}}),  # one of them is not trained
        (named, {"loss": {"a": "mse", "b": "mae"}, "metrics": {"a": ["mae", "mse"]}}),
    ],
)
def test_arguments_for_some_outputs_are_as_in_keras(make, settings):
    """K1: an output without a loss is not trained, if the arguments say so."""
    assert "loss" in fit(make(), **settings)


def test_outputs_within_outputs_are_left_to_keras():
    """K1: it compares their structure."""
    inputs, (left, right) = layers()
    assert "loss" in fit((keras.Model(inputs, [[left, right], left]), [[Y, Y], Y]))


class Drawn:
    """A generator without an end, of batches with a number; says how many were read."""

    def __init__(self):
        self.count = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        return np.full([2, 1], self.count, np.float32), np.zeros([2, 1], np.float32)


def number(y_true, y_pred):
    return y_pred


def test_a_generator_is_read_no_further_than_it_is_used():
    """K4: Keras reads ahead, so that batches are lost between validations, and between two calls of `fit`."""
    program = Program(keras.Sequential([keras.Input([1]), keras.layers.Dense(1, kernel_initializer="ones")]))
    program.compile(keras.optimizers.SGD(0.0), "mse", metrics=[number])
    train, validation = Drawn(), Drawn()
    given = {"steps_per_epoch": 3, "validation_data": validation, "validation_steps": 2, "verbose": 0}
    history = program.fit(train, epochs=2, **given).history
    assert history["number"] == [2.0, 5.0]  # the means of 1 to 3, and of 4 to 6
    assert history["val_number"] == [1.5, 3.5]
    assert program.fit(train, **given).history["number"] == [8.0]
    assert program.evaluate(train, steps=2, verbose=0, return_dict=True)["number"] == 10.5
    assert program.predict(train, steps=1, verbose=0).ravel().tolist() == [12.0, 12.0]
    assert (train.count, validation.count) == (12, 6)


class Sizes(keras.Model):
    """Looks at the values of each batch, which only eager steps have; its output is the size of the batch."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, inputs, training=False):
        size = float(len(inputs.numpy()))
        return size + 0.0 * self.dense(inputs)


def batches(count):
    for number in range(count):
        yield np.full([number + 1, 1], 1.0), np.zeros([number + 1])


ROWS = np.arange(20, dtype=np.float32)[:, None]
BY_STEPS = {
    "evaluate": lambda owner: owner.evaluate(ROWS, ROWS, steps=3, verbose=0),
    "evaluate all of a size": lambda owner: owner.evaluate(ROWS, ROWS, batch_size=4, steps=3, verbose=0),
    "predict": lambda owner: owner.predict(ROWS, steps=3, verbose=0),
    "predict more steps than rows": lambda owner: owner.predict(ROWS[:2], steps=3, verbose=0),
    "fit": lambda owner: fitted(owner, steps_per_epoch=3, validation_data=(ROWS[:9], ROWS[:9]), validation_steps=2),
    "fit a share": lambda owner: fitted(owner, steps_per_epoch=3, validation_split=0.5, validation_steps=4),
    "fit a share of a size": lambda owner: fitted(owner, batch_size=4, validation_split=0.5, validation_batch_size=3),
    "generator": lambda owner: owner.evaluate(batches(9), steps=4, verbose=0),
}


def fitted(owner, **arguments):
    return owner.fit(ROWS, ROWS, epochs=2, shuffle=False, verbose=0, **arguments).history


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("name", cases(list(BY_STEPS), "predict", "fit a share"))
def test_steps_alone_say_how_many_rows_a_batch_has(name):
    """K2, K3, K4: as in Keras, and the model that runs eagerly gets values, as there."""
    found = []
    for owner in (lambda model: model, Program):
        program = owner(Sizes())
        program.compile(keras.optimizers.SGD(0.0), "mae", run_eagerly=True)
        found.append(BY_STEPS[name](program))
    np.testing.assert_equal(found[1], found[0])
