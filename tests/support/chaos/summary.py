"""The table at the end of tests that kill: what was tried, and what went wrong.

A test adds to the table with `record_property("chaos", {…})`: numbers are added up by test function (`peak_…` are
compared), `phases` counted.
"""

import collections
import dataclasses


@dataclasses.dataclass
class Tally:
    """What happened; sums of these make the table at the end.

    Attributes:
      trials: runs that were compared.
      kills: processes killed.
      mismatches: runs that were not like the unbroken one.
      found_out: runs with something left out on purpose, which were not.
      lost_checkpoints: starts that did not continue at the newest checkpoint.
      peak_bytes: the largest run directory.
      seconds: time that all this took.
      phases: kills by what the process did.
    """

    trials: int = 0
    kills: int = 0
    mismatches: int = 0
    found_out: int = 0
    lost_checkpoints: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0
    phases: dict[str, int] = dataclasses.field(default_factory=collections.Counter)


def print_summary(reporter):
    """Prints a line for each test function that added something, and how many kills struck in which phase."""
    tallies, phases = {}, collections.Counter()
    for report in (report for reports in reporter.stats.values() for report in reports):
        for name, values in getattr(report, "user_properties", ()):
            if name == "chaos" and report.when == "teardown":
                test = report.nodeid.rpartition("::")[2].partition("[")[0]
                _add(tallies.setdefault(test, {}), values)
                phases.update(values.get("phases", {}))
    if not tallies:
        return
    reporter.section("chaos")
    columns = list(dict.fromkeys(name for tally in tallies.values() for name in tally))
    rows = [["", *(name.replace("_", " ") for name in columns)]]
    rows += [[test, *(_shown(name, tally.get(name, 0)) for name in columns)] for test, tally in tallies.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        reporter.line("  ".join([first.ljust(widths[0]), *cells]))
    if phases:
        reporter.line("killed in: " + ", ".join(f"{phase} {count}" for phase, count in phases.most_common()))


def _add(total, values):
    for name, value in values.items():
        if isinstance(value, int | float):
            total[name] = max(total.get(name, 0), value) if name.startswith("peak") else total.get(name, 0) + value


def _shown(name, value):
    if name.endswith("bytes"):
        return f"{value / 1024:,.0f} KiB"
    return f"{value:,.0f}"
