"""What a run is made of and runs on, at its start."""

import logging

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from official_trainer import config as configuration
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import registry
from official_trainer.tracking.record import versions
from tests.support import toy
from tests.support.cases import cases


@registry.register_config_factory("environment")
def environment():
    """Four steps."""
    base = toy.experiment()
    return base.replace(task=EnvironmentConfig(), trainer=base.trainer.replace(train_steps=4))


class EnvironmentConfig(configuration.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


registry.register_task_cls(EnvironmentConfig)(toy.ToyTask)


def do(model_dir, *sets, **options):
    keras.backend.clear_session()
    sets = ["trainer.export.at_end=false", *sets]
    resolved = configuration.resolve(registry.get_config("environment"), experiment="environment", sets=sets)
    options = {"argv": ("train.py", "--x=a b|c"), **options}
    return run.run("environment", resolved, mode="train", model_dir=model_dir, quiet=True, **options)


def texts(model_dir):
    """Returns what TensorBoard shows, by tag."""
    accumulator = EventAccumulator(f"{model_dir}/train").Reload()
    return {
        tag: [tf.make_ndarray(event.tensor_proto).item().decode() for event in accumulator.Tensors(tag)]
        for tag in ("environment", "parameters", "config")
    }


def test_every_run_says_what_it_is_made_of(model_dir, caplog):
    """B8: as texts in TensorBoard and in the log, without being asked, and once however often it is started."""
    with caplog.at_level(logging.DEBUG, logger="official_trainer"):
        do(model_dir, "runtime.distribution_strategy=mirrored")
    said = texts(model_dir)
    assert {tag: len(found) for tag, found in said.items()} == {"environment": 1, "parameters": 1, "config": 1}
    (table,), (parameters,), (config,) = said.values()
    for row in (
        "| experiment | environment |",
        "| command | train.py '--x=a b&#124;c' |",
        "| strategy | MirroredStrategy, 2 replicas |",
        f"| tensorflow | {versions()['tensorflow']} |",
        "| git revision |",
        "/device:CPU:0, /device:CPU:1 |",
    ):
        assert row in table
    assert "    dense/kernel   (6, 8)  float32     48  yes\n" in parameters
    assert "    83 parameters, 83 of them trainable, 332 bytes\n" in parameters
    assert "    trainer:\n" in config and "      train_steps: 4\n" in config
    for line in ("strategy: MirroredStrategy, 2 replicas", "83 parameters, 83 of them trainable", "  train_steps: 4"):
        assert line in caplog.text
    do(model_dir, "runtime.distribution_strategy=mirrored", argv=("train.py", "--x=a b|c"))
    assert texts(model_dir) == said


@pytest.mark.parametrize("priority", cases([0, 5], 5))
def test_it_may_be_named_in_the_config(model_dir, priority):
    """B8: then it is there once, as the config says."""
    do(model_dir, f"trainer.actions=[{{type: publish_environment, priority: {priority}, name: mine}}]")
    assert {len(found) for found in texts(model_dir).values()} == {1}


def test_what_changes_is_said_again(model_dir):
    """B8: a run that goes on with another config."""
    do(model_dir)
    do(model_dir, "trainer.train_steps=6")
    said = texts(model_dir)
    assert [len(said[tag]) for tag in ("environment", "parameters", "config")] == [1, 1, 2]
