"""Trials of a sweep beside commands of the same trainings: seconds for all of them, and from a start to the first step.

Owns: the sweeps, whose trials differ in structure or in numbers only, and the commands, of the commit `BEFORE` where
this clone has it. Does not own: other tuners (`tuners.py`), kills (`sweep_kills.py`), early stopping (`halving.py`).
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import processes, rounds
from benchmarks.report import Comparison, Target

NUM_TRIALS = 20
BEFORE = "d669fb7"
"""The last commit whose trainings, and their starts, are not yet those of sweeps."""

RATE = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"
STRUCTURES = ("[32]", "[64]", "[128]", "[32,32]", "[64,32]")
SPACES = {
    "a sweep, trials differ in structure": f"task.model.mlp.hidden: choice({', '.join(STRUCTURES)})",
    "a sweep, trials differ in numbers only": f"{RATE}: log(1e-4, 1e-1)\n  task.model.mlp.dropout: float(0, 0.5)",
}
STRUCTURE, NUMBERS = SPACES


def space_file(folder: str, space: str, more: str = "") -> str:
    """Writes the file of a sweep; returns its path."""
    path = Path(folder, "space.yaml")
    path.write_text(f"space:\n  {space}\nsampler: RandomSampler\n{more}")
    return str(path)


def sweep(space: str, num_trials: int) -> dict[str, float]:
    """Runs a sweep, start to exit."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"--space={space_file(folder, space)}", f"--model_dir={folder}/sweep", f"--trials={num_trials}"]
        argv = [sys.executable, "-m", "official_trainer", "sweep", "digits_mlp", *words, "--quiet"]
        usage = processes.run(argv)
        firsts = [_first_step_seconds(path) for path in sorted(Path(folder, "sweep").glob("trials/*/run/run.json"))]
    if len(firsts) != num_trials:
        raise RuntimeError(f"{len(firsts)} trials have a record, expected {num_trials}")
    return {
        "seconds": usage.wall_seconds,
        "first": statistics.median(firsts),
        "mebibytes": usage.peak_bytes / 2**20,
    }


def commands(root: Path, num_trials: int) -> dict[str, float]:
    """Runs commands, one after the other, of the code in `root`."""
    firsts, began = [], time.perf_counter()
    for hidden in itertools.islice(itertools.cycle(STRUCTURES), num_trials):
        with tempfile.TemporaryDirectory() as folder:
            words = ["digits_mlp", f"--model_dir={folder}/run", "--quiet", f"task.model.mlp.hidden={hidden}"]
            environ = processes.environment() | {"PYTHONPATH": str(root)}
            argv = [sys.executable, "-m", "official_trainer", "train", *words]
            subprocess.run(argv, cwd=root, env=environ, check=True, capture_output=True)
            firsts.append(_first_step_seconds(Path(folder, "run", "run.json")))
    return {"seconds": time.perf_counter() - began, "first": statistics.median(firsts)}


def _first_step_seconds(record: Path) -> float:
    """Returns what passed from the start of the process to its first step."""
    spent = json.loads(record.read_text())["time"]["attempts"][0]["seconds"]
    return float(spent["start"] + spent["tracing"])


@contextlib.contextmanager
def before() -> Iterator[tuple[str, Path]]:
    """Yields how the commands are called, and the code that they run."""
    packed = subprocess.run(["git", "archive", BEFORE], cwd=processes.ROOT, capture_output=True, check=False)
    if packed.returncode:  # of a clone without history
        yield f"{NUM_TRIALS} commands", processes.ROOT
        return
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(folder, filter="data")
        yield f"{NUM_TRIALS} commands, of {BEFORE}", Path(os.path.realpath(folder))


def compare(num_rounds: int, num_trials: int = NUM_TRIALS) -> list[Comparison]:
    """Runs both sweeps and the commands in each round."""
    with before() as (name, root):
        variants = {each: functools.partial(sweep, space, num_trials) for each, space in SPACES.items()}
        variants[name] = functools.partial(commands, root, num_trials)
        results = rounds.interleave(variants, num_rounds)
    return tables(results, name)


def tables(results: rounds.Results, name: str) -> list[Comparison]:
    """Returns the comparisons with the commands called `name`."""
    limits: Sequence[tuple[str, float]] = ((STRUCTURE, 0.35), (NUMBERS, 0.15))
    return [
        Comparison(
            title=f"{NUM_TRIALS} trials of 2,000 steps of digits_mlp, in sequence",
            unit="s",
            digits=1,
            values=results["seconds"],
            baseline=name,
            targets=[Target(name=each, against=name, at_most=limit) for each, limit in limits],
        ),
        Comparison(
            title="from the start of a trial to its first step (median of the trials)",
            unit="s",
            digits=2,
            values=results["first"],
            baseline=name,
            targets=[Target(name=each, against=name, at_most=0.25) for each in SPACES],
        ),
    ]
