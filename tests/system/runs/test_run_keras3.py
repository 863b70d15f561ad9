"""Whole runs of a model of Keras 3: what a changed one is told, and every way to use its checkpoints."""

import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_trainer import cli, reports
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.errors import ExitCode
from official_trainer.runs.predictions import PredictionSettings
from official_trainer.tracking.jsonl import read_rows
from tests.support import jobs
from tests.support.keras3.runs import FEATURES, LABELS, do, resolved
from tests.support.runs import values

AVERAGE = (
    "trainer.actions=[{type: average_checkpoints, last: 3, recalibrate_batch_norm: 4, export: true}, "
    "{type: checkpoint, monitor: validation_loss, directory: named}]"
)


@pytest.fixture(autouse=True)
def _float32():
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of twelve steps with averaged checkpoints, and named ones."""
    model_dir = tmp_path_factory.mktemp("keras3") / "run"
    do(model_dir, AVERAGE, "trainer.best_checkpoint_eval_metric=accuracy")
    return model_dir


def test_the_optimizer_of_the_task_stands_in_place_of_the_config(trained, capsys):
    """T15: `optimizer_config` is not asked for, and what reads the run shows what `create_optimizer` made."""
    adam = "Adam(learning_rate=0.01)"
    shown = reports.open(trained).config
    assert shown["optimizers.optimizer"] == adam
    assert "trainer.optimizer_config.optimizer.type" not in shown
    assert cli.main(["show", str(trained)]) == 0
    assert f"\n# optimizer of the task: {adam}\n" in capsys.readouterr().out


CHANGES = {
    "a layer without a name in the middle": (
        "{_first: 8, _middle: 6, second: 8}",
        ["missing", "model/dense_1/kernel float32 [8, 6]", "optimizer/slots/dense_1/kernel/momentum"],
        ["wrong shape", "model/second/kernel: float32 [8, 8] in the checkpoint, float32 [6, 8] in the program"],
    ),
    "a layer that was renamed": (
        "{_first: 8, third: 8}",
        ["missing", "model/third/kernel float32 [8, 8]"],
        ["extra", "model/second/kernel float32 [8, 8]"],
    ),
    "a layer of another size": (
        "{_first: 8, second: 5}",
        ["wrong shape", "model/second/kernel: float32 [8, 8] in the checkpoint, float32 [8, 5] in the program"],
        ["model/second/bias: float32 [8] in the checkpoint, float32 [5] in the program"],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_told_by_names(trained, tmp_path, change):
    """N40: at a restart, before a step; nothing of the run changes."""
    layers, *expected = CHANGES[change]
    model_dir = tmp_path / "run"
    shutil.copytree(trained, model_dir)
    before = values(model_dir, 12)
    with pytest.raises(CheckpointError) as caught:
        do(model_dir, f"task.layers={layers}", "trainer.train_steps=16", allow_config_change=True)
    message = str(caught.value)
    assert "checkpoint of another model; nothing was restored" in message
    for part in [part for parts in expected for part in parts]:
        assert part in message, message
    assert caught.value.exit_code == ExitCode.CONFIG
    assert "model/dense/" not in message, message
    assert before.keys() == values(model_dir, 12).keys()
    assert all(row["step"] <= 12 for row in read_rows(f"{model_dir}/metrics.jsonl"))


def test_a_change_that_is_allowed_keeps_the_rest(trained, tmp_path):
    """N40: the new layer and its slots begin anew; every other value is the checkpoint's."""
    model_dir = tmp_path / "run"
    shutil.copytree(trained, model_dir)
    sets = ["task.layers={_first: 8, middle: 8, second: 8}", "trainer.train_steps=13", "trainer.checkpoint_interval=1"]
    allowed = "trainer.restore_allow_mismatch=[model/middle/*, optimizer/*]"
    do(model_dir, *sets, allowed, allow_config_change=True)
    old, new = values(model_dir, 12), values(model_dir, 13)
    key = "model/{}/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    assert key.format("middle") in new and key.format("middle") not in old
    np.testing.assert_allclose(new[key.format("head")], old[key.format("head")], atol=0.05)
    assert not np.array_equal(new[key.format("head")], old[key.format("head")])


def test_evaluations_predictions_and_exports_of_a_run_agree(trained, tmp_path):
    """N37: `eval`, `predict`, `export`, `continuous_eval` and `check` on a run of Keras 3."""
    last = [row for row in read_rows(f"{trained}/metrics.jsonl") if row["split"] == "validation"][-1]
    found = do(trained, mode="eval")
    assert found["validation_loss"] == pytest.approx(last["validation_loss"], rel=1e-6)
    best = do(trained, "trainer.best_checkpoint_eval_metric=accuracy", mode="eval", checkpoint="best")
    assert best["accuracy"] >= last["accuracy"]
    assert do(trained, mode="eval", checkpoint="8")["validation_loss"] != found["validation_loss"]
    again = do(trained, "trainer.continuous_eval_timeout=0", mode="continuous_eval")
    assert again["validation_loss"] == pytest.approx(last["validation_loss"], rel=1e-6)

    settings = PredictionSettings(output_dir=str(tmp_path / "rows"), format="jsonl")
    do(trained, mode="predict", prediction=settings)
    rows = [json.loads(line) for path in sorted((tmp_path / "rows").glob("*.jsonl")) for line in path.open()]
    logits = np.array([row["logits"] for row in rows])
    assert (logits.argmax(axis=1) == LABELS).mean() == pytest.approx(found["accuracy"])

    exported = jobs.export("keras3_run", resolved(), model_dir=str(trained), output_dir=str(tmp_path / "saved"))
    serve = tf.saved_model.load(exported).signatures["serving_default"]
    outputs = serve(**{name: tf.constant(value) for name, value in FEATURES.items()})
    np.testing.assert_allclose(outputs["logits"], logits, atol=1e-6)
    assert outputs["size"].shape == (len(LABELS), 1)

    steps = [*jobs.check("keras3_run", resolved(AVERAGE), mode="train_and_eval", model_dir=str(tmp_path / "check"))]
    assert [str(step.error) for step in steps if step.error] == [] and len(steps) > 5


def test_the_mean_of_checkpoints_is_saved_under_the_same_names(trained):
    """N37: in float64, of the weights; batch-norm statistics are those of the mean, over the training data."""
    mean = values(trained / "averaged", 12)
    parts = [values(trained, step) for step in (4, 8, 12)]
    of_model = sorted(name for name in parts[-1] if name.startswith("model/"))
    assert sorted(name for name in mean if name.startswith("model/")) == of_model
    for name in of_model:
        expected = np.mean([part[name].astype(np.float64) for part in parts], axis=0).astype(np.float32)
        assert np.array_equal(mean[name], expected) != ("moving" in name), name
    (row,) = [row for row in read_rows(f"{trained}/metrics.jsonl") if row["split"] == "averaged"]
    assert (row["step"], row["averaged_checkpoints"]) == (12, 3)
    serve = tf.saved_model.load(f"{trained}/export/averaged/12").signatures["serving_default"]
    logits = serve(**{name: tf.constant(value) for name, value in FEATURES.items()})["logits"].numpy()
    assert (logits.argmax(axis=1) == LABELS).mean() == pytest.approx(row["accuracy"])
    (named,) = (trained / "named").iterdir()
    assert {name for name in values(named, int(named.name)) if name.startswith("model/")} == {*of_model}


def test_recalibrated_statistics_are_those_of_all_examples(tmp_path):
    """N37: mean and variance of what reaches the layer, over an epoch of training data, against NumPy."""
    action = "trainer.actions=[{type: average_checkpoints, last: 1, recalibrate_batch_norm: 8}]"
    do(tmp_path, action, "runtime.distribution_strategy=mirrored", "runtime.num_gpus=0", "trainer.train_steps=4")
    saved = values(tmp_path / "averaged", 4)

    def value(name):
        return saved[f"model/{name}/.ATTRIBUTES/VARIABLE_VALUE"].astype(np.float64)

    hidden = np.concatenate([FEATURES["left"], FEATURES["right"]], axis=1)
    for layer in ("dense", "second"):
        hidden = np.maximum(hidden @ value(f"{layer}/kernel") + value(f"{layer}/bias"), 0)
    np.testing.assert_allclose(value("norm/moving_mean"), hidden.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(value("norm/moving_variance"), hidden.var(axis=0), rtol=1e-5, atol=1e-6)


def test_a_run_that_averages_weights_continues_evaluates_and_exports_the_averages(tmp_path):
    """N37: with the same bits as one that was not interrupted; the export has the averages."""
    ema = "trainer.optimizer_config.ema={average_decay: 0.9}"
    do(tmp_path / "whole", ema)
    do(tmp_path / "parts", ema, "trainer.train_steps=8")
    do(tmp_path / "parts", ema)
    whole, parts = values(tmp_path / "whole", 12), values(tmp_path / "parts", 12)
    assert whole.keys() == parts.keys() and any(name.startswith("average/dense/kernel") for name in whole)
    assert [name for name in whole if not np.array_equal(whole[name], parts[name])] == []
    exported = tf.train.load_checkpoint(str(tmp_path / "whole" / "export" / "12" / "variables" / "variables"))
    key = "dense/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    np.testing.assert_array_equal(exported.get_tensor(f"model/{key}"), whole[f"average/{key}"])


def test_a_run_starts_from_another_and_counts_what_it_has(trained, tmp_path, caplog):
    """N40: `run.json` has the number; without any value, the run ends before its first step with exit code 2."""
    do(tmp_path / "next", f"task.init_checkpoint={trained}", "trainer.train_steps=1")
    (noted,) = json.loads((tmp_path / "next" / "run.json").read_text())["init_checkpoint"]
    assert (noted["restored"], noted["variables"]) == (12, 12)
    with pytest.raises(CheckpointError, match="model/other/kernel") as caught:
        do(tmp_path / "refused", f"task.init_checkpoint={trained}", "task.layers={_first: 8, other: 8, second: 8}")
    assert caught.value.exit_code == ExitCode.CONFIG == 2
    assert not (tmp_path / "refused" / "metrics.jsonl").exists()
    do(
        tmp_path / "lora", f"task.init_checkpoint={trained}/export/12", "task.lora=2", "trainer.train_steps=1",
        "task.init_checkpoint_allow_missing=['*/lora_*']",
    )  # fmt: skip
    key = "model/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    np.testing.assert_array_equal(values(tmp_path / "lora", 1)[key], values(trained, 12)[key])
