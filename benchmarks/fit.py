"""`Program.fit` beside `fit` of tf_keras and of Keras 3: the same small model on the same arrays, shuffled.

Steps per execution are Keras's; ours runs windows of many steps whatever it is, unless a callback looks at batches.
"""

from __future__ import annotations

import functools
import gc
import statistics
import time
from typing import Any

import keras
import tf_keras

from benchmarks import harness, steps
from benchmarks.harness import Promise
from official_trainer import Program

COPIES = 10  # of the digits, so that an epoch has some hundred steps
WARM_EPOCHS, TIMED_EPOCHS = 2, 5

OURS, TF_KERAS, KERAS_3 = "Program", "tf_keras", "Keras 3"
ONE, MANY = "fit, steps_per_execution=1 (µs/step)", "fit, steps_per_execution=100 (µs/step)"

ROUNDS = 7
PROMISES = (
    Promise(ONE, OURS, TF_KERAS, 0.5),
    Promise(ONE, OURS, KERAS_3, 0.7),
    Promise(MANY, OURS, TF_KERAS, 0.8),
    Promise(MANY, OURS, KERAS_3, 0.8),
)


def microseconds(side: str, quick: bool) -> dict[str, float]:
    return {name: _fitted(side, count, quick) for name, count in {ONE: 1, MANY: 100}.items()}


def _fitted(side: str, steps_per_execution: int, quick: bool) -> float:
    """Fits a new model, and returns what a step of the median epoch took."""
    kerases: dict[str, Any] = {OURS: tf_keras, TF_KERAS: tf_keras, KERAS_3: keras}
    used = kerases[side]
    gc.collect()
    x, y = (array.repeat(1 if quick else COPIES, 0) for array in steps.digits())
    model = used.Sequential([used.Input([64]), used.layers.Dense(64, activation="relu"), used.layers.Dense(10)])
    fitted = Program(model) if side == OURS else model
    fitted.compile(
        used.optimizers.Adam(1e-3),
        used.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )
    ends: list[float] = []
    clock = used.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter()))
    fitted.fit(x, y, batch_size=steps.BATCH, epochs=WARM_EPOCHS + TIMED_EPOCHS, verbose=0, callbacks=[clock])
    epochs = [end - start for start, end in zip(ends[WARM_EPOCHS - 1 :], ends[WARM_EPOCHS:], strict=False)]
    return statistics.median(epochs) / -(-len(x) // steps.BATCH) * 1e6


def measure(num_rounds: int, quick: bool) -> harness.Values:
    sides = {side: functools.partial(microseconds, side, quick) for side in (OURS, TF_KERAS, KERAS_3)}
    return harness.in_turns(sides, num_rounds)
