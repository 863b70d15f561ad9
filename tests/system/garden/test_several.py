"""Runs of experiments that users register with Model Garden's `exp_factory`: several tasks, several sets, one task."""

import numpy as np
import pytest
import tensorflow as tf
from official.core import exp_factory
from official.modeling.multitask import train_lib

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import ConfigError
from official_trainer.lazy import keras
from tests.support import runs
from tests.support.cases import cases
from tests.support.forked import run_command
from tests.support.garden.two_heads import EMA, JOINT, QUIET, WORKSPACE, do, module, resolved

# The command line.


def test_the_command_line_knows_them(tmp_path):
    """T14, T20: listed from the source, shown by a name with a slash, and checked."""
    done = run_command(["list"], cwd=WORKSPACE, folder=tmp_path)
    assert "two_heads       Classes and sums of points, with a shared layer." in done.out
    done = run_command(["show", "mine/doubling", "task.model.hidden=4"], cwd=WORKSPACE, folder=tmp_path)
    assert "hidden: 4  # --set" in done.out, done.err
    argv = ["check", "--experiment=two_heads", "trainer.task_sampler.type=annealing", f"--model_dir={tmp_path}/run"]
    done = run_command(
        [*argv, f"--set={EMA}", "trainer.validation_summary_subdir=other"], cwd=WORKSPACE, folder=tmp_path
    )
    assert done.code == 0, done.out + done.err
    assert "SavedModel with points, sums" in done.out, done.out


# Runs.


def test_joint_training_gives_what_model_gardens_driver_gives(tmp_path, monkeypatch):
    """T21, T1: the same weights at the end, and the same results of the last evaluation."""
    live_config = resolved("two_heads") and exp_factory.get_exp_config("two_heads")
    monkeypatch.setattr(module(), "BUFFER", 1)  # what is shuffled has an order of its own on each side
    metrics = do(tmp_path / "ours", JOINT, QUIET, "trainer.train_steps=18")
    live_config.override(
        {"trainer": {"trainer_type": "joint", "train_steps": 18, "steps_per_loop": 6, "summary_interval": 6}}
    )
    keras.backend.clear_session()
    _, logs = train_lib.run_experiment(
        distribution_strategy=tf.distribute.get_strategy(),
        task=train_lib.multitask.MultiTask.from_config(live_config.task),
        model=module().TwoHeads(live_config.task.model),
        mode="train_and_eval",
        params=live_config,
        model_dir=str(tmp_path / "theirs"),
        run_post_eval=True,
    )
    ours, theirs = runs.values(tmp_path / "ours", 18), runs.values(tmp_path / "theirs", 18)
    weights = [name for name in theirs if name.startswith("model/") or "/m/" in name or "/v/" in name]
    assert len(weights) >= 6
    for name in weights:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(metrics["points/accuracy"], float(logs["points"]["accuracy"]), atol=1e-6)
    np.testing.assert_allclose(metrics["sums/error"], float(logs["sums"]["error"]), rtol=1e-4)
    for name in ("ours", "theirs"):  # T22: which goes on from the weights and slots of both
        do(tmp_path / name, JOINT, QUIET, "trainer.train_steps=24")
    ours, theirs = (runs.values(tmp_path / name, 24) for name in ("ours", "theirs"))
    for name in weights:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_one_keras_model_for_all_tasks_is_interleaved(tmp_path, monkeypatch):
    """T21: a function that is bound to the class of the model's section."""
    resolved("two_heads")
    configs, points, trainer = module().configs, module().PointsConfig, module().two_heads().trainer
    routines = [
        configs.TaskRoutine(task_name=name, task_config=points(shift=shift, **module().data(10)))
        for name, shift in (("points", 0.0), ("moved", 1.0))
    ]

    def shared():
        task = configs.MultiTaskConfig(model=module().TwoHeadsConfig(), task_routines=routines)
        return configs.MultiTaskExperimentConfig(task=task, trainer=trainer)

    monkeypatch.setitem(exp_factory._REGISTERED_CONFIGS, "shared_heads", shared)
    build_model = module().PointsTask(points()).build_model
    monkeypatch.setattr(module().TwoHeadsConfig, "_BUILDER", lambda self, config: build_model())
    metrics = do(tmp_path / "run", "trainer.train_steps=60", name="shared_heads")
    assert metrics["points/accuracy"] > 0.5
    assert metrics["moved/accuracy"] > 0.5
    assert set(tf.saved_model.load(f"{tmp_path}/run/export/60").signatures) == {"points", "moved"}


def test_named_sets_alone_are_evaluated_as_there(tmp_path):
    """T21, B3, B4: `eval_tasks` of theirs, each with its own number of steps; the best by one of them."""
    metrics = do(tmp_path / "run", name="points_on_sets")
    assert {"as_trained/accuracy", "shifted/accuracy", "best_shifted|accuracy"} <= metrics.keys()
    assert "accuracy" not in metrics
    assert metrics["shifted/accuracy"] * 80 == pytest.approx(round(metrics["shifted/accuracy"] * 80), abs=1e-4)
    assert committed_steps(str(tmp_path / "run" / "best"))
    alone = do(tmp_path / "alone", QUIET, name="points_alone")
    assert alone["accuracy"] == metrics["as_trained/accuracy"]
    without = do(tmp_path / "without", QUIET, "eval_tasks=[]", "task.validation_data.global_batch_size=40",
                 "task.validation_data.is_training=false", "trainer.best_checkpoint_eval_metric=",
                 name="points_on_sets")  # fmt: skip
    assert "accuracy" in without


def test_a_joint_step_of_the_users_own_is_used(tmp_path):
    """T21: a `MultiTask` that is bound to the class of the task section."""
    sets = (QUIET, "trainer.train_steps=6", "trainer.best_checkpoint_eval_metric=")
    do(tmp_path / "twice", *sets, name="mine/doubling")
    do(tmp_path / "once", *sets, JOINT, "trainer.train_steps=12")
    counts = [runs.values(tmp_path / name, step)["optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE"]
              for name, step in (("twice", 6), ("once", 12))]  # fmt: skip
    assert counts == [12, 12]


WITHOUT_MODEL = [
    (None, (), r"task.model: nothing builds the model of a experiments.two_heads.TwoHeadsConfig; put @base_config.bin"),
    (None, ("task.model=null",), r"task.model: is not set, so the model that the tasks share is unknown; give it"),
    (lambda self, config: keras.Sequential([keras.layers.Dense(3)]), (JOINT,),
     r"trainer.trainer_type: joint training needs a model with sub_tasks, and a Sequential is one for all tasks"),
]  # fmt: skip


def test_a_model_that_nobody_builds_is_asked_for(tmp_path, monkeypatch):
    """T21, N8: with what to write."""
    for builder, sets, said in WITHOUT_MODEL:
        resolved("two_heads")
        monkeypatch.setattr(module().TwoHeadsConfig, "_BUILDER", builder)
        with pytest.raises(ConfigError, match=said):
            do(tmp_path / "run", *sets)


def test_a_task_whose_model_nobody_can_serve_is_said(tmp_path, monkeypatch, caplog):
    """T21, T19: the others are exported."""
    resolved("two_heads")

    class Opaque(module().TwoHeads):
        def _instantiate_sub_tasks(self):
            heads = super()._instantiate_sub_tasks()
            return {**heads, "sums": Wrapped(heads["sums"])}

    monkeypatch.setattr(module().TwoHeadsConfig, "_BUILDER", Opaque)
    do(tmp_path / "run", "trainer.train_steps=2", "trainer.best_checkpoint_eval_metric=")
    assert "no signature for the task 'sums' is exported: " in caplog.text
    assert "the model was not built with keras.Input" in caplog.text
    assert set(tf.saved_model.load(f"{tmp_path}/run/export/2").signatures) == {"points"}


class Wrapped(keras.Model):
    """A subclassed model, which says in Model Garden's way what it takes, and not what it was called with."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.inputs = inner, {"x": keras.Input([6])}

    def call(self, inputs):
        return self.inner(inputs)

    def save_spec(self, dynamic_batch=True):
        return None


@pytest.mark.parametrize("name", cases(["points_alone", "mine/doubling"], "points_alone"))
def test_differential_privacy_reaches_the_optimizer(name, tmp_path):
    """T1: as their driver hands it on; gradients that are clipped to nothing move nothing."""
    sgd = "trainer.optimizer_config.optimizer={type: sgd, sgd: {momentum: 0.0}}"
    few = ("trainer.train_steps=3", "trainer.checkpoint_interval=1", "trainer.best_checkpoint_eval_metric=")
    private = "task.differential_privacy_config={clipping_norm: 1.0e-30, noise_multiplier: 0.0}"
    do(tmp_path, sgd, QUIET, *few, private, name=name, mode="train")
    first, last = (runs.values(tmp_path, step) for step in (1, 3))
    kernels = [key for key in first if key.startswith("model/") and "kernel" in key]
    assert kernels and all((first[key] == last[key]).all() for key in kernels)
    assert last["optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE"] >= 3
