"""`--overfit_batches`: the first batches again and again, whatever they come from, and the verdict."""

import itertools
import json
import re

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import cli
from official_trainer.config import schema
from official_trainer.tasks import registry
from tests.support import several_tasks, shuffled_runs, toy
from tests.support.cases import full

EASY = ("task.train_data.global_batch_size=2", "trainer.optimizer_config.learning_rate.constant.learning_rate=0.05")


@registry.register_config_factory("undropped_run")
def undropped_run():
    """The toy run on points that its model can tell apart."""
    return registry.get_config("toy_run").replace(task=UndroppedConfig())


class UndroppedConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(UndroppedConfig)
class UndroppedTask(shuffled_runs.ShuffledTask):
    """Without dropout, so that its loss can reach zero."""

    build_model = toy.Undropped.build_model


def overfit(*words, folder, batches=2):
    """Runs the command in this process; returns its exit code."""
    words = (*words, f"--overfit_batches={batches}", f"--model_dir={folder / 'run'}")
    return cli.main(["train", *words])


def test_a_model_that_learns(tmp_path, capsys):
    """N36: the losses, the metric and the verdict are printed; no run directory is made, and exit code 0 says yes."""
    assert overfit("undropped_run", *EASY, "trainer.train_steps=2000", folder=tmp_path) == 0
    out = capsys.readouterr().out
    [(steps, first, last)] = re.findall(r"2 batches, (\d+) steps: loss (\S+) at first, (\S+) at last", out)
    assert float(last) <= 0.1 * float(first)
    assert 2 < int(steps) <= 1000
    assert "accuracy 1\nmodel and loss can learn" in out
    assert not list(tmp_path.iterdir())
    assert overfit("undropped_run", *EASY, "trainer.train_steps=7", folder=tmp_path) == 1
    assert "2 batches, 7 steps: loss" in capsys.readouterr().err


@pytest.mark.parametrize("rate", ["1e-9", *map(full, ("1e38", "3e-3"))])
def test_a_model_that_does_not_learn(tmp_path, capsys, rate):
    """N36: exit code 1, and what to look at, where the loss hardly fell, was not finite, or fell but not far enough."""
    rate = f"trainer.optimizer_config.learning_rate.constant.learning_rate={rate}"
    assert overfit("undropped_run", "trainer.train_steps=60", rate, folder=tmp_path) == 1
    assert "the loss is not near zero. Look at the labels that the loss gets" in capsys.readouterr().err


GARDENS = "trainer.optimizer_config.learning_rate={type: constant, constant: {learning_rate: 0.1}}"


@pytest.mark.parametrize(
    "words",
    [["mock", "trainer.optimizer_config.optimizer=sgd", GARDENS], pytest.param(["several"], marks=pytest.mark.full)],
)
def test_any_task_learns_its_batches(tmp_path, capsys, words):
    """N36: an experiment of Model Garden on two replicas, and several tasks."""
    two = "runtime.distribution_strategy=mirrored"
    assert overfit(*words, two, "trainer.train_steps=200", folder=tmp_path, batches=3) in (0, 1)
    shown = "".join(capsys.readouterr())
    [(first, last)] = re.findall(r"3 batches, \d+ steps: loss (\S+) at first, (\S+) at last", shown)
    assert float(last) < float(first)
    assert not list(tmp_path.iterdir())


def batches_of(trainer, count):
    """Returns the first batches that training gets, each as its replicas' arrays."""
    iterator, local = trainer.train_iterator.iterator(), trainer.strategy.experimental_local_results
    return [[leaf.numpy() for leaf in tf.nest.flatten(local(next(iterator)))] for _ in range(count)]


def same(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize(
    ("task", "strategy"),
    [full(("tf.data", "off")), ("arrays", "mirrored2"), ("joint", "xla"), full(("interleaved", "off"))],
)
def test_the_first_batches_come_again_and_again(task, strategy):
    """N36: they are the first ones of the run's own order, whole for all replicas, and no other comes between."""
    on, enable_xla = ("off", True) if strategy == "xla" else (strategy, False)

    def build():
        if task in ("joint", "interleaved"):
            config = several_tasks.experiment(joint=task == "joint")
            config = config.replace(runtime=config.runtime.replace(enable_xla=enable_xla))
            return several_tasks.build(config, on)
        kind = toy.ToyTask if task == "tf.data" else shuffled_runs.ShuffledTask
        return toy.build(toy.experiment(enable_xla=enable_xla), kind, on)

    plain = batches_of(build(), 3)
    assert not same(plain[0], plain[2])
    repeating = build()
    repeating.train_iterator.builder.repeat_first(3)
    for batch, expected in zip(batches_of(repeating, 8), itertools.cycle(plain), strict=False):
        assert same(batch, expected)


def test_it_runs_in_one_process(tmp_path, capsys, monkeypatch):
    """N36: among several processes it is refused, before TensorFlow is needed."""
    said = "--overfit_batches runs in one process, and"
    assert overfit("undropped_run", "runtime.distribution_strategy=parameter_server", folder=tmp_path) == 2
    assert f"{said} this strategy has several" in capsys.readouterr().err
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    assert overfit("undropped_run", folder=tmp_path) == 2
    assert f"{said} by TF_CONFIG it is one of" in capsys.readouterr().err
