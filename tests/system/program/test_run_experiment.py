"""`run_experiment` as a program calls it: in a Python of its own, without a seed; with several validation sets."""

import os
import subprocess
import sys

import pytest

from official_trainer.config import MultiEvalExperimentConfig
from official_trainer.lazy import keras, tf
from official_trainer.program.run_experiment import ArgumentError, run_experiment
from official_trainer.tracking.jsonl import read_rows
from tests import ROOT
from tests.support import runs, several_tasks, toy
from tests.support.garden import two_heads

UNSEEDED = """
from official_trainer import run_experiment
from official_trainer.lazy import keras, tf
from tests.support import toy
from tests.support.garden.toy import GardenTask, garden_config

ours = toy.experiment(steps_per_loop=2)
ours = ours.replace(trainer=ours.trainer.replace(train_steps=4))
theirs = garden_config()
theirs.override({"trainer": {"train_steps": 4, "steps_per_loop": 2}})
for params, task_cls, mode in ((ours, toy.ToyTask, "train"), (theirs, GardenTask, "train_and_eval")):
    run_experiment(tf.distribute.get_strategy(), task_cls(params.task), mode, params, mode)
    keras.backend.clear_session()
print("the seed of the program:", tf.compat.v1.get_seed(None))
"""


@pytest.mark.full
def test_a_program_needs_no_seed(tmp_path):
    """N1: a run has that of its config, and the program has none before and after it; by configs of both."""
    (tmp_path / "program.py").write_text(UNSEEDED)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    options = {"cwd": tmp_path, "env": environ, "capture_output": True, "text": True, "timeout": 240}
    done = subprocess.run([sys.executable, "program.py"], check=False, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "the seed of the program: (None, None)"
    for mode, expected in (("train", {"train"}), ("train_and_eval", {"train", "validation"})):
        assert {row["split"] for row in read_rows(tmp_path / mode / "metrics.jsonl")} - {"time"} == expected


# Several validation sets.


def on_sets():
    base = toy.experiment(steps_per_loop=2, summary_interval=2, validation_interval=2)
    few = several_tasks.POINTS.replace(task_name="few", eval_steps=1)
    sets = (few, several_tasks.POINTS.replace(task_name="dev"))
    return MultiEvalExperimentConfig(
        task=base.task, trainer=base.trainer.replace(train_steps=4), runtime=base.runtime, eval_tasks=sets
    )


def call(params, mode, model_dir, **options):
    keras.backend.clear_session()
    return run_experiment(None, toy.ToyTask(params.task), mode, params, str(model_dir), **options)[1]


def test_the_sets_of_our_config_are_evaluated(tmp_path):
    """T21: beside the task's own, at intervals, after training, and alone."""
    whole = call(on_sets(), "train_and_eval", tmp_path / "run", run_post_eval=True)
    assert set(whole) == {"accuracy", "validation_loss", "few", "dev"}
    assert whole["dev"]["accuracy"] == whole["accuracy"]
    assert call(on_sets(), "eval", tmp_path / "run", run_post_eval=True) == whole
    assert call(on_sets(), "train", tmp_path / "trained", run_post_eval=True) == whole


def test_the_sets_of_a_config_of_model_garden_are_evaluated(tmp_path):
    """T21: these alone, and with the numbers of a run by the experiment's name."""
    two_heads.do(tmp_path / "named", two_heads.QUIET, name="points_on_sets")
    params = two_heads.module().points_on_sets()
    keras.backend.clear_session()
    tf.random.set_seed(None)  # of the run before it, in this process
    task = two_heads.module().PointsTask(params.task)
    run_experiment(None, task, "train_and_eval", params, str(tmp_path / "called"))
    assert [row for row in runs.rows(tmp_path / "called") if row["split"] == "validation"]
    assert runs.rows(tmp_path / "called") == runs.rows(tmp_path / "named")


def test_a_trainer_without_the_sets_is_refused(tmp_path):
    """T21, N7: it would leave them out without a word."""
    params = on_sets()
    trainer = toy.build(params)
    said = r"trainer: it evaluates none of the sets of params.eval_tasks \(few, dev\). Build it with options=TrainerOp"
    with pytest.raises(ArgumentError, match=said):
        call(params, "train_and_eval", tmp_path / "run", trainer=trainer)
    assert not (tmp_path / "run").exists()
