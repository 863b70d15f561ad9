"""What a run is made of and runs on, at its start."""

import logging

import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from official_trainer.tracking.record import versions
from tests.support import toy

do = toy.runs_of("environment", toy.ToyTask, train_steps=4, export=toy.NO_EXPORT)
HOW = {"mode": "train", "argv": ("train.py", "--x=a b|c")}
MIRRORED = "runtime.distribution_strategy=mirrored"


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
        do(model_dir, MIRRORED, **HOW)
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
    do(model_dir, MIRRORED, named, **HOW)  # in its own section; the config is another one by that
    assert [len(texts(model_dir)[tag]) for tag in ("environment", "parameters", "config")] == [1, 1, 2]
