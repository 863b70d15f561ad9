"""Rewards that are learned from in whole runs, and on two replicas."""

from __future__ import annotations

import numpy as np
import pytest

from official_trainer.lazy import keras
from official_trainer.program import Program, PythonReward, ScoreFunction
from tests.support.cases import cases
from tests.support.rewards import ESTIMATORS, assert_alike, examples, is_right, rewarded, under_a_strategy, weights_of


@pytest.fixture(scope="module")
def data():
    return examples()


def test_replicas_share_a_reward(data):
    """K1: two replicas train as one does."""
    arguments = {"batch_size": 10, "shuffle": False, "verbose": 0, "epochs": 2}
    expected, found = rewarded(), under_a_strategy()
    numbers = [program.fit(*data, **arguments).history for program in (expected, found)]
    assert_alike(weights_of(found), weights_of(expected))
    assert numbers[1]["reward"] == pytest.approx(numbers[0]["reward"], rel=1e-5)
    assert numbers[1]["loss"] == pytest.approx(numbers[0]["loss"], rel=1e-5)


@pytest.mark.full
def test_replicas_draw_each_for_themselves(data):
    """K1"""
    program = under_a_strategy(2, 0.5, reward=PythonReward(is_right), reward_estimator=ScoreFunction())
    y = (data[0][:, 0] > 0).astype(np.int32)
    history = program.fit(data[0], y, batch_size=10, epochs=10, verbose=0).history
    assert history["reward"][-1] > history["reward"][0] + 0.2


@pytest.mark.parametrize("name", cases(list(ESTIMATORS), "score"))
def test_digits_are_learned_from_being_told_right_or_wrong(name):
    """K1: a reward of Python, 1 for the right class; chance is 0.1."""
    estimator, rate = ESTIMATORS[name]
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int32)
    keras.utils.set_random_seed(1)
    inputs = keras.Input([64])
    program = Program(keras.Model(inputs, keras.layers.Dense(10)(inputs)))
    program.compile(
        keras.optimizers.Adam(rate), reward=PythonReward(is_right), reward_estimator=estimator, metrics=["accuracy"]
    )
    assert program.evaluate(x, y, verbose=0, return_dict=True)["accuracy"] < 0.2
    history = program.fit(x, y, batch_size=64, epochs=3, validation_split=0.2, verbose=0).history
    assert history["val_accuracy"][-1] > 0.4
    assert history["val_reward"][-1] == pytest.approx(history["val_accuracy"][-1])


def test_compiling_again_with_the_same_optimizer_changes_what_is_trained(data):
    """K1"""
    optimizer = keras.optimizers.SGD(0.1)
    program = rewarded(optimizer=optimizer)
    program.fit(*data, verbose=0)
    program.compile(optimizer, loss="mse")
    assert list(program.fit(*data, verbose=0).history) == ["loss"]
    assert program.evaluate(*data, verbose=0) > 0
