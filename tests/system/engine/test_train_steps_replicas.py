"""What is the same on two replicas as on one device, and what is not: the table of docs/guides/distributed.md."""

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.lazy import keras
from tests import ROOT
from tests.support import toy
from tests.support.cases import cases
from tests.support.forked import run_command
from tests.support.runs import differences

LAYERS = {
    "penalties": lambda: keras.layers.Dense(16, "relu", kernel_regularizer="l2"),
    "synchronized batch norm": lambda: keras.layers.BatchNormalization(synchronized=True, momentum=0.9),
    "dropout": lambda: keras.layers.Dropout(0.5),
    "batch norm": lambda: keras.layers.BatchNormalization(momentum=0.9),
    "pairs": lambda: keras.layers.Dense(16, "relu"),
}
SAME = ("penalties", "synchronized batch norm")


@pytest.mark.parametrize("what", cases(list(LAYERS), "synchronized batch norm", "pairs"))
def test_replicas_have_the_numbers_of_one_device_or_not(what):
    """T2: losses and weights after 30 steps, and a whole evaluation; else users compare what cannot be compared."""

    class Task(toy.ToyTask):
        def build_model(self):
            return keras.Sequential([keras.Input([6]), LAYERS[what](), keras.layers.Dense(3)])

        def build_inputs(self, params, input_context=None):
            return inputs.from_arrays((toy.FEATURES, toy.LABELS), params, input_context)

        def build_losses(self, labels, model_outputs, aux_losses=None):
            losses = super().build_losses(labels, model_outputs)
            if what == "pairs":
                losses += tf.math.reduce_std(model_outputs)
            return losses + tf.add_n(aux_losses) if aux_losses else losses

    one, two = (toy.build(toy.experiment(batch=20), task_cls=Task, strategy=name) for name in ("off", "mirrored2"))
    found = [[float(each.train(tf.constant(10))["training_loss"]) for _ in range(3)] for each in (one, two)]
    apart = max(abs(left - right) / left for left, right in zip(*found, strict=True))
    assert apart < 1e-5 if what in SAME else apart > 1e-3  # what differs does not do so by rounding
    if what in SAME:
        for left, right in zip(toy.weights(one), toy.weights(two), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
        left, right = (each.evaluate(tf.constant(-1)) for each in (one, two))
        assert left["accuracy"] == right["accuracy"]
        assert float(left["validation_loss"]) == pytest.approx(float(right["validation_loss"]), rel=1e-5)


def test_mirrored_over_one_device_costs_nothing(tmp_path):
    """T16: it is no strategy, with the numbers that MirroredStrategy over that device gives."""
    sets = ["trainer.train_steps=4", "trainer.export.at_end=false"]
    argv = ["train", "--experiment=digits_mlp", "--mode=train", *(f"--set={word}" for word in sets)]
    for name in ("mirrored", "off"):
        words = [f"--model_dir={tmp_path / name}", f"--set=runtime.distribution_strategy={name}"]
        done = run_command([*argv, *words, "--set=runtime.num_logical_cpus=1"], cwd=ROOT, folder=tmp_path)
        assert done.code == 0, done.err
        assert "on 1 CPU" in done.out
    assert differences(tmp_path / "mirrored", tmp_path / "off") == []
