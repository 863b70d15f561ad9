"""What follows a loss that is not finite, in whole runs: its batch is found, reported, left out or repeated."""

import re

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer import files
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.engine.recovery import NonFiniteError
from official_trainer.lazy import keras
from tests.support import jobs, toy
from tests.support.engine_recovery import BAD_STEP, HALVED, BadBatchTask, assert_batch_is_found, choose_batches, do
from tests.support.runs import differences, values


@pytest.fixture(autouse=True)
def stream(monkeypatch):
    return choose_batches(monkeypatch)


def test_the_batch_that_fails_is_found_and_written_down(model_dir):
    """T12, N13, G8: exit code 4; the step is named, its batch written, and no bad state is saved."""
    assert_batch_is_found(model_dir, "off")


def test_a_batch_that_fails_before_the_first_checkpoint_is_found_too(model_dir):
    """N13, G8: the step was counted, so nothing has to be repeated."""
    said = rf"last good checkpoint is none\nthe batch of step {BAD_STEP} is the first with such a loss"
    with pytest.raises(NonFiniteError, match=said):
        do(model_dir, "trainer.checkpoint_interval=50")
    with np.load(f"{model_dir}/non_finite/step-{BAD_STEP}/batch.npz") as batch:
        assert np.isnan(batch["replica_0.features"]).sum() == 1


def model_that_hides_nan(task):
    """Returns a model whose first layer is 0 for a NaN: the loss stays finite, the gradient of the weights does not."""
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(4, activation=lambda values: tf.where(values > 0, values, 0.0))(inputs)
    return keras.Model(inputs, keras.layers.Dense(3)(hidden))


def test_weights_that_the_loss_does_not_show_are_seen_at_the_save(model_dir, monkeypatch):
    """G8, N5: the loss stays finite; the record of the run is at the step that it came to."""
    monkeypatch.setattr(BadBatchTask, "build_model", model_that_hides_nan)
    monkeypatch.setattr(BadBatchTask, "train_step", toy.ToyTask.train_step)
    message = (
        r"weights are not finite at step 60: dense.*; the last good checkpoint is .*ckpt-30\n"
        r"it came between step 30, which is saved, and step 60\n  either updates are too"
    )
    with pytest.raises(NonFiniteError, match=message):
        do(model_dir, "trainer.checkpoint_interval=30", "trainer.summary_interval=3")
    run_json, status = (files.read_json(f"{model_dir}/{name}") for name in ("run.json", "status.json"))
    assert (run_json["steps"]["current"], status["step"]) == (60, 60)


def test_a_loss_that_is_not_finite_in_an_evaluation_alone_is_said_once(model_dir, stream, monkeypatch, caplog):
    """G8: the run goes on; `check`, which reads one batch, names its values, and passes."""
    stream.bad_index = None
    build_inputs = BadBatchTask.build_inputs

    def spoiled(self, params, input_context=None):
        batches = build_inputs(self, params, input_context)
        spoil = lambda features, labels: (tf.where(labels[:, None] == 0, float("inf"), features), labels)  # noqa: E731
        return batches if params.is_training else batches.map(spoil)

    monkeypatch.setattr(BadBatchTask, "build_inputs", spoiled)
    do(model_dir, "trainer.validation_interval=10", "trainer.train_steps=20")
    said = [record.getMessage() for record in caplog.records if "validation_loss is" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("evaluating validation_data at step 10: validation_loss is nan. official-trainer check ")
    resolved = jobs.resolved("bad_batch")
    steps = {
        step.name: step for step in jobs.check("bad_batch", resolved, model_dir=f"{model_dir}-2", mode="train_and_eval")
    }
    assert steps["evaluate"].error is None
    assert re.search(r"\nnot finite: validation_loss\nnot finite: features float32\[32,6\]", steps["evaluate"].outcome)


def test_check_names_what_is_not_finite_in_the_batch_that_it_reads(model_dir, stream, monkeypatch):
    """N10, N28: also where the loss does not show it."""
    stream.bad_index = 0
    resolved = jobs.resolved("bad_batch")
    *_, failed = jobs.check("bad_batch", resolved, model_dir=f"{model_dir}", mode="train")
    assert "loss is nan at step 1\n  features float32[10,6]: 1 value is nan in column 2, in row 3" in str(failed.error)
    build_model = BadBatchTask.build_model

    def blind(self):
        features = keras.Input((6,))
        return keras.Model(features, build_model(self)(tf.zeros_like(features)))

    monkeypatch.setattr(BadBatchTask, "build_model", blind)
    monkeypatch.setattr(BadBatchTask, "train_step", toy.ToyTask.train_step)
    steps = {step.name: step for step in jobs.check("bad_batch", resolved, model_dir=f"{model_dir}", mode="train")}
    assert "\nnot finite: features float32[10,6]: 1 value is nan in column 2" in steps["train"].outcome
    assert "if the model handles them, name them in task.train_data.allow_non_finite" in steps["train"].outcome
    handled = ["task.train_data.allow_non_finite=[features]"]
    resolved = jobs.resolved("bad_batch", *handled)
    steps = {step.name: step for step in jobs.check("bad_batch", resolved, model_dir=f"{model_dir}", mode="train")}
    assert "finite" not in steps["train"].outcome


def test_a_batch_that_is_finite_is_not_blamed(model_dir, stream):
    """G8: its step is known all the same, and the learning rate is named."""
    stream.bad_index = None
    rate = "trainer.optimizer_config.learning_rate.constant.learning_rate=1e30"
    said = r"the batch of step \d+ is the first with such a loss; .*\n  either updates are too large .*check_numerics"
    with pytest.raises(NonFiniteError, match=said) as raised:
        do(model_dir, "trainer.checkpoint_interval=50", rate)
    assert "features" not in str(raised.value)


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
