"""List the runs below a folder, and what differs between them.

Each has its experiment, status, step, best metric, age and duration; runs of one experiment have the fields of their
configs that differ.

Owns: `runs`.
Does not own: reading run directories (`runs/recorded.py`), what differs (`runs/differing.py`).
"""

from __future__ import annotations

import argparse
import os
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_trainer import files
from official_trainer.cli import flags, target, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.nearest import did_you_mean
from official_trainer.shown import printable, shorten

if TYPE_CHECKING:
    from official_trainer.runs.recorded import RecordedRun

USAGE = "[DIR] [--sort=COLUMN] [--json]"
EXAMPLES = (
    ("official-trainer runs", "the runs of the workspace, the newest first"),
    ("official-trainer runs runs/sweep --sort=best", "those below a folder, the best first"),
    ("official-trainer runs --json", "the same for a program"),
)
NEXT = ("official-trainer show runs/digits", "the values that a run used")

_HEADINGS = ("run", "experiment", "status", "step", "best", "age", "took")
_WIDEST_DIFFERENCES, _LEAST_DIFFERENCES = 120, 24
_MOST_DIFFERENCES, _LONGEST_VALUE = 10, 32
_ENDLESS = 10**6
_COLOURS: Mapping[str, terminal.Colour] = {
    "done": "green",
    "running": "cyan",
    "preempted": "yellow",
    **dict.fromkeys(("failed", "stalled", "died", "unreadable"), "red"),
    **dict.fromkeys(("Model Garden", "empty", "no run", "unknown"), "dim"),
}


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `runs`."""
    parser.group("Runs")
    parser.positional("directory", "DIR", "folder with run directories (default: runs/ of the workspace)")
    choices = tuple(_ORDERS)
    parser.value("sort", "COLUMN", f"one of {', '.join(choices)} (default: {choices[0]})", choices=choices)
    parser.output_group()
    parser.switch("json", "print JSON, with paths of fields and times in seconds")


def run(arguments: argparse.Namespace) -> int:
    """Prints a row for each run.

    Raises:
      UsageError: the folder is not there, or cannot be read without TensorFlow.
    """
    from official_trainer.runs import differing, recorded

    order = arguments.sort or next(iter(_ORDERS))
    if order not in _ORDERS:
        near = did_you_mean(order, _ORDERS)
        raise UsageError(f"--sort={order}: expected one of {', '.join(_ORDERS)}{near}")
    directory = _directory(arguments)
    try:
        found = sorted(recorded.find(directory, now_seconds=_now_seconds()), key=_ORDERS[order])
    except OSError as error:
        raise UsageError(
            f"the folder {directory} cannot be listed: {files.reason_of(error)}; name a folder of runs"
        ) from error
    fields = differing.differing(found)
    if arguments.json:
        import json

        rows = [_as_json(each, differs) for each, differs in zip(found, fields, strict=True)]
        print(json.dumps({"directory": directory, "runs": rows}, indent=2))
    elif found:
        for line in _table(found, fields, directory, terminal.table_width() or _ENDLESS):
            print(line)
    else:
        print(printable(f"no runs in {directory}; `official-trainer train EXPERIMENT` makes one"))
    return 0


def _directory(arguments: argparse.Namespace) -> str:
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
    if isinstance(best, Mapping):
        best = {name: encode(value) for name, value in best.items()}
    elif best is not None:
        best = encode(best)
    kept = {name: value for name, value in vars(run).items() if name not in ("config", "best", "notes", "record")}
    return {**kept, "best": best, "notes": list(run.notes), "differs": dict(differs)}


def _is_missing(value: Any) -> tuple[bool, Any]:
    """Returns a key that sorts what is not known last."""
    return (value is None, 0 if value is None else value)


def _by_best(run: RecordedRun) -> tuple[Any, ...]:
    best = run.best if isinstance(run.best, float) and run.best == run.best else None
    sign = 1 if run.direction == "lower" else -1
    return (best is None, run.experiment or "", run.metric or "", 0.0 if best is None else sign * best)


_ORDERS: Mapping[str, Callable[[RecordedRun], Any]] = {
    "age": lambda run: _is_missing(None if run.started_seconds is None else -run.started_seconds),
    "run": lambda run: run.directory,
    "experiment": lambda run: (_is_missing(run.experiment), run.directory),
    "status": lambda run: (run.status, run.directory),
    "step": lambda run: _is_missing(None if run.step is None else -run.step),
    "best": _by_best,
    "took": lambda run: _is_missing(None if run.duration_seconds is None else -run.duration_seconds),
}


def _now_seconds() -> float:
    return time.time()


def _table(runs: Sequence[RecordedRun], fields: Sequence[Mapping[str, str]], directory: str, width: int) -> list[str]:
    """Returns the lines of the table; below a run that has no room for it stands the rest, at the words' ends."""
    from official_trainer.config.text import short_names

    cells = [_HEADINGS, *(_cells(run, directory, _now_seconds()) for run in runs)]
    shown = [i for i in range(len(_HEADINGS)) if i == 0 or any(row[i] for row in cells[1:])]
    names, rows = short_names(path for differs in fields for path in differs), zip(fields, runs, strict=True)
    rest = [[*_in_words(differs, names), *(f"({printable(note)})" for note in run.notes)] for differs, run in rows]
    fixed = terminal.columns([[row[i] for i in shown] for row in cells])
    longest = max((len(word) for words in rest for word in " ".join(words).split()), default=0)
    if max(map(len, fixed)) > width:  # the name has a line of its own
        under = terminal.columns([[row[i] for i in shown[1:]] for row in cells])
        fixed = [f"{row[0]}\n    {line}" for row, line in zip(cells, under, strict=True)]
    lines_wide = max(len(line.rpartition("\n")[2]) for line in fixed)
    beside = min(width - lines_wide - 2, _WIDEST_DIFFERENCES) if width < _ENDLESS else _ENDLESS
    beside = beside if beside >= max(_LEAST_DIFFERENCES, longest) else 0
    heading = fixed[0].replace("\n", " /\n")
    if any(rest) and beside:
        heading = f"{heading.ljust(lines_wide)}  differs"
    table = [terminal.paint(line, "bold") for line in heading.splitlines()]
    for run, line, words in zip(runs, fixed[1:], rest, strict=True):
        table += _row(_painted(printable(line), run), len(line.rpartition("\n")[2]), lines_wide, words, beside, width)
    return table


def _in_words(differs: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    """Returns the first fields that differ, with short names and values, and how many more there are."""
    words = [f"{printable(names[path])}={shorten(value, _LONGEST_VALUE)}" for path, value in differs.items()]
    more = [f"and {len(words) - _MOST_DIFFERENCES} more"] if len(words) > _MOST_DIFFERENCES else []
    return [*words[:_MOST_DIFFERENCES], *more]


def _row(line: str, length: int, lines_wide: int, words: Sequence[str], beside: int, width: int) -> list[str]:
    """Returns the lines of one run: what differs stands beside the cells, or below them where there is no room."""
    if beside:
        first, *more = _wrapped(words, beside) or [""]
        padding = " " * (lines_wide - length + 2)
        below = [" " * (lines_wide + 2) + text for text in more]
        return [*f"{line}{padding if first else ''}{first}".splitlines(), *below]
    return [*line.splitlines(), *(f"    {text}" for text in _wrapped(words, width - 4))]


def _wrapped(words: Sequence[str], width: int) -> list[str]:
    if width >= _ENDLESS:
        return [" ".join(words)] if words else []
    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return wrap.wrap(" ".join(words))


def _painted(line: str, run: RecordedRun) -> str:
    """Returns a line with the status in its colour; the name is left as it is."""
    colour = _COLOURS.get(run.status)
    head, mark, tail = line.rpartition(f"  {run.status}  ")
    return f"{head}  {terminal.paint(run.status, colour)}  {tail}" if mark and colour else line


def _cells(run: RecordedRun, directory: str, now_seconds: float) -> tuple[str, ...]:
    from official_trainer.runs.recorded import duration_text, steps_text

    name = os.path.relpath(run.directory, directory)
    name = os.path.basename(os.path.abspath(directory)) if name == os.curdir else name
    age = None if run.started_seconds is None else now_seconds - run.started_seconds
    known = (name, run.experiment or "", run.status, steps_text(run), _best(run), duration_text(age))
    return tuple(printable(cell).replace("\n", "\\n") for cell in (*known, duration_text(run.duration_seconds)))


def _best(run: RecordedRun) -> str:
    from official_trainer.tracking import monitored

    if run.best is None:
        return ""
    return monitored.show(run.best) if isinstance(run.best, Mapping) else f"{run.metric} {monitored.show(run.best)}"
