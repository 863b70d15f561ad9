"""A loss that runs away while it is still a number: noticed, and the run warns, stops or goes back."""

import types

import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer.actions.action import LoopState, Rollback, Run, Stop
from official_trainer.actions.divergence import Divergence, DivergenceConfig
from official_trainer.actions.schedule import Schedule
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import ConfigError, ExperimentConfig
from official_trainer.engine.recovery import NonFiniteError
from official_trainer.errors import ExitCode
from official_trainer.tracking.jsonl import read_rows
from tests.support.action_runs import ActingTask, do
from tests.support.runs import differences, values

JUMP = 23
"""Index of the first batch with a loss that has run away."""


def loud_from(count, monkeypatch):
    """Has the reported loss of `count` batches, from `JUMP` on, jump to a thousand times of what it is."""
    build_inputs, train_step = ActingTask.build_inputs, ActingTask.train_step

    def marked(task, params, input_context=None):
        dataset = build_inputs(task, params, input_context)
        if not params.is_training:
            return dataset
        return dataset.enumerate().map(
            lambda index, batch: (
                batch[0] + tf.where((index >= JUMP) & (index < JUMP + count), 1000.0, 0.0),
                batch[1],
            )
        )

    def loud(task, inputs, model, optimizer, metrics=None):
        is_loud = tf.reduce_min(inputs[0]) > 500
        features = inputs[0] - tf.where(is_loud, 1000.0, 0.0)
        logs = train_step(task, (features, inputs[1]), model, optimizer, metrics)
        return {**logs, task.loss: logs[task.loss] * tf.where(is_loud, 1000.0, 1.0)}

    monkeypatch.setattr(ActingTask, "build_inputs", marked)
    monkeypatch.setattr(ActingTask, "train_step", loud)


def divergence(**fields):
    text = ", ".join(f"{name}: {value}" for name, value in fields.items())
    return f"trainer.actions=[{{type: divergence, when: {{every: 1}}, start_from_step: 10, {text}}}]"


def test_a_loss_that_jumps_is_gone_back_from_and_skipped(model_dir, monkeypatch, caplog):
    """N13: between two summaries; the data since the checkpoint is skipped, and the run ends well."""
    loud_from(3, monkeypatch)
    do(model_dir, divergence(patience=3, then="rollback"), "trainer.recovery_max_trials=1", mode="train")
    assert "training diverges: the loss of step 26 is" in caplog.text
    assert "3 looks in a row (action 'divergence'); the last good checkpoint is" in caplog.text
    assert "recovery 1 of 1: back at step 20, past the data of 6 steps" in caplog.text
    assert values(model_dir, 40)["training/position/skipped_steps/.ATTRIBUTES/VARIABLE_VALUE"] == 6
    rows = read_rows(f"{model_dir}/metrics.jsonl")
    assert [row["step"] for row in rows if row["split"] == "train"] == [10, 20, 30, 40]
    assert all(row["training_loss"] < 10 for row in rows if row["split"] == "train")


def test_without_a_recovery_the_run_fails_with_the_reason(model_dir, monkeypatch):
    """N13, N6: exit code 4; the state that diverged is not saved."""
    loud_from(100, monkeypatch)
    with pytest.raises(NonFiniteError, match=r"training diverges: the loss of step 24 is .*\nan action asks") as caught:
        do(model_dir, divergence(patience=1, then="rollback"), mode="train")
    assert caught.value.exit_code == ExitCode.NON_FINITE
    assert committed_steps(model_dir) == (20,)


def test_stop_ends_the_run_there(model_dir, monkeypatch):
    """N13: saved and evaluated, as if it was the last step."""
    loud_from(100, monkeypatch)
    do(model_dir, divergence(patience=2, then="stop"))
    assert committed_steps(model_dir) == (20, 25)
    assert [row["step"] for row in read_rows(f"{model_dir}/metrics.jsonl")][-1] == 25


def test_a_warning_changes_nothing(model_dir, tmp_path, monkeypatch, caplog):
    """N13, N2: the same bits and rows as without; not said at each of the sixteen looks."""
    loud_from(100, monkeypatch)
    do(model_dir, divergence(patience=2), mode="train")
    assert caplog.text.count("training diverges: the loss of step 25") == 1
    assert caplog.text.count("training diverges") < 9
    do(tmp_path / "plain", mode="train")
    assert differences(model_dir, str(tmp_path / "plain")) == []


# The rule.


class Looks:
    """An action that sees losses that the test says."""

    def __init__(self, **fields):
        self.action = Divergence(DivergenceConfig(**{"start_from_step": 0, "then": "rollback", **fields}))
        self.action.name = "d"
        self.trace = {}
        trainer = types.SimpleNamespace(windows=types.SimpleNamespace(loss_trace=self.trace))
        self.run = Run(state=LoopState(), trainer=trainer, model_dir="", tracker=None)

    def look(self, loss, smoothed):
        self.run.state.step += 1
        self.trace.update(batch_loss=loss, smoothed_loss=smoothed)
        return self.action.on_step(self.run)


@pytest.mark.parametrize(
    ("looks", "fields", "found_at"),
    [
        ([(1, 1), (3, 1), (3.1, 1)], {"patience": 1}, 3),
        ([(1, 1), (9, 1), (9, 1), (9, 1)], {"patience": 3}, 4),
        ([(1, 1), (9, 1), (1, 1), (9, 1), (9, 1)], {"patience": 3}, None),
        ([(1, 1), (9, 5), (9, 8), (9, 9)], {"patience": 3}, 4),  # the average follows; what was usual before counts
        ([(9, 1), (9, 1), (9, 1), (9, 1)], {"patience": 1, "start_from_step": 3}, 4),
        ([(-1, -1), (-1, -9), (5, 0)], {"patience": 1}, None),
        ([(1, 1), (2.5, 1)], {"patience": 1, "factor": 2.0}, 2),
        ([(1, 1), (float("nan"), float("nan")), (9, 1)], {"patience": 1}, None),
    ],
)
def test_what_counts_as_running_away(looks, fields, found_at):
    """N13: so many looks in a row, measured by what was usual at the last one that was well."""
    run = Looks(**fields)
    found = [number for number, look in enumerate(looks, start=1) if run.look(*look) is not None]
    assert found == ([] if found_at is None else [found_at])


def test_the_row_survives_a_restart_and_goes_back_with_the_run():
    """N13, N2: as state in the checkpoint."""
    run = Looks(patience=3)
    schedule = Schedule([run.action])
    for look in [(1, 1), (9, 5)]:
        run.look(*look)
    saved = schedule.state()
    assert saved["actions"] == {"d": {"in_a_row": 1, "usual": 1}}
    again = Looks(patience=3)
    Schedule([again.action]).restore(saved)
    assert again.look(9, 8) is None
    assert isinstance(again.look(9, 9), Rollback)
    assert again.action.state() == {}
    assert isinstance(Looks(patience=1, then="stop").action, Divergence)


def test_what_is_asked_for_has_its_reason():
    """N13: the step, the loss, what is usual, and who says so."""
    run = Looks(patience=2, then="stop")
    run.look(1.5, 1.25)
    run.look(12.5, 2)
    assert run.look(15, 3) == Stop(
        reason="training diverges: the loss of step 3 is 15, more than 3 times its moving average of 1.25 before, "
        "2 looks in a row (action 'd')"
    )


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("factor: 1", r"factor: must be greater than 1"),
        ("then: skip", r"then: not one of the choices, got 'skip'; allowed: warn, stop, rollback"),
    ],
)
def test_what_is_wrong_in_the_config_is_said(field, message):
    """N13: at once."""
    with pytest.raises(ConfigError, match=message):
        configuration.resolve(
            ExperimentConfig(), experiment="x", sets=(f"trainer.actions=[{{type: divergence, {field}}}]",)
        )
