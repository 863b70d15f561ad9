"""Whole runs of several tasks that are continued, that recover, and that are spread over processes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.engine.recovery import NonFiniteError
from official_trainer.tracking.jsonl import read_rows
from tests import ROOT
from tests.support import several_tasks, toy
from tests.support.forked import Command
from tests.support.runs import differences, values
from tests.support.several_tasks import do
from tests.support.tracking.readers import READERS


def test_a_batch_that_fails_is_found_reported_and_left_out(tmp_path, monkeypatch):
    """T21, T12, G8: the recovery knows which task's batch it was; the rest is as if its step had not been there."""
    sets = ("trainer.export.at_end=false", "trainer.train_steps=40", "trainer.best_checkpoint_eval_metric=")
    bad = toy.FEATURES.copy()
    bad[93] = np.nan  # in every tenth batch of the task
    build_inputs = several_tasks.PointsTask.build_inputs

    def build(task, params, input_context=None):
        dataset = build_inputs(task, params, input_context)
        if not params.is_training:
            return dataset
        options = tf.data.Options()
        options.autotune.enabled = False
        return tf.data.Dataset.from_tensor_slices((bad, toy.LABELS)).batch(10, True).with_options(options)

    monkeypatch.setattr(several_tasks.PointsTask, "build_inputs", build)
    with pytest.raises(NonFiniteError, match=r"the batch of step \d+ is the first with such a loss"):
        do(tmp_path / "run", *sets)
    (written,) = (tmp_path / "run" / "non_finite").glob("*/batch.npz")
    step = int(written.parent.name.removeprefix("step-"))
    task = several_tasks.build().task
    assert task._sampler.counts(0, step)[0] == 10
    with np.load(written) as batch:
        not_finite = [name for name, value in batch.items() if not np.isfinite(value).all()]
    assert not_finite == ["replica_0.batch['batches']['points'][0]"]
    do(tmp_path / "run", *sets, "trainer.recovery_max_trials=3", "trainer.recovery_data=skip_batch")
    left_out = values(tmp_path / "run", 40)["training/position/skipped_steps/.ATTRIBUTES/VARIABLE_VALUE"]
    assert left_out == task._sampler.counts(0, 40 + left_out)[0] // 10 == 2


SETS = [
    "trainer.train_steps=30", "trainer.steps_per_loop=7", "trainer.summary_interval=5", "trainer.checkpoint_interval=6",
    "trainer.validation_interval=16", "trainer.optimizer_config.ema={average_decay: 0.9}",
]  # fmt: skip


JOINT, MIRRORED = "trainer.trainer_type=joint", "runtime={distribution_strategy: mirrored, num_logical_cpus: 2}"


def train(folder, name, *sets, first=None):
    output = folder / f"{name}.output"
    output.mkdir(exist_ok=True)
    words = [f"--set={word}" for word in (*SETS, *sets)]
    argv = ["train", "--experiment=digits_tasks", f"--model_dir={folder / name}", *words]
    return Command(argv, cwd=ROOT, folder=output, first=first)


def launch(model_dir, *words):
    options, sets = [w for w in words if not w.startswith("--set")], [w for w in words if w.startswith("--set")]
    argv = [sys.executable, "-m", "official_trainer", "launch", "local", *options, "--", "--experiment=digits_tasks"]
    argv += [f"--model_dir={model_dir}", *(f"--set={word}" for word in SETS), *sets]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.parametrize("sets", [(), (JOINT,)], ids=["interleaved", "joint"])
def test_two_workers_train_as_two_replicas_of_one_process_do(sets, tmp_path):
    """T21, T16: weights, rows and evaluations of every task, bit by bit."""
    words = [f"--set={word}" for word in sets]
    launch(tmp_path / "workers", "--workers=2", *words)
    assert train(tmp_path, "replicas", *sets, MIRRORED).wait().code == 0
    assert differences(tmp_path / "workers", tmp_path / "replicas") == []


@pytest.mark.full
def test_workers_under_a_coordinator_train_several_tasks(tmp_path):
    """T21, T7: interleaved, in exactly as many steps; every task is evaluated."""
    launch(tmp_path / "run", "--workers=2", "--ps=1")
    assert committed_steps(str(tmp_path / "run"))[-1] == 30
    (*_, last) = (row for row in read_rows(f"{tmp_path}/run/metrics.jsonl") if row["split"] == "validation")
    assert {"digit/accuracy", "parity/accuracy"} <= last.keys()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run to its end, which tests only read: its directory, and what it returned."""
    model_dir = tmp_path_factory.mktemp("several") / "run"
    return model_dir, do(model_dir)


def test_a_run_keeps_the_best_by_a_metric_of_one_task(finished):
    """T21, T11, B4: rows, TensorBoard's tags, the best checkpoint and the record have each task's numbers."""
    model_dir, metrics = finished
    found = {split: [] for split in ("train", "validation")}
    for row in read_rows(f"{model_dir}/metrics.jsonl"):
        found.get(row["split"], []).append(row)
    assert [row["step"] for row in found["validation"]] == [24, 48, 60]
    names = {"points/accuracy", "points/validation_loss", "sums/error", "sums/validation_loss", "sums/mean_sum"}
    assert all(names <= row.keys() for row in found["validation"])
    assert names <= metrics.keys()
    best = max(found["validation"], key=lambda row: (row["points/accuracy"], -row["step"]))
    info = json.loads((model_dir / "best" / "info.json").read_text())
    assert committed_steps(str(model_dir / "best")) == (best["step"],)
    assert info["best_ckpt_global_step"] == best["step"]
    board = {point for point, *_ in READERS["tensorboard"](model_dir)}
    assert {f"{split}/{task}/loss" for split in ("train", "validation") for task in ("points", "sums")} <= board
    assert {path.parent.name for path in model_dir.rglob("*.tfevents.*")} == {"train", "validation"}
    assert do(model_dir, mode="eval")["sums/error"] == metrics["sums/error"]


def test_each_task_is_served_under_its_name(finished):
    """T21, T19: with the weights of the run."""
    model_dir, metrics = finished
    saved = tf.saved_model.load(f"{model_dir}/export/60")
    assert set(saved.signatures) == {"points", "sums"}
    classes = next(iter(saved.signatures["points"](x=tf.constant(toy.FEATURES)).values())).numpy()
    assert (classes.argmax(1) == toy.LABELS).mean() == pytest.approx(metrics["points/accuracy"], abs=1e-6)
