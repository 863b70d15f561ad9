"""What follows a loss that is not finite: runs that recover, and what they are compared with, bit by bit."""

import contextlib
import json

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.engine.loop import Loop
from official_trainer.engine.recovery import NonFiniteError, Recovery
from official_trainer.tracking.jsonl import read_rows
from tests.support.cases import cases, full
from tests.support.engine_recovery import (
    BAD_STEP,
    HALVED,
    RATES,
    BadBatchTask,
    assert_batch_is_found,
    choose_batches,
    do,
    new_optimizer,
    rates,
)
from tests.support.runs import differences, values


@pytest.fixture(autouse=True)
def stream(monkeypatch):
    return choose_batches(monkeypatch)


class Killed(BaseException):
    """Stands for SIGKILL."""


@contextlib.contextmanager
def killed_after_a_save(monkeypatch, is_due):
    """Ends the run that the block does after the first save for which a loop `is_due`."""
    save = Loop.save

    def save_and_die(loop):
        save(loop)
        if is_due(loop):
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Loop, "save", save_and_die)
        yield


def test_the_batch_that_fails_is_found_in_one_of_two_replicas(model_dir):
    """T12, G8: exit code 4, with the report that a single device would leave."""
    assert_batch_is_found(model_dir, "mirrored")


def test_the_same_data_again_fails_again_and_then_gives_up(model_dir):
    """T12: `repeat` is for failures of the machine; a bad batch uses up the trials."""
    with pytest.raises(NonFiniteError, match="is the first with such a loss"):
        do(model_dir, "trainer.recovery_max_trials=2", "trainer.recovery_data=repeat")
    manifest = json.loads((tf.io.gfile.GFile(f"{model_dir}/ckpt-30.manifest.json")).read())
    assert manifest["extra"] == {}


def test_a_failure_of_the_machine_leaves_nothing_behind(model_dir, tmp_path, stream, monkeypatch, caplog):
    """T12: with `repeat` the steps are repeated, and the run ends as if nothing had happened."""
    stream.bad_index = None
    problem, glitches = Recovery.loss_problem, iter(["the training loss is nan at step 37; cosmic rays"])

    def glitch(recovery):
        return next(glitches, None) if int(recovery._trainer.global_step.numpy()) >= 37 else problem(recovery)

    monkeypatch.setattr(Recovery, "loss_problem", glitch)
    do(model_dir, "trainer.recovery_max_trials=1", "trainer.recovery_data=repeat")
    assert "it came between step 30, which is saved, and step 40" in caplog.text
    assert "back at step 30, with the same data" in caplog.text
    monkeypatch.undo()
    stream.bad_index = None
    do(tmp_path / "clean")
    assert differences(model_dir, tmp_path / "clean") == []


@pytest.mark.parametrize(
    ("bad_too", "sets"),
    [
        full(((BAD_STEP, BAD_STEP + 1), ("trainer.recovery_max_trials=3",))),  # also two in a row
        ((45,), ("trainer.recovery_max_trials=2", "trainer.recovery_checkpoints_back=2")),  # an older checkpoint
    ],
)
def test_several_batches_that_fail_are_all_left_out(model_dir, tmp_path, stream, bad_too, sets):
    """T12, N2: what was decided at a checkpoint holds when the run goes back there again, or further."""
    stream.bad_too = bad_too
    do(model_dir, *sets, "trainer.recovery_data=skip_batch")
    assert values(model_dir, 60)["training/position/skipped_steps/.ATTRIBUTES/VARIABLE_VALUE"] == 1 + len(bad_too)
    stream.without = (BAD_STEP - 1, *bad_too)
    do(tmp_path / "clean")
    assert all("position" in line for line in differences(model_dir, tmp_path / "clean"))


@pytest.mark.parametrize(
    ("bad_too", "sets", "back", "most"),
    [
        ((), ("trainer.recovery_max_trials=1",), 30, 10),
        # Step 51, from step 30 again:
        full(((50,), ("trainer.recovery_max_trials=2", "trainer.checkpoint_interval=30"), 17, 40)),
    ],
    ids=["once", "twice"],
)
def test_skipping_goes_on_past_the_data_of_the_lost_steps(model_dir, stream, caplog, bad_too, sets, back, most):
    """T12: `skip`, Model Garden's way: no batch since the checkpoint is seen again; the steps are repeated."""
    stream.bad_too = bad_too
    do(model_dir, *sets)
    lost = values(model_dir, 60)["training/position/skipped_steps/.ATTRIBUTES/VARIABLE_VALUE"]
    assert (51 - 30 if bad_too else BAD_STEP - back) <= lost <= most
    assert f"back at step {30 if bad_too else back}, past the data of" in caplog.text
    steps = [row["step"] for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] == "train"]
    assert steps == [10, 20, 30, 40, 50, 60]


def test_a_batch_whose_loss_is_above_the_bound_is_found(model_dir, tmp_path, stream, caplog):
    """N13, T12: by the question that the loop asks, though summaries lie between the checkpoint and the failure."""
    stream.bad_index, stream.loud = None, (BAD_STEP - 1,)
    sets = ("trainer.loss_upper_bound=1000", "trainer.summary_interval=5", "trainer.checkpoint_interval=30")
    do(model_dir, *sets, "trainer.recovery_max_trials=1", "trainer.recovery_data=skip_batch")
    assert "above trainer.loss_upper_bound=1000" in caplog.text
    assert f"the batch of step {BAD_STEP} is the first with such a loss; it is in" in caplog.text
    with np.load(f"{model_dir}/non_finite/step-{BAD_STEP}/batch.npz") as batch:
        assert batch["replica_0.features"][3, 2] == 1e6
    stream.without = (BAD_STEP - 1,)
    do(tmp_path / "clean", *sets)
    assert all("position" in line for line in differences(model_dir, tmp_path / "clean"))


@pytest.mark.parametrize("rate", cases(RATES, "constant"))
def test_the_rate_is_scaled_from_the_recovery_on_also_after_a_kill(rate, model_dir, tmp_path, monkeypatch, caplog):
    """N13, N1, N2: in the rows, in the steps, in the checkpoints, and a run that was killed ends with the same bits."""
    if rate == "experimental":
        monkeypatch.setattr(BadBatchTask, "create_optimizer", classmethod(new_optimizer))
    sets = (*RATES[rate], *HALVED, "trainer.recovery_data=skip_batch")
    do(model_dir, *sets)
    assert "back at step 30, leaving out the batch of step 37, at 0.5 times the learning rate" in caplog.text
    do(tmp_path / "plain", *RATES[rate], "trainer.recovery_max_trials=1", "trainer.recovery_data=skip_batch")
    scaled, plain = rates(model_dir), rates(tmp_path / "plain")
    assert all(scaled[step] == plain[step] for step in (10, 20, 30))
    assert all(scaled[step] == pytest.approx(plain[step] / 2) for step in (40, 50, 60))
    assert values(model_dir, 60).keys() == values(tmp_path / "plain", 60).keys()

    with killed_after_a_save(monkeypatch, lambda loop: loop.state.step == 40):
        do(tmp_path / "killed", *sets)
    do(tmp_path / "killed", *sets)
    assert differences(tmp_path / "killed", model_dir) == []


def test_a_halved_rate_is_the_half_rate(model_dir, tmp_path, stream):
    """N13: the same bits as a run that was given half the rate at that step."""
    do(model_dir, *HALVED, "trainer.recovery_data=skip_batch")
    stream.without = (BAD_STEP - 1,)
    do(tmp_path / "clean", "trainer.train_steps=30")
    rate = "trainer.optimizer_config.learning_rate.constant.learning_rate=0.005"
    do(tmp_path / "clean", rate, allow_config_change=True)
    names = [name for name in values(model_dir, 60) if name.startswith(("model/", "optimizer/"))]
    ours, theirs = values(model_dir, 60), values(tmp_path / "clean", 60)
    assert [name for name in names if ours[name].tobytes() != theirs[name].tobytes()] == []


def test_each_recovery_scales_again_and_the_scale_outlives_the_setting(model_dir, stream, caplog):
    """N13, N2: two recoveries from one checkpoint make a quarter, in the rows too; it outlives the setting."""
    stream.bad_too = (BAD_STEP + 1,)
    sets = (*RATES["schedule"], "trainer.recovery_data=skip_batch")
    do(model_dir, *sets, *HALVED)
    assert "recovery 2 of 2: back at step 30, leaving out the batch of step 38, at 0.25 times" in caplog.text
    extra = json.loads((tf.io.gfile.GFile(f"{model_dir}/ckpt-60.manifest.json")).read())["extra"]
    assert (extra["learning_rate_scale"], extra["left_out"], extra["left_out_pending"]) == (0.25, [36, 37], [])
    do(model_dir, *sets, "trainer.train_steps=70")
    for step, scale in ((30, 1), (60, 4), (70, 4)):
        unscaled = 0.02 * 0.5 * (1 + np.cos(np.pi * step / 99))
        assert rates(model_dir)[step] == pytest.approx(unscaled / scale, rel=1e-5)


@pytest.mark.parametrize(
    ("bad_step", "sets"),
    [
        full((BAD_STEP, ())),
        (BAD_STEP, ("trainer.optimizer_config.ema={average_decay: 0.9}",)),
        full((45, ("trainer.recovery_checkpoints_back=2",))),  # it has a checkpoint of its own, and goes back further
    ],
    ids=["slots", "averages", "further"],
)
def test_a_stage_that_goes_back_to_the_one_before_begins_as_it_began(model_dir, tmp_path, stream, bad_step, sets):
    """N54, N2: slots and averages of weights that were frozen begin anew once more, not with what they had come to."""
    stream.is_first_stage = True
    for folder in (model_dir, tmp_path / "clean"):
        do(folder, *sets, "trainer.train_steps=30")
    stream.is_first_stage, stream.bad_index = False, bad_step - 1
    recovery = ("trainer.recovery_max_trials=1", "trainer.recovery_data=skip_batch")
    do(model_dir, *sets, *recovery, allow_config_change=True)
    assert values(model_dir, 60)["training/position/skipped_steps/.ATTRIBUTES/VARIABLE_VALUE"] == 1
    stream.without = (bad_step - 1,)
    do(tmp_path / "clean", *sets, allow_config_change=True)
    assert all("position" in line for line in differences(model_dir, tmp_path / "clean"))


@pytest.mark.full
def test_going_back_takes_back_the_best_of_later_steps(model_dir, tmp_path, stream, caplog):
    """N2, T11: record, checkpoint and export; then the run ends with the best of one that never saw the batch."""
    best = ("best_checkpoint_eval_metric=validation_loss", "best_checkpoint_metric_comp=lower", "export.best=true")
    sets = (
        *(f"trainer.{one}" for one in best),
        "trainer.validation_interval=5",
        "trainer.best_checkpoint_max_to_keep=2",
    )
    do(
        model_dir,
        *sets,
        "trainer.recovery_max_trials=1",
        "trainer.recovery_data=skip_batch",
        "trainer.recovery_checkpoints_back=3",
    )
    assert "was deleted, because its step is repeated" in caplog.text
    stream.without = (BAD_STEP - 1,)
    do(tmp_path / "clean", *sets)
    ours, theirs = (json.loads((tmp_path / name / "run.json").read_text())["best"] for name in ("run", "clean"))
    assert ours == theirs
    for folder in ("best", "export/best"):
        assert sorted(path.name for path in (tmp_path / "run" / folder).iterdir()) == sorted(
            path.name for path in (tmp_path / "clean" / folder).iterdir()
        )
