"""Sections of an experiment's config beside Keras's arguments, in whole runs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from official_trainer.config import ExportConfig, TrainerConfig
from official_trainer.engine.recovery import NonFiniteError
from official_trainer.program import Program
from official_trainer.tracking.tensorboard import TensorBoardConfig
from tests.support.programs import examples, light, lightly

X, Y = (array[:48] for array in examples())


def test_a_batch_that_is_not_finite_is_gone_past(tmp_path):
    """K6: `recovery_…`; epochs that are done again are in the history once."""
    bad = X.copy()
    bad[25] = np.nan  # in batch 2 of each epoch

    def train(trials, name):
        settings = TrainerConfig(recovery_max_trials=trials, checkpoint_interval=2)
        owner = lightly(Program(light, str(tmp_path / name), trainer=settings))
        arguments = {"batch_size": 12, "epochs": 2, "shuffle": False, "verbose": 0}
        return owner.fit(bad, Y, validation_data=(X, Y), **arguments), owner

    with pytest.raises(NonFiniteError, match="training loss is nan"):
        train(0, "given up")
    history, owner = train(4, "gone on")
    assert history.epoch == [0, 1]
    assert all(len(values) == 2 and np.isfinite(values).all() for values in history.history.values())
    assert all(np.isfinite(weight).all() for weight in owner.model.get_weights())


def test_a_run_directory_is_kept_as_the_trainer_section_says(tmp_path):
    """K6: how many checkpoints and where, the best one, trackers, actions, exports, and examples in the record."""
    settings = TrainerConfig(
        checkpoint_interval=2,
        max_to_keep=2,
        best_checkpoint_eval_metric="loss",
        best_checkpoint_metric_comp="lower",
        export=ExportConfig(at_end=True, best=True),
        trackers=(TensorBoardConfig(splits=("train",)),),
    )
    run = tmp_path / "run"
    owner = lightly(Program(light, str(run), trainer=settings))
    owner.fit(X, Y, batch_size=12, epochs=3, shuffle=False, validation_split=0.25, verbose=0)
    assert sorted(path.name for path in run.glob("*.manifest.json")) == ["ckpt-8.manifest.json", "ckpt-9.manifest.json"]
    record = json.loads((run / "run.json").read_text())
    assert record["best"]["metric"] == "loss"
    assert (run / "export" / "9" / "saved_model.pb").exists()
    assert list((run / "export" / "best").iterdir())
    assert {path.parent.name for path in run.rglob("*.tfevents.*")} == {"train"}
    best = record["best"]["value"]
    owner.evaluate(X[:3], Y[:3], verbose=0)
    assert json.loads((run / "run.json").read_text())["best"]["value"] == best
