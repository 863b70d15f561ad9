"""From a command to its first step: cold, and after a SIGKILL under a supervisor.

Owns: a copy of the workspace, kills. Does not own: the tables (`report.py`).

A supervised trainer is killed once it has trained for ten seconds; what counts is the time from the kill to the next
step that it prints.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import processes, rounds
from benchmarks.report import Comparison, Target

COLD, KILLED = "cold start", "after SIGKILL, launch local --supervise"
AT_MOST, LIMIT_SECONDS = 0.25, 1.5

_FIRST = re.compile(r"\bstep \d+/")
_PID = re.compile(r"started .*\(pid (\d+)\)")
_TRAIN_SECONDS = 10.0
_STEPS = 100_000_000
_LONG = (
    "--mode=train",
    f"trainer.train_steps={_STEPS}",
    "trainer.checkpoint_interval=5000",
    "trainer.summary_interval=5000",
)


def compare(num_rounds: int) -> list[Comparison]:
    """Measures each variant once in every round."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in ("experiments", "configs"):
            shutil.copytree(processes.ROOT / name, place / name)
        shutil.copy(processes.ROOT / "train.py", place)
        environ = {**processes.environment(), "PYTHONPATH": str(processes.ROOT)}
        _first_step(place, environ)  # reads all files once
        variants = {
            COLD: lambda: {"seconds": _first_step(place, environ)},
            KILLED: lambda: {"seconds": _restart(place, environ)},
        }
        values = rounds.interleave(variants, num_rounds)["seconds"]
    targets = [
        Target(name=KILLED, against=COLD, at_most=AT_MOST),
        Target(name=KILLED, at_most=LIMIT_SECONDS),
    ]
    title = "digits_mlp, to the first step"
    return [Comparison(title=title, unit="s", digits=2, values=values, baseline=COLD, targets=targets)]


@contextlib.contextmanager
def _running(argv: list[str], place: Path, environ: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Runs a command in a new run directory until the end of the block."""
    with tempfile.TemporaryDirectory() as model_dir:
        argv = [sys.executable, *argv, "--experiment=digits_mlp", f"--model_dir={model_dir}/run"]
        process = subprocess.Popen(
            argv, cwd=place, env=dict(environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            time.sleep(0.5)  # what it had started ends with it


def _line(process: subprocess.Popen[str], pattern: re.Pattern[str]) -> re.Match[str]:
    """Waits for a line of a process.

    Raises:
      RuntimeError: it ended before.
    """
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if found := pattern.search(line):
            return found
    raise RuntimeError(f"no line like {pattern.pattern!r}:\n{''.join(said)[-4000:]}")


def _first_step(place: Path, environ: Mapping[str, str]) -> float:
    start = time.perf_counter()
    with _running(["train.py"], place, environ) as process:
        _line(process, _FIRST)
        return time.perf_counter() - start


def _restart(place: Path, environ: Mapping[str, str]) -> float:
    argv = ["-m", "official_trainer", "launch", "local", "--supervise", "--", *_LONG]
    with _running(argv, place, environ) as process:
        pid = int(_line(process, _PID).group(1))
        _line(process, _FIRST)
        end = time.monotonic() + _TRAIN_SECONDS
        while time.monotonic() < end:
            _line(process, re.compile("saved"))
        start = time.perf_counter()
        os.kill(pid, 9)
        _line(process, re.compile("restart 1"))
        _line(process, _FIRST)
        return time.perf_counter() - start
