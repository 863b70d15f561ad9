"""Interleaved measuring: A B C, C B A, A B C, …, so that noise of the machine hits all variants alike.

Owns: the order of measurements. Does not own: what is measured, or how numbers are shown (`report.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

Measure = Callable[[], Mapping[str, float]]
"""Measures once and returns numbers by quantity, such as `{"seconds": 1.2}`."""

Results = dict[str, dict[str, tuple[float, ...]]]
"""Numbers by quantity and variant, one for each round."""


def interleave(variants: Mapping[str, Measure], rounds: int) -> Results:
    """Measures every variant once in each round, so that ratios can be formed within rounds.

    Every other round goes backwards: no variant always follows the same one, whose threads may not have come to rest.
    """
    results: dict[str, dict[str, list[float]]] = {}
    for number in range(1, rounds + 1):
        for name in list(variants)[:: 1 if number % 2 else -1]:
            print(f"\rround {number} of {rounds}: {name:<70}", end="", file=sys.stderr, flush=True)
            for quantity, value in variants[name]().items():
                results.setdefault(quantity, {}).setdefault(name, []).append(value)
    print(f"\r{'':<90}\r", end="", file=sys.stderr, flush=True)
    return {
        quantity: {name: tuple(by_name[name]) for name in variants if name in by_name}
        for quantity, by_name in results.items()
    }
