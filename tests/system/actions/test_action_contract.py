"""A run with every action that is stopped and continued."""

import pytest

from official_trainer import files
from official_trainer.checkpoints.manifest import read
from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import keras
from official_trainer.stopping import PreemptedError, StopRequest
from tests.support import jobs
from tests.support.actions.samples import SAMPLES
from tests.support.runs import differences
from tests.support.shuffled_runs import resolve

SETS = (
    "trainer.train_steps=40",
    "trainer.checkpoint_interval=20",
    "trainer.validation_interval=20",
    "trainer.optimizer_config.ema=null",
)


def train(model_dir, *, acts=True, stop=None):
    """Trains with all actions, or with none."""
    keras.backend.clear_session()
    sets = (*SETS, f"trainer.actions=[{', '.join(SAMPLES.values())}]") if acts else SETS
    return jobs.run("toy_run", resolve(*sets), mode="train_and_eval", model_dir=str(model_dir), quiet=True, stop=stop)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An unbroken run with all of them, which tests only read."""
    folder = tmp_path_factory.mktemp("whole") / "all"
    train(folder)
    return folder


def test_all_of_them_together_survive_a_stop(whole, tmp_path, monkeypatch):
    """N2, N5: a run that is stopped and continued ends with the bits, the rows and the states of an unbroken one."""
    stop, steps = StopRequest(), Trainer.run_steps

    def run_steps(self, num_steps, **options):
        ran = steps(self, num_steps, **options)
        if int(self.global_step.numpy()) >= 13 and not stop.reason:
            stop.reason = "SIGTERM"
        return ran

    with monkeypatch.context() as patch, pytest.raises(PreemptedError):
        patch.setattr(Trainer, "run_steps", run_steps)
        train(tmp_path / "stopped", stop=stop)
    train(tmp_path / "stopped")
    assert differences(f"{tmp_path}/stopped", str(whole)) == []
    left, right = (read(str(folder), 40).extra for folder in (tmp_path / "stopped", whole))
    for extra in (left, right):
        del extra["called"]["profile"]  # it also looks for its file every few seconds
    assert left == right


def test_all_of_them_together_change_nothing(whole, tmp_path):
    """B1, G1: a run with every action ends with the bits of one with none, and leaves what they say."""
    train(tmp_path / "none", acts=False)
    found = [text for text in differences(str(whole), f"{tmp_path}/none") if "metrics.jsonl: {" not in text]
    assert found == []
    for place in ("averaged/ckpt-40.index", "checkpoints", "export/steps/40", "train/plugins/profile"):
        assert files.exists(f"{whole}/{place}"), place
