"""What a training step returns beside the loss, in whole runs: every tracker has it, a restart changes no row."""

from pathlib import Path

import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer.actions.action import Action
from official_trainer.actions.schedule import ActionError
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import registry
from official_trainer.tracking.csv import CsvConfig
from official_trainer.triggers import Every
from tests.support import toy
from tests.support.runs import rows
from tests.support.tracking.readers import READERS

STOPS_AT = []


class NormConfig(configuration.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(NormConfig)
class NormTask(toy.ToyTask):
    """Returns how large its weights are."""

    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = super().train_step(inputs, model, optimizer, metrics)
        return {**logs, "weight_norm": tf.linalg.global_norm(model.trainable_variables)}

    def build_actions(self, trainer):
        return [Stop()]


class Stop(Action):
    when = Every(1)

    def on_step(self, run):
        if run.step in STOPS_AT:
            raise KeyError("out of power")


def do(model_dir, **trainer):
    keras.backend.clear_session()
    base = toy.experiment(
        summary_interval=4, checkpoint_interval=3, validation_interval=6, trackers=(CsvConfig(),),
        export=configuration.ExportConfig(at_end=False), **trainer,
    )  # fmt: skip
    data = configuration.DataConfig(global_batch_size=10)
    task = NormConfig(train_data=data, validation_data=data)
    resolved = configuration.resolve(base.replace(task=task, trainer=base.trainer.replace(train_steps=12)))
    return run.run("norms", resolved, mode="train_and_eval", model_dir=str(model_dir), quiet=False)


def test_a_run_records_them_wherever_it_stopped_and_however_its_windows_are_cut(tmp_path, capfd):
    """N32, N1: a row after a restart within its window is that of the unbroken run; all trackers have its numbers."""
    do(tmp_path / "whole", steps_per_loop=5)
    said = capfd.readouterr()
    STOPS_AT.append(7)
    with pytest.raises(ActionError, match="out of power"):
        do(tmp_path / "broken", steps_per_loop=1)
    STOPS_AT.clear()
    do(tmp_path / "broken", steps_per_loop=1)
    assert rows(tmp_path / "broken") == rows(tmp_path / "whole")
    found = {row["step"]: row["weight_norm"] for row in rows(tmp_path / "whole") if row["split"] == "train"}
    assert list(found) == [4, 8, 12]
    for reader in ("csv", "tensorboard"):
        read = {
            step: value for name, step, value in READERS[reader](Path(tmp_path / "broken")) if "weight_norm" in name
        }
        assert read == {step: pytest.approx(value) for step, value in found.items()}
    assert f"weight_norm {found[12]:.4g}" in said.out + said.err
