"""N9: runs of continuous_train_and_eval that go on with another config."""

import os

import pytest

from official_trainer.runs.resume.config_changes import ConfigChangeError
from official_trainer.tracking.jsonl import read_rows
from tests.support.guarded_runs import train


def test_each_run_of_continuous_train_and_eval_is_guarded(model_dir, tmp_path):
    """N9, T10: in its own directory."""
    train(model_dir)
    there = str(tmp_path / "tuned")
    sets = [f"task.init_checkpoint={model_dir}/", "trainer.train_steps=2", "trainer.continuous_eval_timeout=0"]
    train(there, *sets, mode="continuous_train_and_eval")
    os.remove(f"{there}/continuous_train_and_eval.json")
    with pytest.raises(ConfigChangeError, match=r"from-2: the config is not the one"):
        train(there, *sets, "runtime.seed=3", mode="continuous_train_and_eval")
    train(there, *sets, "runtime.seed=3", mode="continuous_train_and_eval", allow_config_change=True)
    assert {row["step"] for row in read_rows(f"{there}/from-4/metrics.jsonl")} == {2}
