"""What an earlier version of this package wrote is read by this one: the files in `tests/data/earlier/`.

The page `README.md` there says what each of them is, and which commands made it.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
import yaml

from official_trainer.checkpoints import manifest
from official_trainer.program import Program, ProgramCheckpoint
from tests import ROOT
from tests.support.forked import Command
from tests.support.runs import bits, rows, values

EARLIER = ROOT / "tests" / "data" / "earlier"

RUN = ["--experiment=digits_chaos", "--model_dir=run", "runtime.distribution_strategy=mirrored",
       "runtime.num_logical_cpus=2", "trainer.validation_interval=11", "trainer.best_checkpoint_eval_metric=accuracy",
       "trainer.export.at_end=false", "trainer.export.best=false"]  # fmt: skip
STOPPED, END = 18, 36
"""The run was stopped after 18 steps, and went on to 36 elsewhere."""

KEEP_WHAT_WAS_RESTORED = '''
"""Writes down everything as it is before the first step."""

import dataclasses

from official_trainer.actions import Action
from official_trainer.config import ActionConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class RestoredConfig(ActionConfig):
    """Without fields of its own."""

    def build(self):
        return Restored()


class Restored(Action):
    def on_start(self, run):
        run.trainer.checkpoint.write(f"{run.model_dir}.restored")
'''


_LAYERS = (("gamma", "beta"), *[("kernel", "bias")] * 3)
WEIGHTS = [f"layer_with_weights-{number}/{name}" for number, names in enumerate(_LAYERS) for name in names]
"""Those that are averaged, in the order of the model."""


def without_numbers(found):
    """Leaves out what steps return beside the loss, which the earlier version did not record."""
    return {name: value for name, value in found.items() if not name.startswith("training/numbers/")}


def as_before(found):
    """Names what a checkpoint holds as the earlier version did, which saved averages beside the optimizer."""
    found = without_numbers(found)
    named = {name.replace("optimizer/ema_base_optimizer/", "optimizer/"): value for name, value in found.items()}
    for number, weight in enumerate(WEIGHTS):
        slot = f"model/{weight}/.OPTIMIZER_SLOT/optimizer/average/.ATTRIBUTES/VARIABLE_VALUE"
        named[f"average/values/{number}/.ATTRIBUTES/VARIABLE_VALUE"] = named.pop(slot)
    return named


@pytest.fixture
def workspace(tmp_path):
    """A workspace with copies of the files, and the experiments that they belong to."""
    folder = tmp_path / "workspace"
    shutil.copytree(EARLIER, folder, ignore=shutil.ignore_patterns("README.md"))
    (folder / "experiments").mkdir()
    shutil.copy(ROOT / "experiments" / "digits.py", folder / "experiments")
    shutil.copy(ROOT / "tests" / "support" / "chaos" / "experiment.py", folder / "experiments" / "chaos.py")
    return folder


def official_trainer(workspace, *words, code=0, **environ):
    """Runs a command in the workspace; returns how it ended."""
    done = Command(words, cwd=workspace, folder=workspace.parent, env=environ).wait()
    assert done.code == code, done.out + done.err
    return done


def assert_close(found, expected):
    """The same names, with the same numbers as far as two kinds of processors agree."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        counted = "accuracy" in name  # one example more or less is a jump
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=5e-3 if counted else 1e-5, err_msg=name)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# A run.


def test_a_run_goes_on(workspace):
    """N43: restored bit for bit; then the same examples, random numbers and results as those of the earlier version."""
    (workspace / "actions").mkdir()
    (workspace / "actions" / "restored.py").write_text(KEEP_WHAT_WAS_RESTORED)
    run, before = workspace / "run", contents(workspace / "run")
    stopped, earlier_rows = bits(run / f"ckpt-{STOPPED}"), rows(run)
    words = [f"trainer.train_steps={END}", "trainer.actions+=[restored]"]
    done = official_trainer(workspace, "train", *RUN, *words)

    assert f"restored run/ckpt-{STOPPED} (step {STOPPED})" in done.out + done.err
    assert f"trainer.train_steps: 20 -> {END} (--set)" in done.out + done.err
    restored = as_before(bits(f"{run}.restored"))
    assert {name: restored.get(name) for name in stopped} == stopped
    with np.load(workspace / "end" / "values.npz") as expected:
        assert_close(as_before(values(run, END)), dict(expected))
    assert manifest.read(str(run), END).metadata["draws"] == "by_replica"

    found, expected = rows(run), rows(workspace / "end")
    assert found[: len(earlier_rows)] == earlier_rows
    assert [(row["step"], row["split"]) for row in found] == [(row["step"], row["split"]) for row in expected]
    for row, expected_row in zip(found, expected, strict=True):
        row.pop("split"), expected_row.pop("split")
        assert_close(row, expected_row)
    lines = [line.split() for line in (workspace / "run.ids").read_text().splitlines()]
    seen = [f"{step} {replica} {numbers}" for _, step, replica, _, numbers in lines]
    assert sorted(seen) == sorted((workspace / "end" / "examples.txt").read_text().splitlines())

    assert (run / "params.1.yaml").read_bytes() == before["params.yaml"]
    record, earlier = json.loads((run / "run.json").read_text()), json.loads(before["run.json"])
    assert (record["run_id"], record["started"], record["restarts"]) == (earlier["run_id"], earlier["started"], 1)
    assert record["best"]["step"] == json.loads((run / "best" / "info.json").read_text())["best_ckpt_global_step"] == 22
    events = [name for name in before if "tfevents" in name and not name.startswith("hparams")]
    assert len(events) == 4 and all((run / name).read_bytes() == before[name] for name in events)


def test_the_best_checkpoint_is_evaluated(workspace):
    """As the run was configured, to the numbers that it had."""
    before = contents(workspace / "run")
    done = official_trainer(workspace, "eval", "--model_dir=run", "--checkpoint=best", "--json")
    best = json.loads(before["run.json"])["best"]
    (row,) = [row for row in rows(workspace / "run") if row["split"] == "validation"]
    found = json.loads(done.out.splitlines()[-1])
    assert best["step"] == row["step"] == 11
    assert_close({name: found[name] for name in ("accuracy", "validation_loss")},
                 {name: row[name] for name in ("accuracy", "validation_loss")})  # fmt: skip
    assert contents(workspace / "run") == before


def flat(value, path=""):
    if isinstance(value, dict):
        return {name: leaf for key, part in value.items() for name, leaf in flat(part, f"{path}.{key}").items()}
    return {path: value}


@pytest.mark.parametrize("words", [["run"], ["digits_chaos", "--config_file=run/params.yaml"]])
def test_a_config_is_shown(workspace, words):
    """Every value is what it was; out of the run directory, and of `params.yaml` as a file over the experiment."""
    expected = flat(yaml.safe_load((workspace / "run" / "params.yaml").read_text()))
    shown = flat(yaml.safe_load(official_trainer(workspace, "show", *words).out))
    assert {name: shown.get(name) for name in expected} == expected


def test_a_run_with_gin_bindings_goes_on(workspace):
    """With the bindings that it has kept and its `params.yaml`; without the bindings it is refused."""
    words = ["train", "--experiment=digits_mlp", "--model_dir=bound", "--config_file=bound/params.yaml"]
    words += ["trainer.train_steps=6"]
    bound = contents(workspace / "bound")
    done = official_trainer(workspace, *words, code=2)
    assert "build_optimizer.use_legacy_optimizer: False -> not bound" in done.err
    official_trainer(workspace, *words, "--gin_file=bound/config.train_and_eval.gin")
    with np.load(workspace / "end" / "bound.npz") as expected:
        assert_close(without_numbers(values(workspace / "bound", 6)), dict(expected))
    assert contents(workspace / "bound")["config.train_and_eval.gin"] == bound["config.train_and_eval.gin"]


# Predictions.


@pytest.mark.parametrize(("folder", "shards"), [("predictions", 2), ("shared", 3)])
def test_predictions_go_on(folder, shards, workspace):
    """Those of one process, and those of two that shared them out; what was whole is not written again."""
    output, before = workspace / folder, contents(workspace / folder)
    words = ["predict", "--model_dir=run", f"--output={folder}", "--format=npy", "--shard_size=200"]
    said = official_trainer(workspace, *words).err
    manifest = json.loads((output / "predictions.json").read_text())
    assert (manifest["done"], manifest["rows"], len(manifest["shards"])) == (True, 1438, 8)
    assert f"comparing the files that are written with their checksums: {shards}" in said
    assert f"continuing after {200 * shards} rows in {shards} shards" in said
    after = contents(output)
    said_before = [json.loads(text) for name, text in before.items() if name.endswith(".json")]
    known = {shard["name"] for manifest in said_before for shard in manifest["shards"]}
    assert len(known) == shards and all(after[name] == before[name] for name in known)
    assert not [name for name in after if name.startswith(".predictions") and name.endswith(".json")]
    found = np.concatenate([np.load(path) for path in sorted(output.glob("predictions-*.npy"))])
    np.testing.assert_allclose(found, np.load(workspace / "end" / "predictions.npy"), rtol=1e-4, atol=1e-5)
    assert "all predictions are there already" in official_trainer(workspace, *words).err
    assert contents(output) == after


# compile and fit.


def build():
    """A model with dropout and batch norm."""
    features = tf_keras.Input([6])
    hidden = tf_keras.layers.BatchNormalization()(tf_keras.layers.Dense(8, activation="tanh")(features))
    return tf_keras.Model(features, tf_keras.layers.Dense(3)(tf_keras.layers.Dropout(0.3)(hidden)))


def compiled(**settings):
    program = Program(build, seed=3, **settings)
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    program.compile("adam", loss, metrics=["accuracy"])
    return program


def fit(folder, epochs, *callbacks):
    """Fits in the run directory `fit`, and keeps checkpoints in `named`; returns program, history and callbacks."""
    generator = np.random.RandomState(0)
    x = generator.randn(50, 6).astype("float32")
    y = (x[:, 0] > 0).astype("int32") + (x[:, 1] > 0.5)
    program = compiled(model_dir=str(Path(folder) / "fit"))
    named = ProgramCheckpoint(Path(folder) / "named" / "{epoch:02d}-{val_loss:.3f}", monitor="val_loss", max_to_keep=2)
    stopping = tf_keras.callbacks.EarlyStopping("val_loss", patience=20)
    arguments = {"epochs": epochs, "batch_size": 8, "validation_split": 0.2, "verbose": 0}
    history = program.fit(x, y, callbacks=[named, stopping, *callbacks], **arguments)
    return program, history.history, named, stopping


class First(tf_keras.callbacks.Callback):
    """Looks at the weights before the first step."""

    def on_epoch_begin(self, epoch, logs=None):
        if not hasattr(self, "epoch"):
            self.epoch, self.weights = epoch, self.model.get_weights()


def test_a_fit_goes_on(workspace):
    """Restored bit for bit, with the history of all epochs and what callbacks counted; then the same numbers."""
    stopped = values(workspace / "fit", 15)
    first = First()
    program, history, named, stopping = fit(workspace, 6, first)
    assert first.epoch == 2  # of whose evaluation the checkpoint does not know yet
    kernel = stopped["model/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"]
    assert first.weights[0].tobytes() == kernel.tobytes()
    model = {value.tobytes() for name, value in stopped.items() if name.startswith("model/") and "SLOT" not in name}
    assert {weights.tobytes() for weights in first.weights} == model
    expected = json.loads((workspace / "end" / "fit.json").read_text())
    assert_close(history, expected["history"])
    np.testing.assert_allclose(stopping.best, expected["best"], rtol=1e-4)
    assert [Path(place).name for place in named.kept] == expected["kept"]
    with np.load(workspace / "end" / "fit.npz") as weights:
        for found, name in zip(program.model.get_weights(), weights.files, strict=True):
            np.testing.assert_allclose(found, weights[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_named_checkpoint_is_read_back(workspace):
    """By its folder, and by the template, of which the newest is meant: model and optimizer, bit for bit."""
    newest = workspace / "named" / "03-1.037"
    saved = bits(newest / "ckpt-15")
    for place in (newest, workspace / "named" / "{epoch:02d}-{val_loss:.3f}"):
        program = compiled()
        program.load(place)
        state = tf.train.Checkpoint(model=program.model, optimizer=program.model.optimizer)
        found = bits(state.write(str(workspace / "found")))
        assert found == {name: value for name, value in saved.items() if not name.startswith("global_step")}
        weights = compiled()
        weights.load_weights(place)
        both = zip(weights.model.get_weights(), program.model.get_weights(), strict=True)
        assert all(ours.tobytes() == theirs.tobytes() for ours, theirs in both)
