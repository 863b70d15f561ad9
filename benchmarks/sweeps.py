"""Trials of a sweep beside commands of the same trainings: from the start of one to its first step.

Owns: the sweep, whose trials differ in structure, and the commands. Does not own: what a step takes (`steps.py`).
"""

from __future__ import annotations

import functools
import itertools
import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import processes, rounds
from benchmarks.report import Comparison, Target

NUM_TRIALS = 20
SWEEP, COMMANDS = "trials of a sweep", "commands"
STRUCTURES = ("[32]", "[64]", "[128]", "[32,32]", "[64,32]")
_WORDS = ("digits_mlp", "--quiet", "trainer.train_steps=200")


def sweep(num_trials: int) -> dict[str, float]:
    """Runs a sweep."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "space.yaml")
        path.write_text(f"space:\n  task.model.mlp.hidden: choice({', '.join(STRUCTURES)})\nsampler: RandomSampler\n")
        words = [*_WORDS, f"--space={path}", f"--model_dir={folder}/sweep", f"--trials={num_trials}"]
        processes.run([sys.executable, "-m", "official_trainer", "sweep", *words])
        return _first_step([*Path(folder, "sweep").glob("trials/*/run/run.json")], num_trials)


def commands(num_trials: int) -> dict[str, float]:
    """Runs commands, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        for number, hidden in zip(range(num_trials), itertools.cycle(STRUCTURES), strict=False):
            words = [*_WORDS, f"--model_dir={folder}/{number}", f"task.model.mlp.hidden={hidden}"]
            processes.run([sys.executable, "-m", "official_trainer", "train", *words])
        return _first_step([*Path(folder).glob("*/run.json")], num_trials)


def _first_step(records: list[Path], count: int) -> dict[str, float]:
    """Returns the median of what passed from the start of a process to its first step."""
    if len(records) != count:
        raise RuntimeError(f"{len(records)} runs have a record, expected {count}")
    spent = [json.loads(path.read_text())["time"]["attempts"][0]["seconds"] for path in records]
    return {"first": statistics.median(float(each["start"] + each["tracing"]) for each in spent)}


def compare(num_rounds: int, num_trials: int = NUM_TRIALS) -> list[Comparison]:
    """Runs the sweep and the commands in each round."""
    variants = {SWEEP: functools.partial(sweep, num_trials), COMMANDS: functools.partial(commands, num_trials)}
    results = rounds.interleave(variants, num_rounds)
    return [
        Comparison(
            title="from the start of a trial to its first step (median of the trials)",
            unit="s",
            digits=2,
            values=results["first"],
            baseline=COMMANDS,
            targets=[Target(name=SWEEP, against=COMMANDS, at_most=0.25)],
        )
    ]
