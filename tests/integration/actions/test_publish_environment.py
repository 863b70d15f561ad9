"""What a run is made of and runs on, at its start."""

import logging

import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from official_trainer import config as configuration
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import registry
from official_trainer.tracking.record import versions
from tests.support import toy


@registry.register_config_factory("environment")
def environment():
    """Four steps."""
    base = toy.experiment()
    return base.replace(task=EnvironmentConfig(), trainer=base.trainer.replace(train_steps=4))


class EnvironmentConfig(configuration.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


registry.register_task_cls(EnvironmentConfig)(toy.ToyTask)


def do(model_dir, *sets):
    keras.backend.clear_session()
    sets = ["trainer.export.at_end=false", "runtime.distribution_strategy=mirrored", *sets]
    resolved = configuration.resolve(registry.get_config("environment"), experiment="environment", sets=sets)
    argv = ("train.py", "--x=a b|c")
    return run.run("environment", resolved, mode="train", model_dir=model_dir, quiet=True, argv=argv)


def texts(model_dir):
    """Returns what TensorBoard shows, by tag."""
    accumulator = EventAccumulator(f"{model_dir}/train").Reload()
    return {
        tag: [tf.make_ndarray(event.tensor_proto).item().decode() for event in accumulator.Tensors(tag)]
        for tag in ("environment", "parameters", "config")
    }


def test_every_run_says_what_it_is_made_of(model_dir, caplog):
    """B8: as texts in TensorBoard and in the log, once however often it is started, and again what has changed."""
    with caplog.at_level(logging.DEBUG, logger="official_trainer"):
        do(model_dir)
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
    named = "trainer.actions=[{type: publish_environment, priority: 5, name: mine}]"
    do(model_dir, named)  # in its own section; the config is another one by that
    assert [len(texts(model_dir)[tag]) for tag in ("environment", "parameters", "config")] == [1, 1, 2]
