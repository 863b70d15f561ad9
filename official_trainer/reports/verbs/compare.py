"""Compare runs in a table, or two of them in all that differs.

A table has the metrics, the fields of the configs that differ, status, time and speed of each run. Two runs that are
named, without flags of the table, are shown with every difference: config and what set it, versions, data layout,
metrics at equal steps, and the first step at which their numbers part.

Owns: `compare`.
Does not own: the table (`reports/table.py`), two runs beside each other (`reports/pair.py`).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from official_trainer.cli import flags, terminal
from official_trainer.cli.parser import UsageError

if TYPE_CHECKING:
    from official_trainer.reports.opened import OpenedRun
    from official_trainer.reports.table import Table

GROUP = "Find settings, and compare runs"
USAGE = "RUN|DIR… [--metrics=NAME[:WHICH],…] [--where=CONDITION] [--sort=COLUMN] [--group=FIELD,…] [--format=FORMAT]"
EXAMPLES = (
    ("official-trainer compare runs/digits runs/wide", "two runs: all that differs"),
    ("official-trainer compare runs", "all runs below a folder, the best first"),
    ('official-trainer compare runs "--where=learning_rate < 0.1"', "some of them"),
    ("official-trainer compare runs --group=learning_rate", "means over seeds"),
)
NEXT = ("official-trainer show runs/digits", "the values that a run used")

_FORMATS = ("table", "csv", "json")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `compare`."""
    parser.group("Runs")
    parser.positionals("paths", "RUN|DIR", "run directories, folders of runs, sweeps")
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
    paths = [os.path.expanduser(path) for path in arguments.paths]
    if not paths:
        raise UsageError("name runs, or a folder of runs, such as `official-trainer compare runs`")
    if arguments.group is not None and arguments.fields is not None:
        raise UsageError("--group and --fields cannot be combined; a group has the fields of --group")
    from official_trainer.reports import opened

    runs = opened.open_all(*paths, now_seconds=_now_seconds())
    if not runs:
        raise UsageError(f"no runs in {', '.join(paths)}; `official-trainer train EXPERIMENT` makes one")
    if len(runs) == 1:
        only = runs[0].directory
        raise UsageError(
            f"there is one run, {only}, and comparing takes two; `official-trainer show {only}` shows its config"
        )
    of_table = (arguments.where, arguments.metrics, arguments.fields, arguments.sort, arguments.group)
    if len(paths) == 2 == len(runs) and written == "table" and not any(of_table):
        from official_trainer.reports import pair

        terminal.show("\n".join(pair.differences(*runs)))
        return 0
    from official_trainer.reports import formats

    table = _table(runs, arguments, paths)
    if written == "table":
        print("\n".join(formats.as_table(table, terminal.table_width())))
    elif written == "csv":
        print(table.frame.to_csv(index=False, lineterminator="\n"), end="")
    else:
        print(table.frame.to_json(orient="records", indent=2, double_precision=15, force_ascii=False))
    return 0


def _now_seconds() -> float:
    return time.time()


def _table(runs: list[OpenedRun], arguments: argparse.Namespace, paths: Sequence[str]) -> Table:
    from official_trainer.reports import measures, table

    directions = measures.deciding(runs, map(measures.sweep_summary, paths))
    rows = table.of_runs(runs, measures.of_runs(runs, _words(arguments.metrics), directions))
    flag, words = ("--fields", arguments.fields) if arguments.group is None else ("--group", arguments.group)
    fields = [table.column_of(word, rows, flag) for word in _words(words)]
    if words is None:
        fields = sorted({path: None for run in runs for path in run.differs}, key=lambda path: path.endswith("seed"))
    if arguments.where:
        rows = table.kept(rows, arguments.where)
        if rows.frame.empty:
            raise UsageError(f"none of {len(runs)} runs is left by --where={arguments.where}")
    if arguments.group is not None:
        rows = table.grouped(rows, fields)
    return table.shown(table.ordered(rows, arguments.sort), fields)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]
