"""An experiment in a notebook, and the config with which train.py trains what was tried there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from experiments import digits
from official_trainer.config import ConfigError, DataConfig, ExperimentConfig, TaskConfig
from official_trainer.lazy import keras, tf
from official_trainer.program import ArgumentError, Program, ProgramCheckpoint
from official_trainer.program.experiment import ExperimentModel
from official_trainer.tasks import registry
from tests import ROOT
from tests.support.cases import cases
from tests.support.forked import run_command
from tests.support.garden import data as garden_data
from tests.support.garden.families import FAMILIES
from tests.support.programs import build as build_plain
from tests.support.toy import ToyTask, experiment
from tests.support.toy import examples as toy_examples

NO_WARMUP = "trainer.optimizer_config.warmup.type=null"
CONSTANT = (
    f"{NO_WARMUP},"
    "trainer.optimizer_config.learning_rate.type=constant,"
    "trainer.optimizer_config.learning_rate.constant.learning_rate=0.002"
)


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


class EpochsTask(ToyTask):
    """Data that ends with each epoch."""

    def build_inputs(self, params, input_context=None):
        return toy_examples(40).batch(10)


class EpochsConfig(TaskConfig):
    pass


@registry.register_config_factory("epochs_toy")
def epochs_toy() -> ExperimentConfig:
    counted = experiment()
    trainer = counted.trainer.replace(train_steps=0, train_epochs=3)
    return counted.replace(task=EpochsConfig(train_data=DataConfig(global_batch_size=10)), trainer=trainer)


registry.register_task_cls(EpochsConfig)(EpochsTask)


def mlp(model_dir=None, **settings):
    return Program.from_experiment("digits_mlp", model_dir, **settings)


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


def test_an_epoch_is_as_long_as_the_data():
    """K2: 1,437 examples in batches of 64."""
    program = mlp()
    seen = []
    looking = keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: seen.append(batch))
    program.fit(epochs=1, verbose=0, callbacks=[looking])
    assert seen == list(range(23))
    assert program.to_config().trainer.train_steps == 23


@pytest.mark.full
def test_data_that_ends_with_each_epoch_begins_again():
    """K2: in an experiment that counts epochs; what was tried counts steps."""
    program = Program.from_experiment("epochs_toy")
    assert program.to_config().trainer.train_epochs == 3
    assert program.fit(epochs=2, verbose=0).epoch == [0, 1]
    trainer = program.to_config().trainer
    assert (trainer.train_steps, trainer.train_epochs, trainer.on_data_end) == (8, None, "repeat")


def test_its_own_data_is_as_long_as_before_after_other_data():
    """K2: an epoch of the experiment's data, after data was passed to a call."""
    program, callback = mlp(), keras.callbacks.Callback()
    (images, labels), _ = digits.load_digits(0.2)
    program.fit(verbose=0, callbacks=[callback])
    expected = callback.params["steps"]
    program.fit(images[:128], labels[:128], batch_size=64, verbose=0)
    program.fit(verbose=0, callbacks=[callback])
    assert callback.params["steps"] == expected


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


def test_a_replica_without_an_example_counts_for_nothing():
    """K6, N17: the last batch has one example, for two replicas."""
    generator = np.random.default_rng(0)
    pixels, digit = generator.random((9, 8, 8, 1), np.float32), np.arange(9)
    dataset = tf.data.Dataset.from_tensor_slices((pixels, digit)).batch(8)
    found = [
        mlp(params_override=f"runtime.distribution_strategy={strategy}").evaluate(dataset, verbose=0, return_dict=True)
        for strategy in ("off", "mirrored")
    ]
    assert found[1] == pytest.approx(found[0], rel=1e-5)
