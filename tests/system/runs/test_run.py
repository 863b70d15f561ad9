"""Whole runs compared bit by bit, on replicas and in parts."""

import pytest

from official_trainer.lazy import keras
from tests.support.cases import cases
from tests.support.runs import assert_same_checkpoint
from tests.support.shuffled import ShuffledTask, do


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 80 steps to its end, which tests only read."""
    model_dir = str(tmp_path_factory.mktemp("finished") / "run")
    return model_dir, do(model_dir)


@pytest.mark.parametrize("strategy", cases(["one_device", "mirrored"], "mirrored"))
@pytest.mark.parametrize("stop_at", cases([20, 33], 33))
def test_a_run_in_two_parts_equals_one_in_one(model_dir, tmp_path, stop_at, strategy):
    """N1: every variable and slot bit by bit, with shuffling, dropout and averaging, at and between checkpoints."""
    sets = [f"runtime.distribution_strategy={strategy}", "trainer.train_steps=60", "trainer.export.at_end=false"]
    whole = str(tmp_path / "whole")
    do(whole, *sets)
    do(model_dir, *sets, f"trainer.train_steps={stop_at}", "trainer.summary_interval=60")
    do(model_dir, *sets, "trainer.steps_per_loop=7", "trainer.summary_interval=60")
    numbers = ("training/loss/", "training/metrics/")  # the last row of the first part has reset these
    # Off the checkpoints of the unbroken run, a mean over replicas is taken once more, and rounds once more.
    numbers += ("training/loss_trace/",) if strategy == "mirrored" and stop_at == 33 else ()
    assert_same_checkpoint(whole, model_dir, 60, ignore=numbers)


def test_statistics_of_replicas_agree_wherever_somebody_looks(model_dir, tmp_path, monkeypatch):
    """N1, N17: with batch norm on two replicas, a run in two parts and a later evaluation give the same."""

    def build_model(self):
        features = keras.Input((6,), name="features")
        x = keras.layers.BatchNormalization()(keras.layers.Dense(8)(features))
        return keras.Model(features, keras.layers.Dense(3, name="logits")(x))

    monkeypatch.setattr(ShuffledTask, "build_model", build_model)
    sets = ["runtime.distribution_strategy=mirrored", "trainer.export.at_end=false", "trainer.train_steps=60"]
    whole = str(tmp_path / "whole")
    metrics = do(whole, *sets)
    do(model_dir, *sets, "trainer.train_steps=40")
    assert do(model_dir, *sets) == metrics
    assert do(model_dir, *sets, mode="eval")["validation_loss"] == metrics["validation_loss"]
    assert_same_checkpoint(whole, model_dir, 60, ignore=("training/loss/", "training/metrics/"))


def test_weights_do_not_depend_on_steps_per_loop(finished, tmp_path):
    """T2: bitwise, checkpoint by checkpoint, with metrics."""
    model_dir, _ = finished
    for steps_per_loop in (1, 13, 1000):
        other = str(tmp_path / str(steps_per_loop))
        do(other, f"trainer.steps_per_loop={steps_per_loop}", "trainer.export.at_end=false")
        for step in (20, 80):
            assert_same_checkpoint(model_dir, other, step)
