"""List the runs below a folder, and what differs between them.

Each has its experiment, status, step, best metric, age and duration; runs of one experiment have the fields of their
configs that differ.

Owns: `runs`.
Does not own: reading run directories (`runs/recorded.py`), what differs (`runs/differing.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_trainer import files
from official_trainer.cli import flags, target, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.shown import printable, shorten, wrapped

if TYPE_CHECKING:
    from official_trainer.runs.recorded import RecordedRun

GROUP = "Find settings, and compare runs"
USAGE = "[DIR] [--sort=COLUMN] [--watch|--json]"
EXAMPLES = (
    ("official-trainer runs", "the runs of the workspace, the newest first"),
    ("official-trainer runs runs/sweep --sort=best", "those below a folder, the best first"),
    ("official-trainer runs --watch", "the same, followed while runs go on"),
    ("official-trainer runs --json", "the same for a program"),
)
NEXT = ("official-trainer show runs/digits", "the values that a run used")

_OPTIONAL = ("age", "experiment", "took")
"""Columns that a narrow terminal has no room for, the first one to go first; `--json` has them."""

_MOST_DIFFERENCES, _LONGEST_VALUE = 10, 32
_SHORTEST_BEST = 20  # columns: the value, and how the name of the metric begins
_WATCH_SECONDS = 3.0
_COLOURS: Mapping[str, terminal.Colour] = {
    "done": "green",
    "running": "cyan",
    "stopped": "yellow",
    "failed": "red",
    "lost": "red",
}


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `runs`."""
    parser.group("Runs")
    parser.positional("directory", "DIR", "folder with run directories (default: runs/ of the workspace)")
    choices = tuple(_ORDERS)
    parser.value("sort", "COLUMN", f"one of {', '.join(choices)} (default: {choices[0]})", choices=choices)
    parser.output_group()
    parser.switch("watch", "show the table again every few seconds, until Ctrl-C")
    parser.switch("json", "print JSON, with paths of fields and times in seconds")


def run(arguments: argparse.Namespace) -> int:
    """Prints a row for each run.

    Raises:
      UsageError: the folder is not there, or cannot be read without TensorFlow; or stdout cannot be redrawn.
    """
    from official_trainer.runs import differing

    directory = folder_of(arguments)
    if arguments.watch:
        if arguments.json:
            raise UsageError("--watch and --json exclude each other; leave one out")
        if terminal.width() is None:
            raise UsageError("--watch redraws a terminal, and stdout is none; leave the flag out")
        return _watch(directory, arguments)
    runs = _read(directory, arguments)
    if arguments.json:
        fields = differing.differing(runs)
        rows = [_as_json(run, differs) for run, differs in zip(runs, fields, strict=True)]
        print(json.dumps({"directory": directory, "runs": rows}, indent=2))
    else:
        print("\n".join(_lines(directory, runs, terminal.table_width())))
    return 0


def _read(directory: str, arguments: argparse.Namespace) -> list[RecordedRun]:
    from official_trainer.runs import recorded

    order = arguments.sort or next(iter(_ORDERS))
    try:
        return sorted(recorded.find(directory, now_seconds=_now_seconds()), key=_ORDERS[order])
    except OSError as error:
        reason = files.as_denied(error) or files.reason_of(error)
        what = f"the folder {directory} cannot be listed: {reason}; name a folder of runs"
        raise UsageError(what) from error


def _lines(directory: str, runs: Sequence[RecordedRun], width: int | None) -> list[str]:
    from official_trainer.runs import differing

    if runs:
        return _table(runs, differing.differing(runs), directory, width)
    return [printable(f"no runs in {directory}; `official-trainer train EXPERIMENT` makes one")]


def _watch(directory: str, arguments: argparse.Namespace) -> int:
    """Redraws the table until Ctrl-C, which ends it well; as many lines as the terminal has are shown."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(width=terminal.width(), highlight=False)
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        while True:
            lines = _lines(directory, _read(directory, arguments), terminal.width())
            live.update(Text.from_ansi("\n".join(lines)), refresh=True)
            time.sleep(_WATCH_SECONDS)
    return 0


def folder_of(arguments: argparse.Namespace) -> str:
    """Returns the folder that DIR names, or `runs/` of the workspace.

    Raises:
      UsageError: DIR is empty, or a URL.
    """
    if arguments.directory is None:
        directory = os.path.join(target.workspace(arguments) or os.getcwd(), "runs")
        shown = os.path.relpath(directory)
        return directory if shown.startswith(os.pardir) else shown
    if not arguments.directory:
        raise UsageError("DIR is empty: is a variable not set? Name a folder, or leave it out")
    directory = os.path.expanduser(arguments.directory)
    if files.is_url(directory):
        raise UsageError(f"{directory}: only local folders are listed; mount the bucket, or copy the runs")
    return directory


def _as_json(run: RecordedRun, differs: Mapping[str, str]) -> dict[str, Any]:
    from official_trainer.tracking.jsonl import encode

    best: Any = run.best
    if best is not None:
        best = {name: encode(value) for name, value in best.items()} if isinstance(best, Mapping) else encode(best)
    kept = {name: value for name, value in vars(run).items() if name not in ("config", "comments", "record", "process")}
    return {**kept, "best": best, "notes": list(run.notes), "differs": dict(differs)}


def _is_missing(value: Any, sign: int = 1) -> tuple[bool, Any]:
    """Returns a key that sorts what is not known last."""
    return (value is None, 0 if value is None else sign * value)


def _by_best(run: RecordedRun) -> tuple[Any, ...]:
    best = run.best if isinstance(run.best, float) and run.best == run.best else None
    is_missing, rank = _is_missing(best, 1 if run.direction == "lower" else -1)
    return (is_missing, run.experiment or "", run.metric or "", rank)


_ORDERS: Mapping[str, Callable[[RecordedRun], Any]] = {
    "age": lambda run: _is_missing(run.started_seconds, -1),
    "run": lambda run: run.directory,
    "experiment": lambda run: (run.experiment is None, run.experiment, run.directory),
    "status": lambda run: (run.status or "", run.directory),
    "step": lambda run: _is_missing(run.step, -1),
    "best": _by_best,
    "took": lambda run: _is_missing(run.duration_seconds, -1),
}


def _now_seconds() -> float:
    return time.time()


def _table(
    runs: Sequence[RecordedRun], fields: Sequence[Mapping[str, str]], directory: str, width: int | None
) -> list[str]:
    """Returns the lines of the table; what differs stands below each run, and in a pipe beside it."""
    from rich.text import Text

    from official_trainer.config.text import short_names

    names = short_names(path for differs in fields for path in differs)
    rows: list[dict[str, str]] = []
    for differs, run in zip(fields, runs, strict=True):
        words = [f"{printable(names[path])}={shorten(value, _LONGEST_VALUE)}" for path, value in differs.items()]
        words = words if width is None else [shorten(word, width - len("    ")) for word in words]
        if len(words) > _MOST_DIFFERENCES:
            words[_MOST_DIFFERENCES:] = [f"and {len(words) - _MOST_DIFFERENCES} more"]
        differing = " ".join([*words, *(f"({printable(note)})" for note in run.notes)])
        rows.append({**_cells(run, directory, _now_seconds()), "differs": differing})
    shown = [name for name in rows[0] if name == "run" or any(row[name] for row in rows)]
    if width is not None and "differs" in shown:
        shown.remove("differs")

    def drawn() -> list[str]:
        statuses = [{"status": Text(run.status or "", _COLOURS.get(run.status or "", ""))} for run in runs]
        cells: list[dict[str, str | Text]] = [{**row, **status} for row, status in zip(rows, statuses, strict=True)]
        return terminal.table(shown, [[row[name] for name in shown] for row in cells], fit=None)

    if width is None:
        return drawn()
    left_out = []
    while (excess := max(Text.from_ansi(line).cell_len for line in drawn()) - width) > 0:
        if not (names_left := [name for name in _OPTIONAL if name in shown]):
            longest = max(len(row["best"]) for row in rows)
            for row in rows:
                row["best"] = shorten(row["best"], max(_SHORTEST_BEST, longest - excess))
            break
        shown.remove(names_left[0])
        left_out.append(names_left[0])
    lines = drawn()
    below = [wrapped(f"    {row['differs']}", width).split("\n") if row["differs"] else [] for row in rows]
    last = [wrapped(f"left out, as the terminal is narrow: {', '.join(left_out)}; --json has all", width)]
    table = [lines[0], *(line for first, more in zip(lines[1:], below, strict=True) for line in (first, *more))]
    return [*table, *(last if left_out else [])]


def _cells(run: RecordedRun, directory: str, now_seconds: float) -> dict[str, str]:
    """Returns what the table says of a run, by column."""
    from official_trainer.runs.recorded import duration_text, steps_text
    from official_trainer.tracking import monitored

    name = os.path.relpath(run.directory, directory)
    best = "" if run.best is None else monitored.show(run.best)
    if run.best is not None and not isinstance(run.best, Mapping):
        best = f"{run.metric} {best}"
    cells = {
        "run": os.path.basename(os.path.abspath(directory)) if name == os.curdir else name,
        "experiment": run.experiment or "",
        "status": run.status or "",
        "step": steps_text(run),
        "best": best,
        "age": duration_text(None if run.started_seconds is None else now_seconds - run.started_seconds),
        "took": duration_text(run.duration_seconds),
    }
    return {column: printable(cell).replace("\n", "\\n") for column, cell in cells.items()}
