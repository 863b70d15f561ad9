"""Compare runs in a table, or two of them in all that differs.

A table has the metrics, the fields of the configs that differ, status, time and speed of each run. Two runs that are
named, without flags of the table, are shown with every difference: config and what set it, versions, code, data layout,
metrics at equal steps, and the first step at which their numbers part.

Owns: `compare`.
Does not own: the table (`reports/table.py`), two runs beside each other (`reports/pair.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from official_trainer.cli import flags, target, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.shown import counted

if TYPE_CHECKING:
    from official_trainer.reports.entries import Entry
    from official_trainer.reports.measures import Direction
    from official_trainer.reports.table import Table

USAGE = "RUN|DIR… [--metrics=NAME[:WHICH],…] [--where=CONDITION] [--sort=COLUMN] [--group=FIELD,…] [--format=FORMAT]"
EXAMPLES = (
    ("official-trainer compare runs/digits runs/wide", "two runs: all that differs"),
    ("official-trainer compare runs", "all runs below a folder, the best first"),
    ("official-trainer compare runs --where=optimizer.type=adam --metrics=accuracy,train/training_loss:last", "some"),
    ("official-trainer compare runs --group=learning_rate --format=latex", "means over seeds, for a paper"),
)
NEXT = ("official-trainer show runs/digits", "the values that a run used")

_FORMATS = ("table", "csv", "json", "markdown", "latex")
_PAIRS = ("table", "json")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `compare`."""
    parser.group("Runs")
    parser.positionals("places", "RUN|DIR", "run directories, folders of runs, sweeps")
    parser.value("where", "CONDITION", "only runs with FIELD=VALUE; also != < <= > >=; may be repeated", repeat=True)
    parser.group("Table")
    parser.value(
        "metrics", "NAME[:WHICH],…", "WHICH is max, min, last or a step; its best, where the config says what that is"
    )
    parser.value("fields", "PATH,…", "fields that are shown (default: those that differ)")
    parser.value("sort", "COLUMN", "-COLUMN for the other way round (default: the first metric, the best first)")
    parser.value("group", "FIELD,…", "a row for each value: mean ± standard deviation, and n")
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
    from official_trainer.reports import entries, formats, measures

    found = entries.find(places, now_seconds=_now_seconds())
    if not found:
        raise UsageError(f"no runs in {', '.join(places)}; `official-trainer train EXPERIMENT` makes one")
    if len(found) == 1:
        only = found[0].run.directory
        raise UsageError(
            f"there is one run, {only}, and comparing takes two; `official-trainer show {only}` shows its config"
        )
    of_table = (arguments.where, arguments.metrics, arguments.fields, arguments.sort, arguments.group)
    if len(places) == 2 == len(found) and written in _PAIRS and not any(of_table):
        from official_trainer.reports import pair

        workspace = target.workspace(arguments)
        two = pair.of(found[0], found[1], None if workspace is None else str(workspace))
        as_json = written == "json"
        terminal.show(
            json.dumps(pair.as_json(two), indent=2, allow_nan=False) if as_json else "\n".join(pair.as_text(two))
        )
        return 0
    found = found if arguments.where else _that_began(found, places)
    kept = measures.kept(found, arguments.where or ())
    if not kept:
        raise UsageError(f"none of {len(found)} runs is left by --where={' --where='.join(arguments.where)}")
    made = _table(kept, arguments, measures.of_sweeps(places))
    if written == "table":
        print("\n".join(formats.as_table(made, terminal.table_width(), cast(formats.Paint, terminal.paint))))
        return 0
    write = {"csv": formats.as_csv, "json": formats.as_json, "markdown": formats.as_markdown, "latex": formats.as_latex}
    print(write[written](made).rstrip("\n"))
    return 0


def _that_began(found: list[Entry], places: Sequence[str]) -> list[Entry]:
    """Returns runs without those in folders that failed before a first step, and says so, if two others are left."""
    from official_trainer.reports import entries

    asked = set(map(os.path.realpath, places))
    began = [
        each.run
        for each in found
        if each.run.status != "failed" or each.run.recorded.step != 0 or os.path.realpath(each.run.directory) in asked
    ]
    if not 2 <= len(began) < len(found):
        return found
    count = len(found) - len(began)
    what = f"{counted(count, 'run')} that failed before the first step {'are' if count > 1 else 'is'} left out"
    terminal.report_error(f"{what}; --where=status=failed shows what failed", "note", "dim")
    return entries.named(began)


def _now_seconds() -> float:
    return time.time()


def _table(found: list[Entry], arguments: argparse.Namespace, directions: Mapping[str, Direction]) -> Table:
    from official_trainer.reports import measures, table

    wanted = measures.of_runs(found, _words(arguments.metrics), directions)
    if arguments.group is not None and arguments.fields is not None:
        raise UsageError("--group and --fields cannot be combined; a group has the fields of --group")
    given = {name: getattr(arguments, name) for name in ("group", "fields")}
    chosen = {
        name: None if text is None else [measures.path_of(word, found, f"--{name}") for word in _words(text)]
        for name, text in given.items()
    }
    by = chosen["group"]
    made = table.of_runs(found, wanted, chosen["fields"]) if by is None else table.grouped(found, wanted, by)
    return table.ordered(made, arguments.sort)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]
