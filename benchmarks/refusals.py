"""Hostile configurations: wall seconds of a command that refuses one, start to exit."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from benchmarks import processes
from benchmarks.report import Comparison, Target
from benchmarks.rounds import interleave

NOTHING = "an unknown field"


def _several(first: str, each: str, count: int) -> str:
    """Returns definitions of which each repeats the one before."""
    return "\n".join([first, *(each.format(at=number, before=number - 1) for number in range(1, count + 1)), ""])


FILES = {
    NOTHING: "trainer: {train_stepz: 100}\n",
    "aliases that grow to 2^40 values": _several("x-0: &a0 [1]", "x-{at}: &a{at} [*a{before}, *a{before}]", 40),
    "5,000 merge keys of merge keys": _several("x-0: &a0 {k: 1}", "x-{at}: &a{at} {{<<: *a{before}, k{at}: 1}}", 5000),
    "200,000 brackets": "task: {name: " + "[" * 200_000,
    "200,000 dashes": "- " * 200_000,
    "a file that names itself a thousand times": f"base: [{'refused.yaml, ' * 1000}]\n",
    "5,000 unknown fields": "".join(f"a{number}: 1\n" for number in range(5000)),
    "a value of 30 MB": "task: {name: " + "a" * 30_000_000 + "}\n",
    "a field 20,000 times": "trainer: {}\n" * 20_000,
}
"""What the file holds that `show` is told to read; each is refused with exit code 2."""

LIMIT_SECONDS = 1.0


def compare(rounds: int) -> list[Comparison]:
    """Measures each file once in every round, after one round that warms the file cache."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "refused.yaml")
        command = [sys.executable, "-m", "official_trainer", "show", "digits_cnn", f"--config_file={path}"]

        def measure(text: str) -> dict[str, float]:
            path.write_text(text)
            return {"seconds": processes.run(command, exit_code=2).wall_seconds}

        variants = {name: (lambda text=text: measure(text)) for name, text in FILES.items()}
        interleave(variants, rounds=1)
        return [
            Comparison(
                title="a command that refuses",
                unit="s",
                digits=2,
                baseline=NOTHING,
                values=interleave(variants, rounds)["seconds"],
                targets=[Target(name=name, at_most=LIMIT_SECONDS) for name in FILES],
            )
        ]
