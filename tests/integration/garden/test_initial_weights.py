"""Initial weights under `run_experiment` and under Model Garden's own driver, from the program's seed."""

import random

import numpy as np
import pytest
import tensorflow as tf
from official.core import base_trainer, train_lib

from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import keras
from official_trainer.program.run_experiment import run_experiment
from tests.support import toy
from tests.support.cases import cases
from tests.support.garden.driver import _untouched_process, params_of, weights_of  # noqa: F401
from tests.support.garden.toy import GardenTask


@pytest.fixture(autouse=True)
def _as_in_a_program_of_its_own(monkeypatch):
    """Earlier tests of the process may have left seeds, and layers that draw from generators."""
    monkeypatch.setattr(keras.src.backend, "_USE_GENERATOR_FOR_RNG", False)
    monkeypatch.setattr(keras.src.backend._SEED_GENERATOR, "generator", None, raising=False)


class Layered(GardenTask):
    """Draws weights of every kind: by Keras's initializers and by TensorFlow's operations, around dropout."""

    def build_model(self):
        return keras.Sequential(
            [
                keras.Input([6]),
                keras.layers.Dense(8, "relu"),
                keras.layers.Dropout(0.0),
                Scaled(8),
                keras.layers.GaussianNoise(0.0),
                keras.layers.Dense(3),
            ]
        )


class Scaled(keras.layers.Layer):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def build(self, shape):
        self.scale = self.add_weight("scale", [self.size], initializer=tf.random_normal_initializer())
        self.shift = tf.Variable(tf.random.normal([self.size]))

    def call(self, inputs):
        return inputs * self.scale + self.shift


class Subclassed(keras.Model):
    """Has variables once it is called."""

    def __init__(self):
        super().__init__()
        self.layers_in_order = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.0), keras.layers.Dense(4)]
        self.last = keras.layers.Dense(3)

    def call(self, inputs, training=None):
        for layer in self.layers_in_order:
            inputs = layer(inputs, training=training)
        return self.last(inputs)


class Unbuilt(GardenTask):
    def build_model(self):
        return Subclassed()


class HalfBuilt(GardenTask):
    def build_model(self):
        model = Subclassed()
        model.layers_in_order[0].build([None, 6])
        return model


def of_keras():
    keras.utils.set_random_seed(7)


def of_each():
    random.seed(7)
    tf.random.set_seed(7)


def trained(run, task_cls, model_dir, *, seed=of_keras, strategy="off", ema=False, trainer_cls=None):
    """Returns weights after two steps whose data and random numbers are the same in both drivers, and their loss."""
    keras.backend.clear_session()
    params = params_of(train_steps=2, steps_per_loop=1, summary_interval=1, checkpoint_interval=2)
    if ema:
        params.override({"trainer": {"optimizer_config": {"ema": {"average_decay": 0.5}}}})
    task, losses = task_cls(params.task), []
    scope = toy.strategy_of(strategy)
    seed()
    options = {}
    if trainer_cls is not None:
        with scope.scope():
            optimizer = task.create_optimizer(params.trainer.optimizer_config, params.runtime)
            options = {"trainer": trainer_cls(params, task, task.build_model(), optimizer)}
    actions = [lambda logs: losses.append(float(logs["training_loss"]))]
    model, _ = run(scope, task, "train", params, str(model_dir), train_actions=actions, **options)
    return weights_of(model), losses


CASES = {
    "built": {"task_cls": Layered},
    "of each": {"task_cls": Layered, "seed": of_each},
    "unbuilt": {"task_cls": Unbuilt},
    "half built": {"task_cls": HalfBuilt},
    "averaged": {"task_cls": Layered, "ema": True},
    "mirrored": {"task_cls": Layered, "strategy": "mirrored2"},
    "unbuilt, mirrored": {"task_cls": Unbuilt, "strategy": "mirrored2"},
    "half built, mirrored": {"task_cls": HalfBuilt, "strategy": "mirrored2"},
}


@pytest.mark.parametrize("case", cases(list(CASES), "built"))
def test_a_seed_gives_the_weights_and_losses_of_their_driver(case, tmp_path):
    """T1: the order of variables and of what draws is theirs."""
    theirs = trained(train_lib.run_experiment, model_dir=tmp_path / "theirs", **CASES[case])
    assert_equal(trained(run_experiment, model_dir=tmp_path / "ours", **CASES[case]), theirs)


@pytest.mark.parametrize("task_cls", cases([Layered, Unbuilt], Unbuilt))
def test_a_trainer_of_the_caller_has_them_too(task_cls, tmp_path):
    """T1: the program builds it after its seed."""
    theirs, ours = {"trainer_cls": base_trainer.Trainer}, {"trainer_cls": Trainer}
    expected = trained(train_lib.run_experiment, task_cls, tmp_path / "theirs", **theirs)
    assert_equal(trained(run_experiment, task_cls, tmp_path / "ours", **ours), expected)


def assert_equal(ours, theirs):
    (weights, losses), (their_weights, their_losses) = ours, theirs
    assert losses == their_losses
    assert len(losses) == 2
    for mine, other in zip(weights, their_weights, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_without_a_seed_it_is_that_of_the_config_and_the_program_keeps_its_own_numbers(tmp_path):
    """N1: a run that dies before its first checkpoint begins again with the same weights."""
    keras.src.backend.enable_tf_random_generator()
    with_generators, _ = trained(run_experiment, Layered, tmp_path / "generators", seed=of_nothing)
    keras.src.backend.disable_tf_random_generator()
    random.seed(1)
    np.random.seed(1)
    first, _ = trained(run_experiment, Layered, tmp_path / "first", seed=of_nothing)
    drawn = random.random(), np.random.random()
    toy.assert_bitwise_equal(with_generators, first)
    random.seed(1)
    np.random.seed(1)
    assert drawn == (random.random(), np.random.random())
    assert not keras.backend.experimental.is_tf_random_generator_enabled()
    assert not np.array_equal(tf.random.normal([2]), tf.random.normal([2]))


def of_nothing():
    tf.random.set_seed(None)


def test_a_config_of_ours_has_the_seed(tmp_path):
    """N1: `runtime.seed` is what a run is repeated from, whatever the program has set."""
    found = []
    for number in (1, 2):
        keras.backend.clear_session()
        keras.utils.set_random_seed(number)
        config = toy.experiment()
        config = config.replace(trainer=config.trainer.replace(train_steps=1))
        model, _ = run_experiment(None, toy.ToyTask(config.task), "train", config, str(tmp_path / str(number)))
        found.append(weights_of(model))
    toy.assert_bitwise_equal(*found)
