"""Whole runs of several tasks: everything that a run of one task has, kills and restarts included."""

import json

import pytest
import tensorflow as tf

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import MultiEvalExperimentConfig
from official_trainer.runs.resume.config_changes import kind_of
from official_trainer.tracking.jsonl import read_rows
from tests import ROOT
from tests.support import several, toy
from tests.support.chaos.at_writes import check_kills
from tests.support.forked import Command
from tests.support.several import do


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run to its end, which tests only read: its directory, and what it returned."""
    model_dir = tmp_path_factory.mktemp("several") / "run"
    return model_dir, do(model_dir)


def test_a_run_keeps_the_best_by_a_metric_of_one_task(finished):
    """T21, T11, B4: rows, TensorBoard's folders, the best checkpoint and the record have each task's numbers."""
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
    folders = {str(path.parent.relative_to(model_dir)) for path in model_dir.rglob("*.tfevents.*")}
    assert {f"{split}/{task}" for split in ("train", "validation") for task in ("points", "sums")} <= folders
    assert do(model_dir, mode="eval")["sums/error"] == metrics["sums/error"]


def test_each_task_is_served_under_its_name(finished):
    """T21, T19: with the weights of the run."""
    model_dir, metrics = finished
    saved = tf.saved_model.load(f"{model_dir}/export/saved_model")
    assert set(saved.signatures) == {"points", "sums"}
    classes = next(iter(saved.signatures["points"](x=tf.constant(toy.FEATURES)).values())).numpy()
    assert (classes.argmax(1) == toy.LABELS).mean() == pytest.approx(metrics["points/accuracy"], abs=1e-6)


def test_one_task_with_named_sets_keeps_the_best_by_one_of_them(tmp_path):
    """T21, B3, B4: `eval_tasks`, in a run, as Model Garden names their results."""
    base = toy.experiment(on_data_end="repeat", validation_interval=20, best_checkpoint_eval_metric="few|accuracy")
    config = MultiEvalExperimentConfig(
        task=several.POINTS.task_config,
        trainer=base.trainer.replace(train_steps=40, export=base.trainer.export.replace(at_end=False)),
        eval_tasks=(several.POINTS.replace(task_name="few", eval_steps=1),),
    )
    metrics = do(tmp_path / "run", config=config)
    assert {"accuracy", "few/accuracy", "few/validation_loss", "best_few|accuracy"} <= metrics.keys()
    assert committed_steps(str(tmp_path / "run" / "best"))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("task.task_routines", "variables"),
        ("task.task_routines[0].task_name", "variables"),
        ("task.task_routines[1].task_weight", "guarded"),
        ("task.task_routines[1].eval_steps", "safe"),
        ("task.task_routines[1].task_config.validation_data.global_batch_size", "safe"),
        ("task.task_routines[1].task_config.train_data.global_batch_size", "guarded"),
        ("task.task_routines[1].task_config.init_checkpoint", "safe"),
        ("trainer.trainer_type", "guarded"),
        ("trainer.task_sampler.type", "guarded"),
        ("eval_tasks[0].eval_steps", "safe"),
        ("eval_tasks", "safe"),
    ],
)
def test_what_a_changed_setting_of_several_tasks_means(path, kind):
    """T21, N9: what is evaluated is free, what is trained is guarded."""
    assert kind_of(path) == kind


# Kills, by the command line.

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


@pytest.mark.parametrize(
    ("sets", "kills"),
    [
        ((), 2),
        pytest.param((JOINT,), 8, marks=pytest.mark.full),
        pytest.param((MIRRORED,), 8, marks=pytest.mark.full),
        pytest.param((JOINT, MIRRORED), 8, marks=pytest.mark.full),
    ],
    ids=["interleaved", "joint", "interleaved-mirrored", "joint-mirrored"],
)
def test_killed_runs_end_as_unbroken_ones(sets, kills, tmp_path):
    """T21, N1: SIGKILL before writes all over the run; every variable, row, point, best checkpoint and export."""
    check_kills(train, tmp_path, sets, kills)


# Several processes.
