"""What all parts share: promises, measuring in turns, and the table that says what was kept.

A part is a module with `PROMISES`, `ROUNDS`, and `measure(num_rounds, quick)`, which returns `Values`; `quick` asks for
sizes that show that the part runs, and nothing else.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

Values = dict[str, dict[str, list[float]]]
"""Numbers by measurement, whose name ends with the unit in brackets, and by variant: one for each round."""

Variants = Mapping[str, Callable[[], Mapping[str, float]]]
"""By name, what measures a variant once and returns numbers by measurement."""


@dataclasses.dataclass(frozen=True)
class Promise:
    """In a measurement, one variant takes at most so many times what another takes, by the median over the rounds."""

    measurement: str
    variant: str
    against: str
    at_most: float

    def ratios(self, values: Values) -> list[float]:
        """Returns one ratio for each round, so that a busy moment of the machine hits both variants."""
        numbers = values[self.measurement]
        return [one / other for one, other in zip(numbers[self.variant], numbers[self.against], strict=True)]

    def is_kept(self, values: Values) -> bool:
        return statistics.median(self.ratios(values)) <= self.at_most


def in_turns(variants: Variants, num_rounds: int) -> Values:
    """Measures every variant once in each round: A B C, C B A, A B C, …; so none always follows the same one."""
    values: Values = {}
    for number in range(num_rounds):
        for name in list(variants)[:: -1 if number % 2 else 1]:
            print(f"round {number + 1} of {num_rounds}: {name}", file=sys.stderr, flush=True)
            for measurement, value in variants[name]().items():
                values.setdefault(measurement, {}).setdefault(name, []).append(value)
    return values


HEADER = ("measurement", "promise", "against", "takes", "beside", "ratio", "at most", "kept")


def table(promises: Sequence[Promise], values: Values) -> str:
    """Returns a Markdown table with a row for each promise: medians, and the ratio with its smallest and largest."""
    rows: list[Sequence[str]] = []
    for promise in promises:
        numbers, ratios = values[promise.measurement], promise.ratios(values)
        medians = [statistics.median(numbers[name]) for name in (promise.variant, promise.against)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        kept = "yes" if promise.is_kept(values) else "**no**"
        rows.append([*said(promise), *map(three_digits, medians), spread, f"{promise.at_most:.2f}", kept])
    lines = [f"| {' | '.join(row)} |" for row in (HEADER, *rows)]
    return "\n".join([lines[0], "|---|---|---|---:|---:|---:|---:|---:|", *lines[1:], ""])


def said(promise: Promise) -> list[str]:
    """Returns the first cells of the row of a promise."""
    return [promise.measurement, promise.variant, promise.against]


def three_digits(value: float) -> str:
    """Returns a number as text: 1234.5 as `1,234`, 12.345 as `12.3`, 0.0012345 as `0.00123`."""
    decimals = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, decimals)}f}"


def machine() -> str:
    """Returns what a reader needs to know of this machine, and the date, in a sentence."""
    models = [line.partition(":")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    versions = [f"{name} {metadata.version(name)}" for name in ("tensorflow", "keras", "tf-models-official")]
    cpu = f"{(models or [platform.machine()])[0].strip()}, {os.cpu_count()} cores"
    return "; ".join([datetime.date.today().isoformat(), cpu, f"Python {platform.python_version()}", *versions])


def with_section(text: str, name: str, content: str) -> str:
    """Returns a page with other content between the markers of a section."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, _, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not closed:
        raise ValueError(f"the page has no section between {begin.strip()!r} and {end!r}")
    return f"{before}{begin}{content}{end}{after}"


def section(text: str, name: str) -> str:
    """Returns what stands between the markers of a section."""
    return text.partition(f"<!-- {name}: begin -->\n")[2].partition(f"<!-- {name}: end -->")[0]
