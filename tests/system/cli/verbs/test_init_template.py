"""The example that `init` writes, which users copy: that it learns, and that its overlay fits."""

import functools
import random

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import cli, config
from official_trainer.tasks import contract, export, registry
from official_trainer.tasks import keras as kerases
from tests.support.forked import Child


@pytest.fixture
def workspace(tmp_path):
    assert cli.main(["init", str(tmp_path / "ws")]) == 0
    return tmp_path / "ws"


def test_the_example_learns(workspace):
    """T14, N37: config, task and factory found by name; more than nine in ten held-out wines told apart."""
    experiment = registry.get_config("my_experiment", workspace)
    task = registry.get_task_cls(experiment.task)(experiment.task)
    for set_seed in (random.seed, np.random.seed, tf.random.set_seed):
        set_seed(0)
    model = task.build_model()
    assert kerases.is_3(model)
    optimizer = contract.optimizer_of(task, experiment, model)
    train = task.build_inputs(experiment.task.train_data.replace(is_training=True))
    for batch in train.take(40):
        logs = task.train_step(batch, model, optimizer)
    assert float(logs["loss"]) < 0.3
    metrics = task.build_metrics(training=False)
    validation = list(task.build_inputs(experiment.task.validation_data.replace(is_training=False)))
    for batch in validation:
        task.validation_step(batch, model, metrics)
    assert sum(len(labels) for _, labels in validation) == 53
    assert metrics[0].name == experiment.trainer.best_checkpoint_eval_metric
    assert float(metrics[0].result()) > 0.9


def test_the_overlay_fits_the_example(workspace):
    """N23: what `configs/my_experiment.yaml` changes arrives."""
    base = registry.get_config("my_experiment", workspace)
    overlay = str(workspace / "configs" / "my_experiment.yaml")
    resolved = config.resolve(base, experiment="my_experiment", config_files=[overlay])
    assert resolved.config.task.hidden == (64, 32)
    assert resolved.config.trainer.optimizer_config.learning_rate.type == "cosine"


def test_the_dump_of_the_example_reads_back(workspace, tmp_path):
    """N7: dump, load, equal; the second dump is the first, byte for byte."""
    base = registry.get_config("my_experiment", workspace)
    first = config.dump(config.resolve(base, sets=["trainer.train_steps=9"]))
    (tmp_path / "params.yaml").write_text(first)
    assert config.dump(config.resolve(base, config_files=[str(tmp_path / "params.yaml")])) == first


def test_the_example_is_exported(workspace, tmp_path):
    """N37: a Sequential model, which is never called as a whole before."""
    experiment = registry.get_config("my_experiment", workspace)
    task = registry.get_task_cls(experiment.task)(experiment.task)
    model = task.build_model()
    assert export.save(str(tmp_path / "1"), task, model, step=1) == ["serving_default"]
    wines = np.random.default_rng(0).normal(size=[3, 13]).astype("float32")
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"](measurements=wines)
    np.testing.assert_allclose(served["probabilities"], task.predict_step(wines, model)["probabilities"], atol=1e-6)


@pytest.mark.full
def test_the_tests_of_the_example_fail_when_they_should(workspace, tmp_path):
    """N1, N36: labels that Python draws: there is nothing to learn, and a run that is stopped loses the generator."""
    file = workspace / "experiments" / "my_experiment.py"
    text = file.read_text().replace("import keras\n", "import keras, numpy as np, tensorflow as tf\n", 1)
    losses = "def build_losses(self, labels, model_outputs, aux_losses=None):\n"
    draw = "lambda many, generator=np.random.default_rng(0): generator.integers(3, size=len(many))"
    drawn = f"labels = tf.reshape(tf.numpy_function({draw}, [labels], tf.int64), [-1])"
    file.write_text(text.replace(losses, f"{losses}        {drawn}\n"))
    arguments = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=line", str(workspace)]
    done = Child(functools.partial(pytest.main, arguments), cwd=tmp_path, folder=tmp_path).wait()
    assert "2 failed, 1 passed" in done.out
    assert "the loss is not near zero" in done.out
    assert "Arrays are not equal" in done.out
