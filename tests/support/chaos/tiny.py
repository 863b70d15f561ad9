"""A program of two variables whose whole state tells its step."""

import numpy as np
import tensorflow as tf

from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.restore import read_exactly
from official_trainer.checkpoints.store import CheckpointStore, StoreOptions


class Tiny:
    """Stands for a trainer at `step`; `size` is the number of floats it saves."""

    def __init__(self, step=0, size=7):
        self.step = tf.Variable(step, dtype=tf.int64)
        self.weights = tf.Variable(_weights_at(step, size))
        self.checkpoint = tf.train.Checkpoint(step=self.step, weights=self.weights)

    def store(self, directory, **options):
        return CheckpointStore(str(directory), self.checkpoint, **{"max_to_keep": 5, **options})

    def train_to(self, step):
        self.step.assign(step)
        self.weights.assign(_weights_at(step, self.weights.shape[0]))
        return self

    def assert_is_at(self, step):
        assert int(self.step) == step
        assert self.weights.numpy().tobytes() == _weights_at(step, self.weights.shape[0]).tobytes()


def _weights_at(step, size):
    return np.linspace(1, 2, size, dtype="float32") * np.float32(step / 3)


def save(store, step):
    """Saves, and waits for it where saves go on beside training."""
    store.save(step)
    getattr(store, "wait", lambda: None)()


def read_newest(checkpoint, directory):
    """Restores the newest whole checkpoint as evaluators do, which change nothing there; returns its step."""
    directory = str(directory)
    step, _ = manifest.newest_whole(directory)
    return read_exactly(checkpoint, manifest.prefix(directory, step), step).step


def store_of(program, directory, *, is_asynchronous=False):
    """Returns a store that keeps two checkpoints."""
    return program.store(directory, max_to_keep=2, options=StoreOptions(is_asynchronous=is_asynchronous))


def restored(directory):
    """Returns the step that a fresh process restores, None for none, after a look at every bit."""
    program = Tiny(9)
    report = store_of(program, directory).restore()
    if report is None:
        return None
    program.assert_is_at(report.step)
    return report.step
