"""Steps that are computed again after SIGKILLs: of a sweep, and of Optuna with `fit`.

Owns: kills at the same places of both, and counting steps by what each prints or notes for every hundred of them. Both
are started again until all trials are complete. Does not own: the programs (`sweeps.py`, `tuners.py`).
"""

from __future__ import annotations

import functools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import processes, rounds, sweeps
from benchmarks.report import Comparison, Target

OURS, OPTUNA = "a sweep", "Optuna and tf_keras fit"
NUM_TRIALS, NUM_KILLS = 10, 20
EVERY, STEPS = 100, 2000
_LINE = re.compile(r"^step \d+00/2000 ", re.MULTILINE)  # without that of the first step of each process


def compare(num_rounds: int, num_kills: int = NUM_KILLS, num_trials: int = NUM_TRIALS) -> list[Comparison]:
    """Kills both, as often and at the same places, in each round."""
    variants = {
        OURS: functools.partial(_killed, _sweep, _steps_of_sweep, num_kills, num_trials),
        OPTUNA: functools.partial(_killed, _optuna, _steps_of_optuna, num_kills, num_trials),
    }
    values = rounds.interleave(variants, num_rounds)["steps"]
    return [
        Comparison(
            title=f"steps computed again after {num_kills} SIGKILLs",
            unit="steps",
            values=values,
            baseline=OPTUNA,
            targets=[Target(name=OURS, against=OPTUNA, at_most=0.1)],
        )
    ]


def _sweep(folder: str, num_trials: int) -> list[str]:
    space = sweeps.space_file(folder, sweeps.SPACES[sweeps.NUMBERS])
    words = [f"--space={space}", f"--model_dir={folder}/sweep", f"--trials={num_trials}"]
    words.append("trainer.checkpoint_interval=100")
    return [sys.executable, "-m", "official_trainer", "sweep", "digits_mlp", *words]


def _steps_of_sweep(folder: str) -> int:
    paths = Path(folder, "sweep").glob("trials/*/output.log")
    return EVERY * sum(len(_LINE.findall(path.read_text(errors="replace"))) for path in paths)


def _optuna(folder: str, num_trials: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.tuners", "optuna", str(num_trials), folder]


def _steps_of_optuna(folder: str) -> int:
    path = Path(folder, "steps")
    return EVERY * len(path.read_text().splitlines()) if path.exists() else 0


def _killed(
    command: Callable[[str, int], Sequence[str]],
    steps_of: Callable[[str], int],
    num_kills: int,
    num_trials: int,
) -> dict[str, float]:
    """Kills a program at random places, then lets it end; returns how many steps were computed more than once."""
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        argv = command(folder, num_trials)
        for _ in range(num_kills):
            _kill_after(argv, chance.randrange(1, STEPS // EVERY) * EVERY, functools.partial(steps_of, folder))
        processes.run(argv)
        return {"steps": float(steps_of(folder) - num_trials * STEPS)}


def _kill_after(argv: Sequence[str], num_steps: int, steps: Callable[[], int]) -> None:
    """Kills a program, and all that it has started, once it has made so many steps; or lets it end before."""
    before = steps()
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    process = subprocess.Popen(argv, cwd=processes.ROOT, env=processes.environment(), **options)
    while steps() < before + num_steps and process.poll() is None:
        time.sleep(0.02)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
