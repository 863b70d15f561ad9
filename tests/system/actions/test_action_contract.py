"""A run with every action that is stopped and continued."""

import pytest

from official_trainer import files
from official_trainer.checkpoints.manifest import read
from official_trainer.engine.trainer import Trainer
from official_trainer.stopping import PreemptedError, StopRequest
from tests.support.actions import every
from tests.support.runs import differences


def test_all_of_them_together_survive_a_stop(tmp_path, monkeypatch):
    """N2, N5: a run that is stopped and continued ends with the bits, the rows and the states of an unbroken one."""
    stop, steps = StopRequest(), Trainer.run_steps

    def run_steps(self, num_steps, **options):
        ran = steps(self, num_steps, **options)
        if int(self.global_step.numpy()) >= 13 and not stop.reason:
            stop.reason = "SIGTERM"
        return ran

    every.train(tmp_path / "all")
    with monkeypatch.context() as patch, pytest.raises(PreemptedError):
        patch.setattr(Trainer, "run_steps", run_steps)
        every.train(tmp_path / "stopped", stop=stop)
    every.train(tmp_path / "stopped")
    assert differences(f"{tmp_path}/stopped", f"{tmp_path}/all") == []
    left, right = (read(f"{tmp_path}/{name}", 40).extra for name in ("stopped", "all"))
    for extra in (left, right):
        del extra["called"]["profile"]  # it also looks for its file every few seconds
    assert left == right


def test_all_of_them_together_change_nothing(tmp_path):
    """B1, G1: a run with every action ends with the bits of one with none, and leaves what they say."""
    every.train(tmp_path / "all")
    every.train(tmp_path / "none", acts=False)
    found = [text for text in differences(f"{tmp_path}/all", f"{tmp_path}/none") if "metrics.jsonl: {" not in text]
    assert found == []
    for place in ("averaged/ckpt-40.index", "checkpoints", "export/steps/40", "train/plugins/profile"):
        assert files.exists(f"{tmp_path}/all/{place}"), place
