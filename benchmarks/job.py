"""The whole digits job, process start to exit: train, evaluate, checkpoint. Wall time and peak memory.

Owns: the drivers compared, and running one. Both train `digits_cnn` for the same steps on the same batches, write
summaries, evaluate and save at the same intervals and keep the best checkpoint; ours also exports a SavedModel. Does
not own: the experiments (`experiments/digits.py`, `garden.py`), a job beside a script written by hand (`start.py`).
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import processes, rounds
from benchmarks.report import Comparison, Target

OURS = "python train.py"
GARDEN = "Model Garden's driver"
GARDEN_CORE = "Model Garden's driver, only its core imported"

_GARDEN_ARGV = ["-m", "benchmarks.garden_train", "--experiment=digits_cnn", "--mode=train_and_eval"]

DRIVERS: dict[str, list[str]] = {
    OURS: ["train.py", "--experiment=digits_cnn"],
    GARDEN: _GARDEN_ARGV,
    GARDEN_CORE: [*_GARDEN_ARGV, "--noregistry_imports"],
}

LAST_STEP = 1200


def run(argv: Sequence[str], last_step: int, *, mark: str | None = None) -> dict[str, float]:
    """Runs one driver in a fresh directory and returns what it took.

    Args:
      argv: the driver, which takes `--model_dir`.
      last_step: of the job.
      mark: see `processes.run`.

    Raises:
      RuntimeError: it failed, or ended without a checkpoint of the last step.
    """
    with tempfile.TemporaryDirectory() as model_dir:
        usage = processes.run([sys.executable, *argv, f"--model_dir={model_dir}"], mark=mark)
        if not Path(model_dir, f"ckpt-{last_step}.index").exists():
            raise RuntimeError(f"{' '.join(argv)} left no checkpoint of step {last_step}")
    marked = {} if usage.mark_seconds is None else {"seconds to mark": usage.mark_seconds}
    return {"seconds": usage.wall_seconds, "mebibytes": usage.peak_bytes / 2**20, **marked}


def compare(num_rounds: int) -> list[Comparison]:
    """Measures each driver once in every round, after one round that warms the file cache."""
    variants = {name: functools.partial(run, argv, LAST_STEP) for name, argv in DRIVERS.items()}
    rounds.interleave(variants, 1)
    results = rounds.interleave(variants, num_rounds)
    return [
        Comparison(
            title="digits_cnn, start to exit",
            unit="s",
            digits=1,
            values=results["seconds"],
            baseline=GARDEN,
            targets=[Target(name=OURS, against=GARDEN, at_most=0.8)],
        ),
        Comparison(
            title="digits_cnn, peak memory",
            unit="MiB",
            values=results["mebibytes"],
            baseline=GARDEN,
            targets=[Target(name=OURS, against=GARDEN, at_most=1.0)],
        ),
    ]
