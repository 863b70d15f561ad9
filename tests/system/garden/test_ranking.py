"""Model Garden's ranking models from the command line; it has a program of its own for them."""

import sys

import pytest
import tensorflow as tf

from tests.support import runs
from tests.support.forked import Command, run_command
from tests.support.garden import data
from tests.support.garden.families import FAMILIES

OVERLAY = FAMILIES["dlrm"].overlay


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranking")
    data.write(folder / "tiny_data", ["clicks"])
    return folder


def command(experiment, model_dir, *words, mode="train_and_eval"):
    flags = [f"--experiment={experiment}", f"--config_file={OVERLAY}", f"--model_dir={model_dir}"]
    return ["train", f"--mode={mode}", *flags, "trainer.export.at_end=false", *words]


def test_an_experiment_trains_and_evaluates(folder):
    """T20: with the optimizers that its Task gives the model, whose rates are in the logs under their names there."""
    words = ["task.use_synthetic_data=true", "trainer.validation_steps=4"]
    completed = run_command(command("dlrm_criteo", folder / "run", *words), cwd=folder, folder=folder)
    assert completed.code == 0, completed.err
    rows = runs.rows(folder / "run")
    assert [row["step"] for row in rows if row["split"] == "validation"] == [4, 8]
    trained = [row for row in rows if row["split"] == "train"][-1]
    assert {"auc", "prediction_mean", "SGD_0_learning_rate", "Adam_1_learning_rate"} <= trained.keys()
    slots = [name for name, _ in tf.train.list_variables(str(folder / "run" / "ckpt-8")) if "_SLOT/" in name]
    assert slots, "Adam's"


def test_the_package_that_is_missing_is_named(folder):
    """T20: with the command that installs it."""
    argv = command("dlrm_criteo", folder / "missing")
    completed = Command(argv, cwd=folder, folder=folder, first=_without_the_package).wait()
    assert completed.code == 2
    said = "error: task: needs the package tensorflow_recommenders, which is not installed; pip install"
    assert said in completed.err
    assert "'official-trainer[ranking]'" in completed.err


def _without_the_package():
    sys.modules["tensorflow_recommenders"] = None
