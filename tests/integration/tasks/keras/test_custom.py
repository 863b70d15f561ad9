"""Learning rates and optimizers of a workspace, as both Kerases take them; what is wrong with them is said."""

import dataclasses
import importlib
from typing import Any

import pytest
import tensorflow as tf

from official_trainer.config import (
    ConfigError,
    CustomOptimizerConfig,
    CustomScheduleConfig,
    RuntimeConfig,
    components,
    opt,
)
from official_trainer.tasks import keras as kerases
from official_trainer.tasks.keras import custom
from official_trainer.tasks.optimization import RateScale
from tests import ROOT
from tests.support import workspaces

WORKSPACE = ROOT / "tests/support/attached_state"


@pytest.fixture
def workspace(monkeypatch):
    monkeypatch.setattr(components, "_workspace", [WORKSPACE])
    with workspaces.apart(WORKSPACE):
        yield


@pytest.mark.parametrize("name", ["keras", "tf_keras"])
def test_an_optimizer_with_a_schedule_of_the_workspace(name, workspace):
    """T15: after a warm-up, with the loss scale of float16; in a step that is traced, and scaled by a recovery."""
    schedule = importlib.import_module("schedules.triangle").TriangleConfig(high=1.0, half_steps=4)
    heavy_ball = importlib.import_module("optimizers.heavy_ball").HeavyBallConfig(momentum=0.5)
    keras = importlib.import_module(name)
    implementation = kerases.of(keras.layers.Dense(1))
    runtime = RuntimeConfig(mixed_precision_dtype="float16", loss_scale=8.0)
    optimizer = implementation.build_optimizer(opt.custom(heavy_ball, schedule, warmup_steps=2), runtime)
    assert float(implementation.scale_loss(optimizer, tf.constant(1.0))) == 8
    assert kerases.inner(optimizer).momentum == 0.5
    steps, rates = tf.range(6, dtype=tf.int64), [0, 0.25, 0.5, 0.75, 1, 0.75]
    assert [float(implementation.rate(optimizer)(step)) for step in steps] == rates
    RateScale(optimizer).set(0.5)
    halved = tf.function(lambda: tf.stack([implementation.rate(optimizer)(step) for step in tf.unstack(steps)]))()
    assert halved.numpy().tolist() == [rate / 2 for rate in rates]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GivenRate(CustomScheduleConfig):
    built: Any = None

    def build(self):
        return self.built


@dataclasses.dataclass(frozen=True, kw_only=True)
class GivenOptimizer(CustomOptimizerConfig):
    def build(self, learning_rate):
        return "adam"


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (0.1, "build() must return a function of the step, and returned 0.1"),
        (lambda step: None, "the function of the step returned nothing (None); is a `return` missing?"),
        (lambda step: tf.stack([step, step]), "and the function of the step returned a tensor of shape (2,)"),
    ],
)
def test_a_schedule_that_gives_no_rate(built, message):
    """T15, N7: before the first step, with the field and the class."""
    section = GivenRate(built=built)
    with pytest.raises(ConfigError) as caught:
        custom.schedule(section, importlib.import_module("keras"))
    assert message in str(caught.value)
    assert "trainer.optimizer_config.learning_rate.test_custom: " in str(caught.value)
    assert "test_custom.py:" in str(caught.value)


def test_what_is_no_optimizer():
    """T15, N7"""
    with pytest.raises(
        ConfigError, match=r"optimizer.test_custom: build\(learning_rate\) must return an optimizer, and"
    ):
        custom.optimizer(GivenOptimizer(), 0.1)
