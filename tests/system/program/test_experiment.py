"""What was tried in a notebook, trained by train.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import digits
from official_trainer.lazy import keras, tf
from official_trainer.program import Program
from tests import ROOT
from tests.support.cases import cases
from tests.support.forked import run_command
from tests.support.garden import data as garden_data
from tests.support.garden.families import FAMILIES
from tests.support.programs import CONSTANT, NO_WARMUP, mlp


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(ROOT)


def trained_by_train_py(tmp_path, config_file, name="digits_mlp"):
    """Returns the run directory, and the model's weights at the end, of a run with a written config."""
    run = tmp_path / "by train.py"
    argv = ["train", f"--experiment={name}", f"--config_file={config_file}", f"--model_dir={run}"]
    done = run_command(argv, cwd=ROOT, folder=tmp_path)
    assert done.code == 0, done.err
    return run, weights_in(run, name)


def weights_in(run, name):
    program = Program.from_experiment(name)
    checkpoint = tf.train.Checkpoint(model=program.model)
    checkpoint.restore(tf.train.latest_checkpoint(run)).assert_nontrivial_match().expect_partial()
    return program.model.get_weights()


def assert_bitwise(found, expected):
    assert len(found) == len(expected)
    assert all((left == right).all() for left, right in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", cases(["digits_mlp", "digits_cnn"], "digits_mlp"))
def test_train_py_trains_what_was_tried(tmp_path, name):
    """K6: the same weights, bit for bit, and the same evaluation: dropout, schedule, order of examples, two calls."""
    changed = ["task.train_data.global_batch_size=32", "runtime.seed=5"]
    program = Program.from_experiment(name, params_override=changed)
    first = program.fit(epochs=2, steps_per_epoch=9, verbose=0)
    assert list(first.history) == ["loss", "accuracy", "val_loss", "val_accuracy"]
    assert first.epoch == [0, 1]
    program.fit(epochs=1, steps_per_epoch=7, verbose=0)
    program.save_config(str(tmp_path / "tried.yaml"))
    config = program.to_config()
    assert (config.trainer.train_steps, config.task.train_data.global_batch_size, config.runtime.seed) == (25, 32, 5)

    run, weights = trained_by_train_py(tmp_path, tmp_path / "tried.yaml", name)
    assert_bitwise(program.model.get_weights(), weights)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    row = next(row for row in rows if row["split"] == "validation" and row["step"] == 25)
    assert program.evaluate(return_dict=True, verbose=0) == {
        "loss": row["validation_loss"],
        "accuracy": row["accuracy"],
    }


@pytest.mark.parametrize("override", cases([NO_WARMUP, CONSTANT], CONSTANT))
def test_a_learning_rate_that_was_assigned_is_in_the_config(tmp_path, override):
    """K6: in place of a schedule too."""
    program = mlp(params_override=override)
    program.model.optimizer.learning_rate = 0.01
    program.fit(epochs=1, steps_per_epoch=12, verbose=0)
    config = program.to_config().trainer.optimizer_config
    assert (config.learning_rate.type, config.learning_rate.constant.learning_rate) == ("constant", 0.01)
    assert config.warmup.type is None
    program.save_config(str(tmp_path / "tried.yaml"))
    _, weights = trained_by_train_py(tmp_path, tmp_path / "tried.yaml")
    assert_bitwise(program.model.get_weights(), weights)


@pytest.mark.full
def test_fit_and_train_py_go_on_with_each_others_runs(tmp_path):
    """K6: a run directory is one, whoever trains."""
    run = str(tmp_path / "run")
    sizes = ["trainer.checkpoint_interval=10"]
    program = mlp(run, params_override=sizes)
    program.fit(epochs=2, steps_per_epoch=10, verbose=0)
    saved = {path.name for path in Path(run).glob("*.manifest.json")}
    assert saved == {"ckpt-10.manifest.json", "ckpt-20.manifest.json"}
    program.save_config(str(tmp_path / "tried.yaml"))
    argv = ["train", "--experiment=digits_mlp", f"--config_file={tmp_path / 'tried.yaml'}", f"--model_dir={run}"]
    done = run_command([*argv, "--set=trainer.train_steps=30"], cwd=ROOT, folder=tmp_path)
    assert done.code == 0, done.err
    assert "continuing from step 20" in done.out
    again = mlp(run, params_override=sizes)
    again.fit(epochs=4, steps_per_epoch=10, verbose=0)
    whole = mlp(params_override=sizes)
    whole.fit(epochs=4, steps_per_epoch=10, verbose=0)
    assert_bitwise(again.model.get_weights(), whole.model.get_weights())


@pytest.mark.full
def test_an_experiment_of_model_garden_is_tried_in_a_notebook(tmp_path, monkeypatch):
    """K6: its own task, model and records, and the same weights by train.py."""
    family = FAMILIES["resnet"]
    garden_data.write(tmp_path / "tiny_data")
    monkeypatch.chdir(tmp_path)
    program = Program.from_experiment(family.experiment, config_file=str(family.overlay))
    history = program.fit(epochs=2, steps_per_epoch=3, verbose=0).history
    assert list(history) == [
        *("loss", "accuracy", "top_2_accuracy"),
        *("val_loss", "val_accuracy", "val_top_2_accuracy"),
    ]
    program.save_config("tried.yaml")
    argv = ["train", f"--experiment={family.experiment}", "--config_file=tried.yaml", f"--model_dir={tmp_path / 'run'}"]
    done = run_command([*argv, "--mode=train"], cwd=tmp_path, folder=tmp_path)
    assert done.code == 0, done.err
    other = Program.from_experiment(family.experiment, config_file=str(family.overlay))
    checkpoint = tf.train.Checkpoint(model=other.model)
    checkpoint.restore(tf.train.latest_checkpoint(tmp_path / "run")).assert_nontrivial_match().expect_partial()
    assert_bitwise(program.model.get_weights(), other.model.get_weights())


def test_its_own_data_is_as_long_as_before_after_other_data():
    """K2: an epoch of the experiment's data, after data was passed to a call."""
    program, callback = mlp(), keras.callbacks.Callback()
    (images, labels), _ = digits.load_digits(0.2)
    program.fit(verbose=0, callbacks=[callback])
    expected = callback.params["steps"]
    program.fit(images[:128], labels[:128], batch_size=64, verbose=0)
    program.fit(verbose=0, callbacks=[callback])
    assert callback.params["steps"] == expected


def test_an_epoch_is_as_long_as_the_data():
    """K2: 1,437 examples in batches of 64."""
    program = mlp()
    seen = []
    looking = keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: seen.append(batch))
    program.fit(epochs=1, verbose=0, callbacks=[looking])
    assert seen == list(range(23))
    assert program.to_config().trainer.train_steps == 23
