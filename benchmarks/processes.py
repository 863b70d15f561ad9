"""Children: how long a process takes, how much memory it needs at most, and what it says.

Owns: starting and measuring them. Does not own: which commands are compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
"""Everything is compared on the CPU, without TensorFlow's banner."""


def environment() -> dict[str, str]:
    """Returns this process's environment with `ENVIRONMENT` set; children keep the bytecode of modules, as usual."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | ENVIRONMENT


@dataclasses.dataclass(frozen=True)
class Usage:
    """What one process took, from its start to its exit; `mark_seconds` is when it said the mark, if there was one."""

    wall_seconds: float
    peak_bytes: int
    mark_seconds: float | None = None


def run(argv: Sequence[str], *, exit_code: int = 0, folder: Path = ROOT, mark: str | None = None) -> Usage:
    """Runs a command in the repository's root, or in another folder with this package, and returns what it took.

    Args:
      argv: the command.
      exit_code: with which it has to end.
      folder: where it runs.
      mark: a regular expression; when the first line with it is said, unbuffered, is measured too.

    The peak is that of the child alone, if this process is small: Linux counts the memory of whoever started a child
    towards its peak. So nothing here may import TensorFlow.

    Raises:
      RuntimeError: the command ended with another exit code, or without the mark; shows the end of what it said.
    """
    with tempfile.TemporaryFile("w+") as said:
        start = time.perf_counter()
        environ = environment() if folder == ROOT else {**environment(), "PYTHONPATH": str(ROOT)}
        environ |= {} if mark is None else {"PYTHONUNBUFFERED": "1"}
        stdout = said if mark is None else subprocess.PIPE
        child = subprocess.Popen(argv, cwd=folder, env=environ, stdout=stdout, stderr=subprocess.STDOUT, text=True)
        marked = None if mark is None else _copy(child.stdout, said, mark)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != exit_code or (mark is not None and marked is None):
            said.seek(0)
            without = "" if mark is None or marked is not None else f" without {mark!r}"
            raise RuntimeError(f"{' '.join(argv)} ended with {child.returncode}{without}:\n{said.read()[-4000:]}")
    return Usage(seconds, usage.ru_maxrss * 1024, None if marked is None else marked - start)


def _copy(lines: Any, said: Any, mark: str) -> float | None:
    """Copies what a child says until it ends; returns the time of the first line with the mark."""
    marked = None
    with lines:
        for line in lines:
            if marked is None and re.search(mark, line):
                marked = time.perf_counter()
            said.write(line)
    return marked


def results_of(module: str, num_rounds: int, environ: Mapping[str, str] | None = None) -> Any:
    """Returns what `write_results` writes in a child `python -m module`, which imports TensorFlow in our place.

    Its environment is `environment()`, or another one.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        argv = [sys.executable, "-m", module, str(results), f"--rounds={num_rounds}"]
        subprocess.run(argv, cwd=ROOT, env=environ or environment(), check=True)
        return json.loads(results.read_text())


def write_results(measure_all: Callable[[int], Any]) -> None:
    """The command of such a child: writes what `measure_all(num_rounds)` returns to the file it is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path, help="JSON file to write")
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args()
    arguments.results.write_text(json.dumps(measure_all(arguments.rounds)))
