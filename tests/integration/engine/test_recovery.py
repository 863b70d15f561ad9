"""What follows a loss that is not finite, in whole runs: its batch is found, reported, left out or repeated."""

import json

import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.engine.recovery import NonFiniteError
from official_trainer.lazy import keras
from tests.support import toy
from tests.support.engine_recovery import (
    BAD_STEP,
    HALVED,
    BadBatchTask,
    assert_batch_is_found,
    choose_batches,
    do,
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


def test_updates_that_are_too_large_before_the_first_checkpoint_are_no_fault_of_the_machine(model_dir, stream):
    """G8, N28: nothing was repeated; the batches are finite, so the learning rate is named."""
    stream.bad_index = None
    rate = "trainer.optimizer_config.learning_rate.constant.learning_rate=1e30"
    said = "whose batches hold finite values: either updates are too large.*find-lr"
    with pytest.raises(NonFiniteError, match=said) as raised:
        do(model_dir, "trainer.checkpoint_interval=50", rate)
    assert "machine" not in str(raised.value)


def test_leaving_out_the_batch_ends_as_if_it_had_never_been_there(model_dir, tmp_path, stream):
    """T12, N2: `skip_batch`: the same bits as a run whose data lacks the batch, though it went back on the way."""
    do(model_dir, "trainer.recovery_max_trials=1", "trainer.recovery_data=skip_batch")
    stream.without = (BAD_STEP - 1,)
    do(tmp_path / "clean")
    position = "training/position/skipped_steps/.ATTRIBUTES/VARIABLE_VALUE"
    assert values(model_dir, 60)[position] == 1
    assert [d for d in differences(model_dir, tmp_path / "clean") if d != position] == []


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
