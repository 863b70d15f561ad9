"""Callbacks under `Program.fit`; `test_program_combinations.py` compares each of Keras's with Keras's own fit."""

from __future__ import annotations

import contextlib
import inspect

import numpy as np
import pytest

from official_trainer.engine.recovery import NonFiniteError
from official_trainer.lazy import keras
from official_trainer.program import ArgumentError, Program
from tests.support.cases import cases
from tests.support.fits import COMBINATIONS
from tests.support.programs import examples, light, lightly

X, Y = examples()
NOT_CALLED = {"CallbackList", "BaseLogger"}  # the second looks for what `fit` of TensorFlow 2 does not tell it
IN_EACH = {"Callback", "History"}  # of these are the one that writes down all calls, and what `fit` returns


def test_every_callback_of_keras_is_tried():
    """K5"""
    found = {name for name, cls in vars(keras.callbacks).items() if inspect.isclass(cls)}
    assert found - NOT_CALLED - IN_EACH <= COMBINATIONS.keys()


def test_a_backup_beside_a_run_directory_is_refused(tmp_path):
    program = lightly(Program(light(), str(tmp_path / "run")))
    said = r"BackupAndRestore: training continues at the checkpoint in .*; leave it out"
    with pytest.raises(ArgumentError, match=said):
        program.fit(X, Y, callbacks=[keras.callbacks.BackupAndRestore(tmp_path / "backup")])


def test_training_goes_on_from_a_backup(tmp_path):
    """K5: Keras's own way to survive, where there is no run directory."""

    def fit(owner, folder, killed=None):
        class Kill(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == killed:
                    raise KeyboardInterrupt

        callbacks = [keras.callbacks.BackupAndRestore(tmp_path / folder), Kill()]
        program = lightly(owner(light()), optimizer="adam")
        return program.fit(X, Y, epochs=5, batch_size=8, shuffle=False, verbose=0, callbacks=callbacks)

    for owner, folder in ((lambda model: model, "theirs"), (Program, "ours")):
        with contextlib.suppress(KeyboardInterrupt):
            fit(owner, folder, killed=3)
    found, expected = fit(Program, "ours"), fit(lambda model: model, "theirs")
    assert found.history["loss"] == pytest.approx(expected.history["loss"])
    assert found.epoch == expected.epoch, "the epoch of the backup does not end again"


def test_what_is_no_number_does_not_get_into_a_checkpoint(tmp_path):
    """K6: a run directory is an experiment's."""
    bad = X.copy()
    bad[20] = np.inf
    program = lightly(Program(light(), str(tmp_path / "run")))
    with pytest.raises(NonFiniteError, match=r"the training loss is (nan|inf) at step") as caught:
        program.fit(bad, Y, batch_size=4, shuffle=False, epochs=3, verbose=0)
    assert "are inf, in row 0" in str(caught.value)
    assert "build_inputs" not in str(caught.value)  # no method of the caller's
    assert not list(tmp_path.glob("run/*.manifest.json"))


class Live(keras.callbacks.Callback):
    """Reads the metrics of the model where callbacks can."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def _read(self, where):
        self.seen.append((where, *(float(metric.result()) for metric in self.model.metrics)))

    def on_epoch_begin(self, epoch, logs=None):
        self._read("epoch begins")

    def on_train_batch_end(self, batch, logs=None):
        self._read("batch")

    def on_epoch_end(self, epoch, logs=None):
        self._read("epoch")

    def on_train_end(self, logs=None):
        self._read("end")


@pytest.mark.parametrize("has_directory", cases([False, True], False))
def test_metrics_that_a_callback_reads_are_those_of_keras(tmp_path, has_directory):
    """K8: also at the last batch of an epoch, at its end, and after `fit`."""
    found = []
    for owner in (lambda model: model, lambda model: Program(model, *[str(tmp_path)] * has_directory)):
        program, live = lightly(owner(light())), Live()
        given = {"batch_size": 10, "epochs": 3, "shuffle": False, "verbose": 0, "validation_data": (X[:8], Y[:8])}
        program.fit(X, Y, callbacks=[live], **given)
        found.append((live.seen, {name: float(value) for name, value in program.get_metrics_result().items()}))
    (theirs, their_result), (ours, our_result) = found
    assert [where for where, *_ in ours] == [where for where, *_ in theirs]
    for (_, *mine), (where, *keras_has) in zip(ours[1:], theirs[1:], strict=True):  # Keras has none before a batch
        assert mine == pytest.approx(keras_has, rel=1e-5), where
    assert our_result == pytest.approx(their_result, rel=1e-5)
    assert our_result["accuracy"] > 0
