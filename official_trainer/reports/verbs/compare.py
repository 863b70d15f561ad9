"""Compare runs in a table, or two of them in all that differs.

A table has the metrics, the fields of the configs that differ, status, time and speed of each run. Two runs that are
named, without flags of the table, are shown with every difference: config and what set it, versions, data layout,
metrics at equal steps, and the first step at which their numbers part.

Owns: `compare`.
Does not own: the table (`reports/table.py`), two runs beside each other (`reports/pair.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from official_trainer.cli import flags, terminal
from official_trainer.cli.parser import UsageError

if TYPE_CHECKING:
    from official_trainer.reports.entries import Entry
    from official_trainer.reports.table import Table

USAGE = "RUN|DIR… [--metrics=NAME[:WHICH],…] [--where=CONDITION] [--sort=COLUMN] [--group=FIELD,…] [--format=FORMAT]"
EXAMPLES = (
    ("official-trainer compare runs/digits runs/wide", "two runs: all that differs"),
    ("official-trainer compare runs", "all runs below a folder, the best first"),
    ('official-trainer compare runs "--where=learning_rate < 0.1"', "some of them"),
    ("official-trainer compare runs --group=learning_rate --format=markdown", "means over seeds, for a page"),
)
NEXT = ("official-trainer show runs/digits", "the values that a run used")

_FORMATS = ("table", "csv", "json", "markdown")
_PAIRS = ("table", "json")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `compare`."""
    parser.group("Runs")
    parser.positionals("places", "RUN|DIR", "run directories, folders of runs, sweeps")
    parser.value("where", "CONDITION", "only runs for which it holds, as pandas's DataFrame.query takes it")
    parser.group("Table")
    parser.value(
        "metrics", "NAME[:WHICH],…", "WHICH is max, min, last or a step; its best, where the config says what that is"
    )
    parser.value("fields", "PATH,…", "fields that are shown (default: those that differ)")
    parser.value("sort", "COLUMN", "-COLUMN for the other way round (default: the first metric, the best first)")
    parser.value("group", "FIELD,…", "a row for each value: mean ± standard deviation")
    parser.output_group()
    parser.value("format", "FORMAT", f"one of {', '.join(_FORMATS)} (default: table)", choices=_FORMATS)


def run(arguments: argparse.Namespace) -> int:
    """Prints a table, or what differs between two runs.

    Raises:
      UsageError: no run is named, or only one.
      UserError: a folder, field or metric is not there.
    """
    written = arguments.format or "table"
    places = [os.path.expanduser(place) for place in arguments.places]
    if not places:
        raise UsageError("name runs, or a folder of runs, such as `official-trainer compare runs`")
    if arguments.group is not None and arguments.fields is not None:
        raise UsageError("--group and --fields cannot be combined; a group has the fields of --group")
    from official_trainer.reports import entries

    runs = entries.find(places, now_seconds=_now_seconds())
    if not runs:
        raise UsageError(f"no runs in {', '.join(places)}; `official-trainer train EXPERIMENT` makes one")
    if len(runs) == 1:
        only = runs[0].run.directory
        raise UsageError(
            f"there is one run, {only}, and comparing takes two; `official-trainer show {only}` shows its config"
        )
    of_table = (arguments.where, arguments.metrics, arguments.fields, arguments.sort, arguments.group)
    if len(places) == 2 == len(runs) and written in _PAIRS and not any(of_table):
        from official_trainer.reports import pair

        as_json = written == "json"
        terminal.show(
            json.dumps(pair.as_json(*runs), indent=2, allow_nan=False) if as_json else "\n".join(pair.as_text(*runs))
        )
        return 0
    from official_trainer.reports import formats

    table = _table(runs, arguments, places)
    if written == "table":
        print("\n".join(formats.as_table(table, terminal.table_width())))
    else:
        write = {"csv": formats.as_csv, "json": formats.as_json, "markdown": formats.as_markdown}
        print(write[written](table).rstrip("\n"))
    return 0


def _now_seconds() -> float:
    return time.time()


def _table(runs: list[Entry], arguments: argparse.Namespace, places: Sequence[str]) -> Table:
    from official_trainer.reports import measures, sweep_figures, table

    directions = measures.deciding(runs, map(sweep_figures.summary, places))
    wanted = measures.of_runs(runs, _words(arguments.metrics), directions)
    fields, group = (
        None if text is None else [table.path_of(word, runs, flag) for word in _words(text)]
        for flag, text in (("--fields", arguments.fields), ("--group", arguments.group))
    )
    rows = table.of_runs(runs, wanted, fields)
    if arguments.where:
        rows = table.kept(rows, runs, arguments.where)
        if rows.frame.empty:
            raise UsageError(f"none of {len(runs)} runs is left by --where={arguments.where}")
    if group is not None:
        rows = table.grouped(rows, runs, group)
    return table.ordered(rows, arguments.sort)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]
