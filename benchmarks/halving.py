"""Successive halving beside a grid: the share of the grid's steps after which it has a trial as good as the best.

Owns: the grid, trained once by a sweep, and the halving of the same trials in ten orders. A trial is a function of its
values, bit by bit, so one that is pruned has the evaluations of the grid's trial up to there, and is not trained again.
Does not own: the pruner, which is Optuna's, as in a sweep with `pruner: SuccessiveHalvingPruner`.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import processes, sweeps
from benchmarks.report import Comparison, Target

SPACE = (
    f"{sweeps.RATE}: choice(1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)\n"
    "  task.model.mlp.dropout: choice(0, 0.1, 0.2, 0.3, 0.5)\n"
    "  task.model.mlp.hidden: choice([32], [64])"
)
NUM_TRIALS, NUM_SEEDS = 60, 10
HALVING, GRID = "successive halving", "the grid"
Reports = Sequence[tuple[int, float]]


def compare(num_rounds: int) -> list[Comparison]:
    """Trains the grid once, and halves it in as many orders as there are rounds."""
    grid = trained()
    shares = [share(grid, seed) for seed in range(num_rounds)]
    return [
        Comparison(
            title=f"steps up to the best metric of a grid of {len(grid)}",
            unit="of the grid's",
            digits=2,
            values={HALVING: shares, GRID: [1.0] * len(shares)},
            targets=[Target(name=HALVING, against=GRID, at_most=1 / 3)],
        )
    ]


def trained() -> list[Reports]:
    """Returns the evaluations, (step, accuracy), of each trial of the grid."""
    with tempfile.TemporaryDirectory() as folder:
        space = Path(folder, "space.yaml")
        space.write_text(f"space:\n  {SPACE}\nsampler: GridSampler\n")
        words = [f"--space={space}", f"--model_dir={folder}/sweep", f"--trials={NUM_TRIALS}", "--quiet"]
        words.append("trainer.export.at_end=false")
        processes.run([sys.executable, "-m", "official_trainer", "sweep", "digits_mlp", *words])
        paths = sorted(Path(folder, "sweep").glob("trials/*/trial.json"), key=lambda path: int(path.parent.name))
        records: list[Mapping[str, Any]] = [json.loads(path.read_text()) for path in paths]
    return [[(step, value) for step, value in each["reports"]] for each in records if each["state"] == "complete"]


def share(grid: Sequence[Reports], seed: int) -> float:
    """Returns the share of the grid's steps, 1 if halving does not find the best."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    best = max(value for reports in grid for _, value in reports)
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=200))
    order = random.Random(seed).sample(range(len(grid)), len(grid))
    total, used = sum(reports[-1][0] for reports in grid), 0
    for number in order:
        trial, last = study.ask(), 0
        for step, value in grid[number]:
            used, last = used + step - last, step
            if value >= best:
                return used / total
            trial.report(value, step)
            if trial.should_prune():
                break
        study.tell(trial, max(value for step, value in grid[number] if step <= last))
    return 1.0
