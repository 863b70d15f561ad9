"""What follows a loss that is not finite, in whole runs: its batch is found, reported, left out or repeated."""

import json

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.engine.recovery import NonFiniteError
from official_trainer.lazy import keras
from official_trainer.tracking.jsonl import read_rows
from tests.support import toy
from tests.support.engine_recovery import (
    BAD_STEP,
    HALVED,
    RATES,
    BadBatchTask,
    assert_batch_is_found,
    choose_batches,
    do,
    rates,
)
from tests.support.runs import differences, values


@pytest.fixture(autouse=True)
def stream(monkeypatch):
    return choose_batches(monkeypatch)


def test_the_batch_that_fails_is_found_and_written_down(model_dir):
    """T12, G8: exit code 4; the step, its batch and every tensor of it are in a report, and no bad state is saved."""
    assert_batch_is_found(model_dir, "off")


def test_a_batch_that_fails_before_the_first_checkpoint_is_found_by_its_values(model_dir):
    """G8: there is nothing to repeat the steps from."""
    with pytest.raises(NonFiniteError, match=rf"last good checkpoint is none\nthe batch of step {BAD_STEP} did it"):
        do(model_dir, "trainer.checkpoint_interval=50")
    report = json.loads((tf.io.gfile.GFile(f"{model_dir}/non_finite/step-{BAD_STEP}/report.json")).read())
    assert report["batch"]["replica_0/0"]["not_finite"] == 1
    assert "gradients" not in report


def test_leaving_out_the_batch_ends_as_if_it_had_never_been_there(model_dir, tmp_path, stream):
    """T12, N2: `skip_batch`: the same bits as a run whose data lacks the batch, though it went back on the way."""
    do(model_dir, "trainer.recovery_max_trials=1", "trainer.recovery_data=skip_batch")
    stream.without = (BAD_STEP - 1,)
    do(tmp_path / "clean")
    position = "training/position/skipped_steps/.ATTRIBUTES/VARIABLE_VALUE"
    assert values(model_dir, 60)[position] == 1
    assert [d for d in differences(model_dir, tmp_path / "clean") if d != position] == []


def test_going_back_further_takes_the_later_checkpoints_away(model_dir, caplog):
    """T12: they are what led to the failure; the steps are done again."""
    do(model_dir, "trainer.recovery_max_trials=1", "trainer.recovery_checkpoints_back=2")
    assert "recovery 1 of 1: back at step 20, past the data of" in caplog.text
    lost = values(model_dir, 60)["training/position/skipped_steps/.ATTRIBUTES/VARIABLE_VALUE"]
    assert BAD_STEP - 20 <= lost <= 20
    steps = [row["step"] for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] == "train"]
    assert steps == [10, 20, 30, 40, 50, 60]


def test_weights_that_are_not_finite_are_never_saved(model_dir, stream, monkeypatch):
    """T12, G8: though the loss of the last step was fine."""
    stream.bad_index = None
    train_step = toy.ToyTask.train_step

    def poison(self, batch, model, optimizer, metrics=None):
        logs = train_step(self, batch, model, optimizer, metrics)
        weight = model.trainable_variables[0]
        weight.assign(tf.where(optimizer.iterations == 20, weight * float("nan"), weight))
        return logs

    monkeypatch.setattr(BadBatchTask, "train_step", poison)
    with pytest.raises(NonFiniteError, match=r"weights are not finite at step 20: dense.*; the last good .*ckpt-10"):
        do(model_dir)
    assert committed_steps(model_dir) == (10,)


# The learning rate after a recovery.


def test_each_recovery_scales_the_rate_again(model_dir, stream, caplog):
    """N13: two recoveries from one checkpoint make a quarter, in the rows and in the checkpoint."""
    stream.bad_too = (BAD_STEP + 1,)
    do(model_dir, *RATES["schedule"], *HALVED, "trainer.recovery_data=skip_batch")
    assert "recovery 2 of 2: back at step 30, leaving out the batch of step 38, at 0.25 times" in caplog.text
    extra = json.loads((tf.io.gfile.GFile(f"{model_dir}/ckpt-60.manifest.json")).read())["extra"]
    assert (extra["learning_rate_scale"], extra["left_out"], extra["left_out_pending"]) == (0.25, [36, 37], [])
    unscaled = {step: 0.02 * 0.5 * (1 + np.cos(np.pi * step / 99)) for step in (30, 60)}
    assert rates(model_dir)[30] == pytest.approx(unscaled[30], rel=1e-5)
    assert rates(model_dir)[60] == pytest.approx(unscaled[60] / 4, rel=1e-5)


def test_a_rate_that_cannot_be_scaled_is_refused_at_the_start(model_dir, monkeypatch):
    """N13: a function instead of a schedule; without the setting it is the task's own affair."""
    optimizer = classmethod(lambda *args: keras.optimizers.legacy.SGD(lambda: 0.01))
    monkeypatch.setattr(BadBatchTask, "create_optimizer", optimizer)
    with pytest.raises(
        TypeError,
        match=r"recovery_learning_rate_scale: the learning rate of SGD cannot be scaled.*LearningRateSchedule",
    ) as caught:
        do(model_dir, *HALVED)
    assert caught.value.exit_code == 2
    with pytest.raises(configuration.ConfigError, match=r"recovery_learning_rate_scale: .*must be at most 1"):
        do(model_dir, "trainer.recovery_learning_rate_scale=2")
