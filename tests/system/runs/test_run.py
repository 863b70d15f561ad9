"""Whole runs: in parts, and what they keep and export of their evaluations."""

import json

import pytest
import tensorflow as tf

from official_trainer import files
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.lazy import keras
from official_trainer.tracking.jsonl import read_rows
from tests import ROOT
from tests.support.forked import run_command
from tests.support.runs import assert_same_checkpoint
from tests.support.shuffled_runs import ShuffledTask, do


def test_operations_that_must_repeat_train_in_two_parts_as_in_one(tmp_path):
    """N1: TensorFlow refuses its clock then, so how long steps wait is not known; all else is as ever."""

    def train(name, *sets):
        words = ["runtime.enable_op_determinism=true", "trainer.train_steps=40", "trainer.export.at_end=false", *sets]
        argv = [
            "train",
            "--experiment=digits_mlp",
            f"--model_dir={tmp_path / name}",
            *(f"--set={word}" for word in words),
        ]
        done = run_command(argv, cwd=ROOT, folder=tmp_path)
        assert done.code == 0, done.err

    train("whole")
    train("parts", "trainer.train_steps=20")
    train("parts")
    rows = read_rows(str(tmp_path / "whole" / "metrics.jsonl"))
    assert all("input_seconds" not in row for row in rows if row["split"] == "time")
    assert_same_checkpoint(str(tmp_path / "whole"), str(tmp_path / "parts"), 40)


def record(model_dir, name="run.json"):
    return json.loads(files.read_text(f"{model_dir}/{name}"))


def test_several_best_checkpoints(model_dir):
    """C6, T11: the best by their values, `best` is the very best, and a lower limit holds at the next start."""
    sets = ["trainer.best_checkpoint_eval_metric=validation_loss", "trainer.best_checkpoint_metric_comp=lower",
            "trainer.validation_interval=20", "trainer.export.at_end=false"]  # fmt: skip
    do(model_dir, *sets, "trainer.best_checkpoint_max_to_keep=2")
    rows = [row for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] == "validation"]
    first, second, *_ = sorted(rows, key=lambda row: (row["validation_loss"], row["step"]))
    assert committed_steps(f"{model_dir}/best") == tuple(sorted((first["step"], second["step"])))
    assert record(model_dir)["best"]["step"] == first["step"]
    loss = do(model_dir, *sets, mode="eval", checkpoint="best")["validation_loss"]
    assert loss == pytest.approx(first["validation_loss"], rel=1e-6)
    do(model_dir, *sets)
    assert committed_steps(f"{model_dir}/best") == (first["step"],)


def test_nested_metrics_can_be_monitored(model_dir, monkeypatch):
    """T11, T18: `a|b` names `b` inside `a`; the row has `a/b`."""
    monkeypatch.setattr(ShuffledTask, "aggregate_logs", lambda self, state, logs: (state or 0) + 1)
    monkeypatch.setattr(
        ShuffledTask, "reduce_aggregated_logs", lambda self, logs, global_step=None: {"dev": {"batches": logs}}
    )
    do(model_dir, "trainer.best_checkpoint_eval_metric=dev|batches", "trainer.train_steps=1",
       "trainer.export.at_end=false")  # fmt: skip
    assert record(model_dir)["best"] == {"metric": "dev|batches", "value": 4.0, "step": 1}
    assert read_rows(f"{model_dir}/metrics.jsonl")[-1]["dev/batches"] == 4.0
    with pytest.raises(LookupError, match=r"it produces accuracy, dev\|batches, validation_loss"):
        do(model_dir, "trainer.best_checkpoint_eval_metric=dev|batch")


def test_best_checkpoints_are_exported(model_dir):
    """T19: a SavedModel for each new best checkpoint, the newest kept; one that was cut off is collected."""
    files.make_dirs(f"{model_dir}/export/best/7.writing")
    files.write_text_atomically(f"{model_dir}/run.json", json.dumps({"run_id": "x", "experiment": "toy_run"}))
    do(model_dir, "trainer.export.best=true", "trainer.best_checkpoint_eval_metric=validation_loss",
       "trainer.best_checkpoint_metric_comp=lower", "trainer.train_steps=4", "trainer.validation_interval=2",
       "trainer.export.at_end=false")  # fmt: skip
    assert files.list_dir(f"{model_dir}/export/best") == [str(record(model_dir)["best"]["step"])]


def test_metrics_that_create_variables_late_are_restored(model_dir, tmp_path, monkeypatch):
    """N1: what a metric has counted is saved, though its variables are not there yet when the run restores."""

    def build_metrics(self, training=True):
        class Late(keras.metrics.Metric):
            """Counts examples in a variable made by the first update."""

            def __init__(self):
                super().__init__(name="late")
                self.count = None

            def update_state(self, labels, outputs, sample_weight=None):
                if self.count is None:
                    self.count = self.add_weight("count", initializer="zeros")
                self.count.assign_add(tf.cast(tf.shape(labels)[0], tf.float32))

            def result(self):
                return tf.constant(0.0) if self.count is None else self.count.read_value()

        return [Late()]

    monkeypatch.setattr(ShuffledTask, "build_metrics", build_metrics)
    sets = ["trainer.summary_interval=40", "trainer.export.at_end=false", "trainer.best_checkpoint_eval_metric="]
    do(model_dir, *sets, "trainer.train_steps=30", "trainer.checkpoint_interval=20", mode="train")
    # The first part ends with a summary of its own, so go back to the checkpoint in the middle of the interval.
    for name in files.list_dir(model_dir):
        if name.startswith("ckpt-30"):
            files.remove(f"{model_dir}/{name}")
    do(model_dir, *sets, "trainer.train_steps=40", mode="train")
    row = next(r for r in read_rows(f"{model_dir}/metrics.jsonl") if (r["split"], r["step"]) == ("train", 40))
    assert row["late"] == 400
