"""What the benchmarks say: measured values, ratios with their spread, and targets met or missed.

Owns: tables, as text and as Markdown, and the machine they were measured on. Does not own: measuring.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

_FILE_COLUMNS = 150  # so that no name is cut off in a log


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A promise: `name` takes at most `at_most` times what `against` takes; a plain value if there is no `against`."""

    name: str
    against: str | None = None
    at_most: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What some variants take, one number for each round and variant.

    Attributes:
      title: what is compared.
      unit: of the values.
      values: by variant; round by round.
      baseline: variant that the others are shown as multiples of; None shows values only.
      targets: what is promised.
      digits: decimals of the values.
      ratio_digits: decimals of ratios.
      quartiles: whether the spread is shown as quartiles, for what takes many rounds to see; else as the extremes.
    """

    title: str
    unit: str
    values: Mapping[str, Sequence[float]]
    baseline: str | None = None
    targets: Sequence[Target] = ()
    digits: int = 0
    ratio_digits: int = 2
    quartiles: bool = False

    def ratios(self, name: str, against: str | None) -> list[float]:
        """Returns `name` as a multiple of `against`, round by round; its own values if there is no `against`."""
        if against is None:
            return list(self.values[name])
        return [value / base for value, base in zip(self.values[name], self.values[against], strict=True)]

    def is_met(self, target: Target) -> bool:
        """Whether the median keeps the promise."""
        return statistics.median(self.ratios(target.name, target.against)) <= target.at_most

    def rows_of_values(self) -> list[list[str]]:
        """Returns a header and a row for each variant."""
        header = [self.title, self.unit, self._spread_name]
        rows = [[name, *self._spread(values, self.digits)] for name, values in self.values.items()]
        if self.baseline is None:
            return [header, *rows]
        header += [f"× {self.baseline}", self._spread_name]
        return [header, *([*row, *self._spread(self.ratios(row[0], self.baseline), self.ratio_digits)] for row in rows)]

    def rows_of_targets(self) -> list[list[str]]:
        """Returns a header and a row for each target."""
        rows = [["promise", "against", "median", self._spread_name, "at most", "met"]]
        for target in self.targets:
            spread = self._spread(self.ratios(target.name, target.against), self.ratio_digits)
            unit = f" {self.unit}".rstrip() if target.against is None else " ×"
            limit = f"{target.at_most:.{self.ratio_digits}f}{unit}"
            rows.append(
                [target.name, target.against or "–", *spread, limit, "yes" if self.is_met(target) else "**no**"]
            )
        return rows

    @property
    def _spread_name(self) -> str:
        return "quartiles" if self.quartiles else "min to max"

    def _spread(self, values: Sequence[float], digits: int) -> list[str]:
        low, high = min(values), max(values)
        if self.quartiles and len(values) > 1:
            low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return [f"{statistics.median(values):.{digits}f}", f"{low:.{digits}f} to {high:.{digits}f}"]


def print_text(comparisons: Sequence[Comparison], console: Console | None = None) -> None:
    """Prints all tables to a terminal."""
    console = console or Console(width=None if sys.stdout.isatty() else _FILE_COLUMNS)
    for comparison in comparisons:
        for header, *rows in (comparison.rows_of_values(), comparison.rows_of_targets()):
            if not rows:
                continue
            table = RichTable(box=box.SIMPLE_HEAD)
            for number, cell in enumerate(header):
                table.add_column(cell, justify="right" if number > 0 and rows[0][number][0].isdigit() else "left")
            for row in rows:
                table.add_row(*(cell.replace("**", "") for cell in row))
            console.print(table)


def markdown(comparisons: Sequence[Comparison]) -> str:
    """Returns all tables as Markdown."""
    tables = [
        _markdown_table(table)
        for comparison in comparisons
        for table in (comparison.rows_of_values(), comparison.rows_of_targets())
        if len(table) > 1
    ]
    return "\n".join(tables)


def _markdown_table(rows: Sequence[Sequence[str]], num_texts: int = 1) -> str:
    """Returns a table whose first columns are texts, and all others numbers."""
    header, *body = rows
    rule = ["---" if number < num_texts else "---:" for number in range(len(header))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, rule, *body))


_PROMISED = ("promise", "against", "median")
"""The first columns of the table of targets."""


def promises(text: str, parts: Sequence[str]) -> str:
    """Returns one table of all promises, as the tables of targets in the sections of a page have them.

    Args:
      text: the page.
      parts: the names of its sections, in their order.
    """
    rows = [["part", "of", "promise", "against", "measured", "at most", "met"]]
    for part in parts:
        found = list(_promised(section_of(text, part)))
        rows += [[f"`{part}`", *cells] for cells in found or [["not measured", *["–"] * 5]]]
    met = sum(row[-1] == "yes" for row in rows)
    promised = sum(row[-1] != "–" for row in rows[1:])
    return f"\n{met} of {promised} promises are kept.\n\n{_markdown_table(rows, num_texts=4)}\n"


def _promised(section: str) -> Iterator[list[str]]:
    """Yields the rows of the tables of targets, each after the title of the table of values before it."""
    title, header = "", list[str]()
    for line in section.splitlines():
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not header:
            header = cells
            title = title if tuple(cells[: len(_PROMISED)]) == _PROMISED else cells[0]
        elif tuple(header[: len(_PROMISED)]) == _PROMISED and not cells[0].startswith("---"):
            name, against, median, _, limit, met = cells
            unit = limit.partition(" ")[2]
            yield [title, name, against, f"{median} {unit}".rstrip(), limit, met]


def machine() -> str:
    """Returns what a reader needs to know of this machine, and the date, in a sentence."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    parts = [
        f"{_cpu_model()}, {os.cpu_count()} cores",
        f"{memory_bytes / 2**30:.0f} GiB memory",
        f"{platform.system()} {platform.release()}",
        f"Python {platform.python_version()}",
        *(f"{name} {metadata.version(name)}" for name in ("tensorflow", "tf-keras", "tf-models-official")),
        datetime.date.today().isoformat(),
    ]
    return "; ".join(parts)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def replace_section(text: str, name: str, content: str) -> str:
    """Returns `text` with what stands between the markers of section `name` replaced."""
    before, _, after = _around(text, name)
    return f"{before}{content}{after}"


def section_of(text: str, name: str) -> str:
    """Returns what stands between the markers of section `name`."""
    return _around(text, name)[1]


def _around(text: str, name: str) -> tuple[str, str, str]:
    """Returns what stands up to the content of a section, its content, and what stands from its end on."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, found, rest = text.partition(begin)
    content, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the text has no section between {begin.strip()!r} and {end!r}")
    return f"{before}{begin}", content, f"{end}{after}"
