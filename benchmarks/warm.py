"""From a command to its first step: cold, by the warm server after an edit, and after a SIGKILL under a supervisor.

Owns: a copy of the workspace, the server of this measurement, kills. Does not own: the tables (`report.py`).

The second start is that of an edited file: a line is added to `experiments/digits.py` before each. The server has then
run the experiment once, and so has imported what it imports. A supervised trainer is killed once it has trained for ten
seconds; what counts is the time from the kill to the next step that it prints.
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

COLD, WARM = "cold start", "second start of an edited file, warm server"
KILLED = "after SIGKILL, launch local --supervise"
AT_MOST, LIMIT_SECONDS = 0.25, 1.5

_FIRST = re.compile(r"\bstep \d+/")
_PID = re.compile(r"started .*\(pid (\d+)\)")
_SETTLE_SECONDS, _TRAIN_SECONDS = 8.0, 10.0
_STEPS = 100_000_000
_LONG = (
    "--mode=train",
    f"trainer.train_steps={_STEPS}",
    "trainer.checkpoint_interval=5000",
    "trainer.summary_interval=5000",
)


def compare(num_rounds: int) -> list[Comparison]:
    """Measures each variant once in every round, on one server that was started before."""
    with tempfile.TemporaryDirectory() as folder, _server(Path(folder)) as environ:
        place = Path(folder, "workspace")
        cold = {**environ, "XDG_RUNTIME_DIR": folder}
        _first_step(place, cold)  # reads all files once
        _first_step(place, environ)
        time.sleep(_SETTLE_SECONDS)  # the server imports what the experiment imports
        variants = {
            COLD: lambda: {"seconds": _first_step(place, cold)},
            WARM: lambda: {"seconds": _first_step(_edited(place), environ)},
            KILLED: lambda: {"seconds": _restart(place, cold)},
        }
        values = rounds.interleave(variants, num_rounds)["seconds"]
    targets = [
        target
        for name in (WARM, KILLED)
        for target in (Target(name=name, against=COLD, at_most=AT_MOST), Target(name=name, at_most=LIMIT_SECONDS))
    ]
    title = "digits_mlp, to the first step"
    return [Comparison(title=title, unit="s", digits=2, values=values, baseline=COLD, targets=targets)]


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[Mapping[str, str]]:
    """Yields the variables with which commands find a warm server of their own."""
    for name in ("experiments", "configs"):
        shutil.copytree(processes.ROOT / name, folder / "workspace" / name)
    shutil.copy(processes.ROOT / "train.py", folder / "workspace")
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    environ = {**processes.environment(), "PYTHONPATH": str(processes.ROOT), "XDG_RUNTIME_DIR": str(runtime)}
    warm = [sys.executable, "-m", "official_trainer", "warm"]
    subprocess.run(warm, cwd=folder / "workspace", env=environ, check=True, stdout=subprocess.DEVNULL)
    try:
        yield environ
    finally:
        subprocess.run([*warm, "--stop"], cwd=folder / "workspace", env=environ, check=True, stdout=subprocess.DEVNULL)


def _edited(place: Path) -> Path:
    with open(place / "experiments" / "digits.py", "a") as file:
        file.write("# one more line\n")
    return place


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
      RuntimeError: it ended before, or started cold although there is a server.
    """
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if "a cold start" in line:
            break
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
