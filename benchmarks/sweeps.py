"""Trials of a sweep, one after the other, beside commands that train the same models: start to exit."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from benchmarks import harness, processes
from benchmarks.harness import Promise

SWEEP, COMMANDS = "official-trainer sweep", "a command official-trainer train for each"
MEASUREMENT = "10 trials of digits_mlp, 200 steps (s)"
HIDDEN = ("[32]", "[64]", "[128]", "[32,32]", "[64,32]")

ROUNDS = 3
PROMISES = (Promise(MEASUREMENT, SWEEP, COMMANDS, 0.5),)

_WORDS = ("digits_mlp", "--quiet", "trainer.train_steps=200")


def sweep(hidden: tuple[str, ...]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        space = Path(folder, "space.yaml")
        space.write_text(f"space:\n  task.model.mlp.hidden: choice({', '.join(HIDDEN)})\nsampler: RandomSampler\n")
        flags = [f"--space={space}", f"--model_dir={folder}/sweep", f"--trials={len(hidden)}"]
        return {MEASUREMENT: processes.run(["-m", "official_trainer", "sweep", *_WORDS, *flags]).seconds}


def commands(hidden: tuple[str, ...]) -> dict[str, float]:
    seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number, units in enumerate(hidden):
            words = [*_WORDS, f"--model_dir={folder}/{number}", f"task.model.mlp.hidden={units}"]
            seconds += processes.run(["-m", "official_trainer", "train", *words]).seconds
    return {MEASUREMENT: seconds}


def measure(num_rounds: int, quick: bool) -> harness.Values:
    hidden = HIDDEN[:1] if quick else 2 * HIDDEN
    return harness.in_turns(
        {SWEEP: functools.partial(sweep, hidden), COMMANDS: functools.partial(commands, hidden)}, num_rounds
    )
