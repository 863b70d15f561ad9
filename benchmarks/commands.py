"""Commands that answer without TensorFlow: wall seconds of a process, start to exit."""

from __future__ import annotations

import sys

from benchmarks import processes
from benchmarks.report import Comparison, Target
from benchmarks.rounds import interleave

COMMANDS = {
    "list": (["list"], 0),
    "show digits_cnn": (["show", "digits_cnn"], 0),
    "a configuration error": (["train", "--experiment=digits_cnn", "--set", "trainer.train_stepz=100"], 2),
}

LIMIT_SECONDS = 0.3


def compare(rounds: int) -> list[Comparison]:
    """Measures each command once in every round, after one round that warms the file cache."""

    def measure(words: list[str], exit_code: int) -> dict[str, float]:
        usage = processes.run([sys.executable, "-m", "official_trainer", *words], exit_code=exit_code)
        return {"seconds": usage.wall_seconds}

    variants = {name: (lambda words=words, code=code: measure(words, code)) for name, (words, code) in COMMANDS.items()}
    interleave(variants, rounds=1)
    return [
        Comparison(
            title="command",
            unit="s",
            digits=2,
            values=interleave(variants, rounds)["seconds"],
            targets=[Target(name=name, at_most=LIMIT_SECONDS) for name in COMMANDS],
        )
    ]
