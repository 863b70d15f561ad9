"""The checkpoint action: what it saves in whole runs, under which names, and that kills change nothing."""

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.actions.checkpoint import CheckpointConfig
from official_trainer.actions.schedule import ActionError
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.kept import latest
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import When
from official_trainer.config.optimization import EMAConfig
from tests.support import runs, scripted_runs

SCORES = (0.5, 0.7, 0.6, 0.65, 0.7, 0.8, 0.9, 0.1)


def steps(model_dir, directory="checkpoints"):
    return {name: step for name, (step, _) in scripted_runs.kept(model_dir, directory).items()}


TOP = CheckpointConfig(monitor="score", max_to_keep=3, template="{step:04d}-{score:.2f}")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run with averages to its end, which tests only read."""
    model_dir = str(tmp_path_factory.mktemp("unbroken") / "run")
    scripted_runs.do(model_dir, TOP, scores=SCORES, ema=EMAConfig(average_decay=0.5), checkpoint_interval=20)
    return model_dir


def test_the_best_are_saved_as_they_were_evaluated(unbroken):
    """C1, C3, C6: averages in place of weights, results in the manifest; an ordinary checkpoint."""
    assert steps(unbroken) == {"0070-0.90": 70, "0060-0.80": 60, "0020-0.70": 20}
    logs = manifest.read(f"{unbroken}/checkpoints/0020-0.70", 20).extra["logs"]
    assert (logs["score"], logs["dev/score"]) == (0.7, -0.7)
    whole, saved = runs.values(unbroken, 20), runs.values(f"{unbroken}/checkpoints/0020-0.70", 20)
    averages = [value for name, value in whole.items() if "/.OPTIMIZER_SLOT/optimizer/average" in name]
    kernel = next(value for name, value in saved.items() if "kernel" in name)
    assert any(value.shape == kernel.shape and np.array_equal(value, kernel) for value in averages)
    assert tf.train.latest_checkpoint(f"{unbroken}/checkpoints/0020-0.70").endswith("/ckpt-20")
    assert latest(f"{unbroken}/checkpoints", TOP.template) == f"{unbroken}/checkpoints/0070-0.90/ckpt-70"


def test_the_newest_are_kept_without_a_metric(model_dir):
    """C3, C6: epoch and batch count from 1; an evaluation that is not due saves nothing."""
    by_epoch = CheckpointConfig(name="epochs", template="{epoch:02d}", directory="epochs", max_to_keep=2)
    every = CheckpointConfig(
        template="{epoch:02d}-{batch:03d}-{step}", when=When(at_steps=(10, 20, 30, 75)), max_to_keep=None
    )
    scripted_runs.do(model_dir, by_epoch, every, train_steps=40)  # 10.1 batches an epoch
    assert steps(model_dir, "epochs") == {"03": 30, "04": 40}
    assert steps(model_dir) == {"01-010-10": 10, "02-010-20": 20, "03-010-30": 30}


def test_one_name_is_a_path_that_stays(model_dir):
    """C3, B4: the best by one named set, `dev|score`, always at `checkpoints/best`."""
    best = CheckpointConfig(monitor="dev|score", template="best", max_to_keep=None)
    scripted_runs.do(model_dir, best, scores=SCORES, train_steps=30)  # the direction of `score` holds in sets too
    assert steps(model_dir) == {"best": 10}
    assert manifest.read(f"{model_dir}/checkpoints/best", 10).extra["logs"]["dev/score"] == -0.5


def test_a_metric_that_is_not_there_is_refused_before_training(model_dir):
    """C3: in the template as in `monitor`, with the nearest name."""
    message = r"action 'checkpoint': evaluation does not produce 'validation_lost'; .*did you mean 'validation_loss'\?"
    with pytest.raises(LookupError, match=message):
        scripted_runs.do(model_dir, CheckpointConfig(template="{validation_lost:.2f}"))
    with pytest.raises(LookupError, match=r"does not produce 'val_loss'; .*did you mean 'validation_loss'\?"):
        scripted_runs.do(model_dir, CheckpointConfig(monitor="val_loss"))
    with pytest.raises(LookupError, match=r"action 'checkpoint': evaluation does not produce 'dev\|scor'"):
        scripted_runs.do(model_dir, CheckpointConfig(monitor="dev|scor"))
    assert committed_steps(model_dir) == ()


def test_a_task_whose_action_uses_the_folder_of_the_best_checkpoint(model_dir, monkeypatch):
    """C1, C3: message; an action that a task adds in Python is not in the config, so the run finds it at its start."""
    monkeypatch.setattr(
        scripted_runs.ScriptedTask, "build_actions", lambda self, trainer: [CheckpointConfig(directory="mine")]
    )
    message = (
        "action 'checkpoint' failed in on_start at step 0: trainer.actions: .*/mine is where other checkpoints "
        "are kept too, and each would delete the other's; set another directory"
    )
    best = {"best_checkpoint_eval_metric": "score", "best_checkpoint_export_subdir": "mine"}
    with pytest.raises(ActionError, match=message) as caught:
        scripted_runs.do(model_dir, **best)
    assert caught.value.exit_code == 2
    assert committed_steps(model_dir) == ()


def test_an_epoch_whose_length_nobody_knows(model_dir, monkeypatch):
    """C3: message."""

    def build_inputs(self, params, input_context=None):
        dataset = tf.data.Dataset.range(10).repeat().filter(lambda _: True)
        return dataset.map(lambda _: (tf.zeros([10, 6]), tf.zeros([10], tf.int32)))

    monkeypatch.setattr(scripted_runs.ScriptedTask, "build_inputs", build_inputs)
    message = (
        r"template '{epoch}' has the epoch or the batch in it, and the data does not say how long an epoch is; use"
    )
    with pytest.raises(ActionError, match=message):
        scripted_runs.do(model_dir, CheckpointConfig(template="{epoch}"), validation_steps=1)
