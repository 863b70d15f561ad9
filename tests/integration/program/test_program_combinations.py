"""Arguments of `fit` together: history, calls of callbacks and weights are those of Keras on the same seed."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from official_trainer.lazy import keras, tf
from official_trainer.program import Program
from tests.support.cases import cases
from tests.support.programs import (
    CLASSES,
    EXAMPLES,
    FEATURES,
    Diary,
    Halves,
    build,
    examples,
    generated,
    light,
    lightly,
    with_own_steps,
)

X, Y = examples()
WEIGHTS = np.linspace(0.1, 2, EXAMPLES).astype(np.float32)
BY_NAME = {"a": X[:, :2], "b": X[:, 2:]}
CLASS_WEIGHTS = {0: 1.0, 1: 0.5, 2: 3.0}


def sparse():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def dataset(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays or (X, Y)).batch(8)


def two(named=False):
    """Two inputs, and two outputs, in a list or by name."""
    keras.utils.set_random_seed(1)
    a, b = keras.Input([2], name="a"), keras.Input([4], name="b")
    hidden = keras.layers.Concatenate()([a, b])
    outputs = {name: keras.layers.Dense(CLASSES, name=name)(hidden) for name in ("left", "right")}
    return keras.Model({"a": a, "b": b}, outputs if named else list(outputs.values()))


class OwnResults(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return 2 * super().compute_loss(x, y, y_pred, sample_weight)

    def compute_metrics(self, x, y, y_pred, sample_weight):
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "largest": tf.reduce_max(y_pred)}


def with_own_results():
    model = build()
    return OwnResults(model.inputs, model.outputs)


def with_added():
    """Losses and metrics that layers and the model add."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input([FEATURES])
    hidden = keras.layers.Dense(8, activity_regularizer="l2")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES)(hidden))
    model.add_loss(tf.reduce_mean(hidden) * 0.1)
    model.add_metric(tf.reduce_mean(hidden), name="hidden", aggregation="mean")
    return model


def recurrent():
    keras.utils.set_random_seed(1)
    layers = [keras.Input([FEATURES]), keras.layers.Reshape([FEATURES, 1]), keras.layers.Masking()]
    return keras.Sequential([*layers, keras.layers.GRU(4), keras.layers.Dense(CLASSES)])


def decaying():
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    return {"optimizer": keras.optimizers.SGD(rate, momentum=0.9)}


def by_name():
    return {
        "loss": {"left": sparse(), "right": sparse()},
        "metrics": {"left": ["accuracy"], "right": ["mae"]},
        "loss_weights": {"left": 1.0, "right": 0.2},
    }


def arrays(**arguments):
    return {"x": X, "y": Y, "epochs": 2, **arguments}


COMBINATIONS = {
    "weights of a validation": (lambda: arrays(sample_weight=WEIGHTS, validation_data=(X[40:], Y[40:], WEIGHTS[40:])),),
    "weighted metrics": (
        lambda: arrays(sample_weight=WEIGHTS, validation_split=0.2),
        light,
        lambda: {"weighted_metrics": ["accuracy"]},
    ),
    "classes as one-hot": (
        lambda: arrays(y=np.eye(CLASSES, dtype=np.float32)[Y], class_weight=CLASS_WEIGHTS),
        light,
        lambda: {"loss": keras.losses.CategoricalCrossentropy(from_logits=True)},
    ),
    "first epoch and frequency": (lambda: arrays(initial_epoch=1, epochs=5, validation_split=0.2, validation_freq=3),),
    "batches of a validation": (lambda: arrays(batch_size=16, validation_split=0.4, validation_batch_size=3),),
    "doubles": (lambda: arrays(x=X.astype(np.float64), y=Y.astype(np.int64)),),
    "tensors": (lambda: arrays(x=tf.constant(X), y=tf.constant(Y)),),
    "eager": (lambda: arrays(validation_split=0.2), light, lambda: {"run_eagerly": True}),
    "a decaying rate": (lambda: arrays(epochs=3), light, decaying),
    "recurrent": (lambda: arrays(batch_size=16), recurrent),
    "outputs in a list": (
        lambda: arrays(x=BY_NAME, y=[Y, Y], validation_split=0.2),
        two,
        lambda: {"loss_weights": [1.0, 0.3]},
    ),
    "outputs by name": (
        lambda: arrays(x=BY_NAME, y={"left": Y, "right": Y}, validation_split=0.2),
        lambda: two(named=True),
        by_name,
    ),
    "weights by name": (
        lambda: arrays(
            x=BY_NAME, y={"left": Y, "right": Y}, sample_weight={"left": WEIGHTS, "right": WEIGHTS[::-1].copy()}
        ),
        lambda: two(named=True),
        by_name,
    ),
    "steps of the model": (lambda: arrays(validation_split=0.2), with_own_steps),
    "results of the model": (lambda: arrays(validation_split=0.2), with_own_results),
    "added losses": (lambda: arrays(validation_split=0.2), with_added),
    "fewer steps": (lambda: arrays(steps_per_epoch=2, batch_size=10, epochs=4),),
    "more steps": (lambda: arrays(steps_per_epoch=7, batch_size=10),),
    "dataset and list of frequencies": (
        lambda: {"x": dataset(), "validation_data": dataset().take(2), "validation_freq": [1, 3], "epochs": 3},
    ),
    "dataset with weights": (lambda: {"x": dataset(X, Y, WEIGHTS), "epochs": 2},),
    "dataset of structures": (lambda: {"x": dataset(BY_NAME, (Y, Y)), "epochs": 2}, two),
    "dataset that repeats": (lambda: {"x": dataset().repeat(), "steps_per_epoch": 4, "epochs": 3},),
    "dataset, validated by one that repeats": (
        lambda: {"x": dataset(), "validation_data": dataset().repeat(), "validation_steps": 3, "epochs": 2},
    ),
    "dataset and several steps at once": (
        lambda: {"x": dataset(), "validation_data": dataset(), "epochs": 2},
        light,
        lambda: {"steps_per_execution": 3},
    ),
    "dataset that ends in an epoch": (
        lambda: {"x": dataset(), "validation_data": dataset().take(1), "steps_per_epoch": 3, "epochs": 4},
    ),
    "dataset that ends with an epoch": (lambda: {"x": dataset().take(6), "steps_per_epoch": 3, "epochs": 3},),
    "generator with weights": (lambda: {"x": generated(12, X, Y, WEIGHTS), "steps_per_epoch": 3, "epochs": 4},),
    "generator that ends": (
        lambda: {"x": generated(7), "steps_per_epoch": 3, "epochs": 4},
        light,
        lambda: {"steps_per_execution": 2},
    ),
    "generator of one epoch": (lambda: {"x": generated(7)},),
    "sequence, validated by another": (
        lambda: {"x": Halves((X, Y)), "validation_data": Halves((X, Y)), "epochs": 3, "shuffle": False},
    ),
    "sequence in part": (lambda: {"x": Halves((X, Y)), "steps_per_epoch": 2, "epochs": 3, "shuffle": False},),
    "sequence and classes": (
        lambda: {"x": Halves((X, Y)), "class_weight": CLASS_WEIGHTS, "epochs": 2, "shuffle": False},
    ),
}
QUICK = (
    "outputs by name",
    "steps of the model",
    "more steps",
    "dataset that ends in an epoch",
    "generator that ends",
)


@pytest.mark.parametrize("name", cases(list(COMBINATIONS), *QUICK))
def test_what_comes_of_arguments_is_what_keras_makes_of_them(name):
    """K2, K3, K4, K5: each number of the history to the last bit, and each call with what it is told."""
    arguments, *others = COMBINATIONS[name]
    make, settings = (*others, *(light, dict)[len(others) :])
    found = []
    for owner in (lambda model: model, Program):
        program, diary = lightly(owner(make()), **settings()), Diary()
        given = arguments()
        given = {"shuffle": False, **given} if "y" in given else given
        history = program.fit(callbacks=[diary], verbose=0, **given)
        weights = getattr(program, "model", program).get_weights()
        found.append((history.history, history.epoch, diary.calls, weights))
    theirs, ours = found
    assert ours[:2] == theirs[:2]
    assert ours[2] == theirs[2]
    for value, expected in zip(ours[3], theirs[3], strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-8)  # the graphs around the steps differ


def test_there_are_as_many_as_promised():
    """K2: distinct ones, with those of `test_program.py`."""
    assert len(COMBINATIONS) >= 20


def test_who_runs_out_of_data_is_told(caplog):
    """K2: as by Keras, and how much there should have been; nothing of an epoch that was to take all there is."""
    with caplog.at_level(logging.WARNING):
        lightly(Program(light())).fit(generated(7), steps_per_epoch=3, epochs=4, verbose=0)
        assert (
            "the input ran out of data at step 7 of 12, in epoch 3 of 4, and training ends; give steps" in caplog.text
        )
        caplog.clear()
        lightly(Program(light())).fit(generated(7), verbose=0)
        assert "ran out" not in caplog.text
        lightly(Program(light())).fit(generated(7), epochs=2, verbose=0)
        assert "ran out of data at step 7, in epoch 1 of 2, and training ends; give steps_per_epoch" in caplog.text


def test_a_batch_that_never_came_is_no_update():
    """K2: the optimizer counts the batches that there were; Keras's counts one more."""
    x, y = np.ones((56, 6), "float32"), np.ones((56, 3), "float32")
    inputs = keras.Input([6])
    program = Program(keras.Model(inputs, keras.layers.Dense(3)(inputs)))
    program.compile("adam", "mse")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    program.fit(dataset, steps_per_epoch=5, epochs=3, verbose=0)
    assert int(program.model.optimizer.iterations.numpy()) == 7
