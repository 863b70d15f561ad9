"""`fit` on arrays in memory: ours beside `tf_keras` and Keras 3, microseconds per step of a small model.

Owns: the variants, each in a process of its own, because Keras 2 and 3 exclude each other. All train the same model on
the same arrays, shuffled, with one callback that looks at epochs and notes the time; what counts is the median epoch
after some that trace and warm up. Does not own: the tables (`report.py`).

Run as a process of its own (`python -m benchmarks.fit SIDE STEPS_PER_EXECUTION FILE`), which imports TensorFlow.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import processes, rounds
from benchmarks.report import Comparison, Target

BATCH = 64
COPIES = 20  # of the 1797 digits, so that an epoch has 562 steps
WARM_EPOCHS = 2
TIMED_EPOCHS = 5

SIDES = {"ours": "Program", "tf_keras": "tf_keras", "keras": "Keras 3"}


def name(side: str, steps_per_execution: int) -> str:
    """Returns a row of the table."""
    return f"{SIDES[side]}, steps_per_execution={steps_per_execution}"


TARGETS = (
    Target(name=name("ours", 1), against=name("tf_keras", 1), at_most=0.5),
    Target(name=name("ours", 1), against=name("keras", 1), at_most=0.7),
    Target(name=name("ours", 100), against=name("tf_keras", 100), at_most=0.8),
    Target(name=name("ours", 100), against=name("keras", 100), at_most=0.8),
)


def compare(num_rounds: int) -> list[Comparison]:
    """Measures every variant in a process of its own in each round."""
    variants = {name(side, count): functools.partial(measure, side, count) for count in (1, 100) for side in SIDES}
    values = rounds.interleave(variants, num_rounds)["microseconds"]
    baseline = name("tf_keras", 1)
    return [Comparison(title="fit", unit="µs/step", values=values, baseline=baseline, targets=TARGETS)]


def measure(side: str, steps_per_execution: int) -> dict[str, float]:
    """Trains in a child and returns what a step took."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "seconds.json")
        processes.run([sys.executable, "-m", "benchmarks.fit", side, str(steps_per_execution), str(results)])
        seconds = json.loads(results.read_text())
    return {"microseconds": statistics.median(seconds) * 1e6}


def _train(side: str, steps_per_execution: int) -> Sequence[float]:
    """Returns seconds per step of each timed epoch."""
    os.environ["TF_USE_LEGACY_KERAS"] = "0" if side == "keras" else "1"
    keras: Any = __import__("keras" if side == "keras" else "tf_keras")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    x = (pixels / 16).astype("float32").repeat(COPIES, 0)
    y = labels.astype("int32").repeat(COPIES, 0)
    model = keras.Sequential([keras.Input([64]), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    owner = _program(model) if side == "ours" else model
    owner.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )
    ends: list[float] = []
    clock = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter()))
    owner.fit(x, y, batch_size=BATCH, epochs=WARM_EPOCHS + TIMED_EPOCHS, verbose=0, callbacks=[clock])
    steps = -(-len(x) // BATCH)
    return [(end - start) / steps for start, end in itertools.pairwise(ends[WARM_EPOCHS - 1 :])]


def _program(model: Any) -> Any:
    from official_trainer.program import Program

    return Program(model)


if __name__ == "__main__":
    side, steps_per_execution, results = sys.argv[1:]
    Path(results).write_text(json.dumps(_train(side, int(steps_per_execution))))
