"""An experiment in a notebook, and the config with which train.py trains what was tried there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from experiments import digits
from official_trainer.config import ConfigError, DataConfig, ExperimentConfig, TaskConfig
from official_trainer.lazy import keras
from official_trainer.program import ArgumentError, Program, ProgramCheckpoint
from official_trainer.program.experiment import ExperimentModel
from official_trainer.tasks import registry
from tests import ROOT
from tests.support.programs import CONSTANT, mlp
from tests.support.programs import build as build_plain
from tests.support.toy import ToyTask, experiment


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(ROOT)


class EndlessTask(ToyTask):
    """Data that does not say how long an epoch is."""


class EndlessConfig(TaskConfig):
    pass


@registry.register_config_factory("endless_toy")
def endless_toy() -> ExperimentConfig:
    return experiment().replace(task=EndlessConfig(train_data=DataConfig(global_batch_size=10)))


registry.register_task_cls(EndlessConfig)(EndlessTask)


def test_the_experiments_own_data_is_evaluated_and_predicted():
    """K3: a row for each example of the validation data."""
    program = mlp()
    _, (images, labels) = digits.load_digits(0.2)
    logits = program.predict(verbose=0)
    assert logits.shape == (len(labels), 10)
    np.testing.assert_allclose(logits, program.model(images).numpy(), rtol=1e-4, atol=1e-5)
    found = program.evaluate(return_dict=True, verbose=0)
    assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).mean()), rel=1e-6)
    of_arrays = program.evaluate(images, labels, batch_size=100, return_dict=True, verbose=0)
    assert of_arrays == pytest.approx(found, rel=1e-5)
    np.testing.assert_allclose(program.predict(images[:7], verbose=0), logits[:7], rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_an_experiment_that_counts_epochs_is_tried_in_steps():
    """K2: and begins again with each call."""
    program = mlp(params_override="trainer.train_steps=0,trainer.train_epochs=3")
    assert program.to_config().trainer.train_epochs == 3
    assert program.fit(epochs=2, verbose=0).epoch == [0, 1]
    trainer = program.to_config().trainer
    assert (trainer.train_steps, trainer.train_epochs) == (2 * 23, None)


def test_callbacks_stop_it_and_the_config_says_where():
    """K5"""
    stopper = keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=100.0, patience=1)
    program = mlp()
    assert program.fit(epochs=9, steps_per_epoch=3, verbose=0, callbacks=[stopper]).epoch == [0, 1]
    assert program.to_config().trainer.train_steps == 6


@pytest.mark.full
def test_arrays_are_trained_on_and_no_config_says_that():
    """K4"""
    program = mlp(params_override="runtime.distribution_strategy=mirrored")
    (images, labels), _ = digits.load_digits(0.2)
    arguments = {"batch_size": 64, "epochs": 2, "validation_split": 0.25, "verbose": 0}
    history = program.fit(images[:512], labels[:512], **arguments).history
    assert program.model.distribute_strategy.num_replicas_in_sync == 2
    assert history["loss"][1] < history["loss"][0]
    assert np.isfinite(history["val_loss"]).all()
    program.train_on_batch(images[:8], labels[:8])
    with pytest.raises(ArgumentError, match="to_config: no config can describe what was tried: it was trained on data"):
        program.to_config()
    with pytest.raises(ArgumentError, match="2 replicas cannot share the 37 examples of the last batch of an epoch"):
        program.fit(images[:101], labels[:101], batch_size=64)


def test_what_no_config_can_say_is_refused(tmp_path):
    """K6"""
    program = mlp(params_override=CONSTANT)
    fall = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
    program.fit(epochs=2, steps_per_epoch=2, verbose=0, callbacks=[fall])
    with pytest.raises(ArgumentError, match="its learning rate was changed during training; set trainer"):
        program.to_config()
    other = mlp()
    other.model.set_weights([weight + 1 for weight in other.model.get_weights()])
    other.fit(epochs=1, steps_per_epoch=1, verbose=0)
    with pytest.raises(
        ArgumentError, match=r"its weights were set in the notebook; name their .* task\.init_checkpoint"
    ):
        other.save_config(str(tmp_path / "tried.yaml"))
    with pytest.raises(ArgumentError, match="to_config: a config names an experiment, but this Program was made"):
        Program(build_plain()).to_config()


def test_what_an_experiment_says_is_not_said_twice():
    """K6"""
    program = mlp()
    with pytest.raises(ArgumentError, match=r"compile: the config of an experiment sets its .*; use from_exp"):
        program.compile("adam", "mse")
    with pytest.raises(ArgumentError, match="batch_size is for data passed to the call; the experiment's own"):
        program.fit(batch_size=3)
    with pytest.raises(ArgumentError, match="shuffle is for data passed to the call"):
        program.fit(shuffle=False)


def test_experiments_that_cannot_be_a_program_are_refused(monkeypatch):
    """K6"""
    with pytest.raises(ArgumentError, match="digits_tasks has several tasks, but a Program has one"):
        Program.from_experiment("digits_tasks")
    with pytest.raises(ConfigError, match=r"did you mean 'digits_mlp'\?"):
        Program.from_experiment("digits_mpl")
    program = Program.from_experiment("endless_toy")
    with pytest.raises(
        ArgumentError, match=r"the length of an epoch of the data is unknown; give fit\(steps_per_epoch=…\)"
    ):
        program.fit()
    monkeypatch.setattr(ExperimentModel, "own_validation", lambda self: None)
    assert list(program.fit(steps_per_epoch=3, verbose=0).history) == ["loss", "accuracy"]
    with pytest.raises(ArgumentError, match="has no validation data of its own"):
        program.evaluate()


def test_checkpoints_under_names_of_an_experiment(tmp_path):
    """C1, C2, K6: its metrics say which are best; a fit that waits in an event loop is the same."""
    program = Program.from_experiment("digits_mlp", params_override=CONSTANT)
    best = ProgramCheckpoint(f"{tmp_path}/{{epoch:02d}}-{{val_accuracy:.2f}}", monitor="val_accuracy", max_to_keep=1)
    fitting = program.fit_async(epochs=2, steps_per_epoch=5, validation_steps=1, verbose=0, callbacks=[best])
    history = asyncio.run(fitting).history
    (kept,) = best.kept
    number = int(np.argmax(history["val_accuracy"]))
    assert Path(kept).name == f"{number + 1:02d}-{history['val_accuracy'][number]:.2f}"
    with pytest.raises(ArgumentError, match="monitor: there is no 'val_accurcy' after an epoch; there are loss"):
        program.fit(epochs=1, callbacks=[ProgramCheckpoint(f"{tmp_path}/{{epoch}}", monitor="val_accurcy")])
