"""A run that goes on with a changed config uses the new values, not those that its checkpoint brings back."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer.checkpoints.manifest import CheckpointError, committed_steps
from official_trainer.lazy import keras
from official_trainer.tasks import registry
from tests.support import jobs
from tests.support.cases import cases
from tests.support.runs import rows, values
from tests.support.shuffled_runs import ShuffledTask


def do(model_dir, *sets, allow=True):
    keras.backend.clear_session()
    sets = ("trainer.export.at_end=false", *sets)
    resolved = configuration.resolve(registry.get_config("toy_run"), experiment="toy_run", sets=sets)
    return jobs.run("toy_run", resolved, mode="train", model_dir=str(model_dir), quiet=True, allow_config_change=allow)


@pytest.fixture(scope="module")
def of_forty_steps(tmp_path_factory):
    """A run of 40 steps with the optimizer of the experiment, which tests copy."""
    model_dir = str(tmp_path_factory.mktemp("of_forty_steps") / "run")
    do(model_dir, "trainer.train_steps=40")
    return model_dir


def rates(model_dir):
    return {row["step"]: row["learning_rate"] for row in rows(model_dir)}


@pytest.mark.parametrize("optimizer", cases(["adam", "adamw", "sgd"], "sgd"))
def test_a_new_learning_rate_holds_from_the_next_step(model_dir, optimizer):
    """N9: the checkpoint holds the old one, which TensorFlow would bring back."""
    of = (f"trainer.optimizer_config.optimizer.type={optimizer}",)
    do(model_dir, *of, "trainer.train_steps=40")
    do(model_dir, *of, "trainer.optimizer_config.learning_rate.constant.learning_rate=0.25")
    assert rates(model_dir) == pytest.approx({20: 0.01, 40: 0.01, 60: 0.25, 80: 0.25})


def test_another_optimizer_starts_afresh_once_its_variables_may_differ(of_forty_steps, model_dir):
    """N4, N9: refused with the pattern that allows it; then step and weights continue and the slots begin at zero."""
    shutil.copytree(of_forty_steps, model_dir)
    sets = ("trainer.optimizer_config.optimizer.type=sgd", "trainer.optimizer_config.optimizer.sgd.momentum=0.9")
    with pytest.raises(CheckpointError, match=r"trainer\.restore_allow_mismatch, for example \[optimizer/\*\]"):
        do(model_dir, *sets)
    assert committed_steps(model_dir)[-1] == 40
    do(model_dir, *sets, "trainer.restore_allow_mismatch=[optimizer/*]")
    saved = values(model_dir, 80)
    assert any("/momentum/" in name for name in saved)
    assert not any("/.OPTIMIZER_SLOT/optimizer/m/" in name for name in saved)
    assert saved["global_step/.ATTRIBUTES/VARIABLE_VALUE"] == 80


def test_what_is_not_named_is_still_refused(of_forty_steps, model_dir):
    """N4: a pattern opens no other door."""
    shutil.copytree(of_forty_steps, model_dir)
    with pytest.raises(CheckpointError, match="extra: in the checkpoint, not in the program"):
        do(model_dir, "trainer.optimizer_config.ema=null", "trainer.restore_allow_mismatch=[training/*]")


def test_another_batch_size_goes_on_with_the_next_examples(model_dir, monkeypatch):
    """N9, N1: no example is seen twice, and none is left out, in the epoch that the change comes in."""
    seen = []
    train_step = ShuffledTask.train_step

    def spy(self, batch, *args, **kwargs):
        tf.numpy_function(lambda features: seen.append(features.copy()), [batch[0]], [])
        return train_step(self, batch, *args, **kwargs)

    monkeypatch.setattr(ShuffledTask, "train_step", spy)
    do(model_dir, "trainer.train_steps=6", "trainer.steps_per_loop=1")
    do(model_dir, "trainer.train_steps=8", "trainer.steps_per_loop=1", "task.train_data.global_batch_size=20")
    assert [len(batch) for batch in seen] == [10] * 6 + [20] * 2
    examples = np.concatenate(seen)
    assert len(np.unique(examples, axis=0)) == 100
