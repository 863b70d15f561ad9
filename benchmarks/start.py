"""A cold start: a short job, `digits_mlp`, beside a script written by hand, from the start of the process.

Owns: the drivers compared, and what counts as the first step: the line with the numbers of the first 100 steps, which
take some 10 ms of computing. Does not own: running a driver (`job.py`), the script (`hand_written.py`).
"""

from __future__ import annotations

import functools

from benchmarks import job, rounds
from benchmarks.job import GARDEN, OURS
from benchmarks.report import Comparison, Target

HAND = "a script written by hand"

DRIVERS = {
    OURS: ["train.py", "--experiment=digits_mlp"],
    HAND: ["-m", "benchmarks.hand_written"],
    GARDEN: ["-m", "benchmarks.garden_train", "--experiment=digits_mlp", "--mode=train_and_eval"],
}

LAST_STEP = 2000

FIRST_NUMBERS = r"step\W+100\b"


def compare(num_rounds: int) -> list[Comparison]:
    """Measures each driver once in every round, after one round that warms the file cache."""
    variants = {name: functools.partial(job.run, argv, LAST_STEP, mark=FIRST_NUMBERS) for name, argv in DRIVERS.items()}
    rounds.interleave(variants, 1)
    results = rounds.interleave(variants, num_rounds)
    return [
        Comparison(
            title="digits_mlp, 2,000 steps, start to exit",
            unit="s",
            digits=1,
            values=results["seconds"],
            baseline=HAND,
            targets=[Target(name=OURS, against=HAND, at_most=0.8), Target(name=OURS, against=GARDEN, at_most=0.65)],
        ),
        Comparison(
            title="digits_mlp, start to the numbers of the first steps",
            unit="s",
            digits=1,
            values=results["seconds to mark"],
            baseline=HAND,
            targets=[Target(name=OURS, against=HAND, at_most=0.8), Target(name=OURS, against=GARDEN, at_most=0.6)],
        ),
    ]
