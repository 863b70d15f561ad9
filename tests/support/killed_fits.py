"""Calls of `Program.fit` that are killed in a process of their own, and called again, beside one that never was."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np

from official_trainer.lazy import keras

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.support.preload"])


def killers(killed_at):
    """Returns callbacks that kill the process after so many batches; none for None."""

    class Killed(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.seen = getattr(self, "seen", 0) + 1
            if self.seen == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)

    return [Killed()] if killed_at else []


def keep(model_dir, result, model):
    """Writes down what has come of a call."""
    Path(model_dir, "result.json").write_text(json.dumps(result))
    np.savez(Path(model_dir, "weights.npz"), *model.get_weights())


def check_goes_on(fit, folder, *arguments, killed_at):
    """Has `fit(model_dir, *arguments, killed_at)` killed and called again: all is as if it never was, bit for bit."""
    broken, whole = str(folder / "broken"), str(folder / "whole")
    assert _in_a_child(fit, broken, *arguments, killed_at) == -signal.SIGKILL
    assert _in_a_child(fit, broken, *arguments, None) == 0
    assert _in_a_child(fit, whole, *arguments, None) == 0
    assert Path(broken, "result.json").read_text() == Path(whole, "result.json").read_text()
    found, expected = (np.load(Path(place, "weights.npz")) for place in (broken, whole))
    assert all((found[name] == expected[name]).all() for name in expected.files)


def _in_a_child(fit, *arguments):
    child = _context.Process(target=fit, args=arguments)
    child.start()
    child.join()
    return child.exitcode
