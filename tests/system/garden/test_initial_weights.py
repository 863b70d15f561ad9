"""Initial weights of Model Garden's families under `run_experiment` and under its own driver."""

import os

import numpy as np
import pytest
import tensorflow as tf
from official.core import task_factory, train_lib

from official_trainer.lazy import keras
from official_trainer.program.run_experiment import run_experiment
from tests.support.garden import data
from tests.support.garden.driver import _untouched_process  # noqa: F401
from tests.support.garden.families import FAMILIES


@pytest.fixture(scope="module", autouse=True)
def _tiny_data(tmp_path_factory):
    """The overlays name their data below the working directory."""
    folder, before = tmp_path_factory.mktemp("garden"), os.getcwd()
    data.write(folder / "tiny_data")
    os.chdir(folder)
    yield
    os.chdir(before)


class Begun(Exception):
    """A run has its initial weights."""


@pytest.mark.parametrize(
    "family",
    [pytest.param(each, id=each.name, marks=() if each.is_quick else pytest.mark.full) for each in FAMILIES.values()],
)
def test_a_seed_gives_a_family_the_weights_of_their_driver(family, tmp_path, monkeypatch):
    """T1: from the program's seed, dropout and all."""
    monkeypatch.setattr(keras.src.backend, "_USE_GENERATOR_FOR_RNG", False)
    theirs = initial_weights(train_lib.run_experiment, family, tmp_path / "theirs")
    ours = initial_weights(run_experiment, family, tmp_path / "ours")
    assert theirs.keys() <= ours.keys(), "there some wait for the first step"
    assert len(theirs) > 10
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


def initial_weights(run, family, model_dir):
    """Returns the weights by name when a run initializes the task, which is before its first step."""
    keras.backend.clear_session()
    params, found = family.params(), {}
    keras.utils.set_random_seed(11)
    task = task_factory.get_task(params.task, logging_dir=str(model_dir))

    def initialize(model):
        found.update((variable.name, variable.numpy()) for variable in model.variables)
        raise Begun

    task.initialize = initialize
    with pytest.raises(Begun):
        run(tf.distribute.get_strategy(), task, "train", params, str(model_dir))
    return found
