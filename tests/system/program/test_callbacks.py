"""Callbacks of Keras with which training survives."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from official_trainer.lazy import keras
from official_trainer.program import Program

EPOCHS = 5


def build():
    keras.utils.set_random_seed(3)
    inputs = keras.Input([4])
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


def data():
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    return x, 3 * x[:, :1]


def test_training_goes_on_from_a_backup(tmp_path):
    """K5: Keras's own way to survive, where there is no run directory."""

    def fit(owner, folder, **settings):
        program = owner(build())
        program.compile("adam", "mse")
        backup = keras.callbacks.BackupAndRestore(tmp_path / folder)

        class Kill(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == settings.get("killed"):
                    raise KeyboardInterrupt

        arguments = {"epochs": EPOCHS, "batch_size": 8, "shuffle": False, "verbose": 0}
        return program.fit(*data(), callbacks=[backup, Kill()], **arguments)

    for owner, folder in ((lambda model: model, "theirs"), (Program, "ours")):
        with contextlib.suppress(KeyboardInterrupt):
            fit(owner, folder, killed=3)
    found, expected = fit(Program, "ours"), fit(lambda model: model, "theirs")
    assert found.history["loss"] == pytest.approx(expected.history["loss"])
    assert found.epoch == expected.epoch, "the epoch of the backup does not end again"
