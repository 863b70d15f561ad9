"""Commands that answer without TensorFlow beside a Python that only imports what they print and read with."""

from __future__ import annotations

import sys

from benchmarks import processes
from benchmarks.report import Comparison, Target
from benchmarks.rounds import interleave

BARE = "a Python that imports yaml and rich.console"
COMMANDS = {
    "list": (["list"], 0, 2.5),
    "show digits_cnn": (["show", "digits_cnn"], 0, 3.0),
    "a configuration error": (["train", "--experiment=digits_cnn", "--set", "trainer.train_stepz=100"], 2, 3.0),
}
"""By name: the words, the exit code, and how many times the bare Python it may take."""


def compare(rounds: int) -> list[Comparison]:
    """Measures each process, start to exit, once in every round, after one round that warms the file cache."""

    def measure(words: list[str], exit_code: int) -> dict[str, float]:
        return {"seconds": processes.run([sys.executable, *words], exit_code=exit_code).wall_seconds}

    variants = {BARE: lambda: measure(["-c", "import yaml, rich.console"], 0)}
    for name, (words, code, _) in COMMANDS.items():
        variants[name] = lambda words=words, code=code: measure(["-m", "official_trainer", *words], code)
    interleave(variants, rounds=1)
    return [
        Comparison(
            title="command",
            unit="s",
            digits=3,
            values=interleave(variants, rounds)["seconds"],
            baseline=BARE,
            targets=[Target(name=name, against=BARE, at_most=most) for name, (_, _, most) in COMMANDS.items()],
        )
    ]
