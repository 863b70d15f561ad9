"""The job of `goodput.py`: its model, its data, and its note of each step; and the job as a script with `fit`.

Owns: what all sides share. Does not own: the job as an experiment of ours (`goodput_ours.py`) and of Model Garden
(`goodput_garden.py`), killing it (`goodput.py`). Nothing of `official_trainer` is used here.

A step notes which examples it trains on and waits, in place of computing on an accelerator: the wait is the same for
all sides, and costs no time of any processor.

The script is `python -m benchmarks.goodput_job MODEL_DIR`: started again, it goes on with `BackupAndRestore`.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from benchmarks.goodput_notes import BATCH, EXAMPLES, NOTE

FEATURES = 256
SAVE_STEPS = 50
SUMMARY_STEPS = 500
LAST_STEP = 10_000_000
"""No run gets there."""
NOTES, WAIT = "GOODPUT_NOTES", "GOODPUT_WAIT"
"""The variables that hold the file of the notes, and the seconds that a step waits."""


def build_model() -> Any:
    layers = tf_keras.layers
    pixels = tf_keras.Input([FEATURES])
    hidden = layers.Dense(512, activation="relu")(layers.Dense(512, activation="relu")(pixels))
    return tf_keras.Model(pixels, layers.Dense(10)(layers.Dropout(0.1)(hidden)))


def examples() -> tuple[Any, Any, Any]:
    """Returns float32 features, int32 labels, and the number of each example."""
    chance = np.random.default_rng(0)
    labels = chance.integers(0, 10, EXAMPLES).astype(np.int32)
    features = chance.normal(labels[:, None], 4.0, [EXAMPLES, FEATURES]).astype(np.float32)
    return features, labels, np.arange(EXAMPLES, dtype=np.int32)


def pipeline() -> tf.data.Dataset:
    """What everybody writes for data in memory."""
    dataset = tf.data.Dataset.from_tensor_slices(examples()).cache().shuffle(EXAMPLES).repeat()
    return dataset.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def note(step: Any, ids: Any) -> tf.Operation:
    """Notes a step in the file of the notes, and waits."""
    return tf.numpy_function(_note, [step, ids], [], name="note")


def _note(step: Any, ids: Any) -> None:
    descriptor, seconds = _opened()
    if descriptor is not None:
        os.write(descriptor, np.array([(step, time.monotonic(), ids)], NOTE).tobytes())
    if seconds:
        time.sleep(seconds)


@functools.cache
def _opened() -> tuple[int | None, float]:
    path = os.environ.get(NOTES)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if path else None, float(os.environ.get(WAIT, 0))


class NotingModel(tf_keras.Model):
    """Notes each step of `fit`."""

    def train_step(self, data: Any) -> Any:
        features, labels, ids = data
        with tf.control_dependencies([note(self.optimizer.iterations, ids)]):
            return super().train_step((tf.identity(features), labels))


def fit(model_dir: str) -> None:
    """Trains with `fit`, in epochs of all examples."""
    tf_keras.utils.set_random_seed(1)
    inner = build_model()
    model = NotingModel(inner.inputs, inner.outputs)
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf_keras.optimizers.legacy.Adam(1e-4), loss, metrics=["accuracy"])
    backup = tf_keras.callbacks.BackupAndRestore(f"{model_dir}/backup", save_freq=SAVE_STEPS)
    steps = EXAMPLES // BATCH
    model.fit(pipeline(), steps_per_epoch=steps, epochs=LAST_STEP // steps, callbacks=[backup], verbose=0)


if __name__ == "__main__":
    fit(sys.argv[1])
