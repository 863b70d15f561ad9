"""Write a page about runs or a sweep, to read, send or print.

It has a summary, the table of the runs, their curves, what differs, where the time went,
checkpoints and, of a sweep, which fields matter. The page loads nothing.

Owns: `report`. Does not own: the page (`reports/`).
"""

from __future__ import annotations

import argparse
import os
import time

from official_trainer import files
from official_trainer.cli import flags, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.errors import ExitCode
from official_trainer.shown import printable

GROUP = "Find settings, and compare runs"
USAGE = "RUN|SWEEP … [--output=FILE]"
EXAMPLES = (
    ("official-trainer report runs/digits --output=report.html", "a page about one run"),
    ("official-trainer report runs --output=report.html", "all runs below a folder beside each other"),
    ("official-trainer report runs/sweep", "a sweep, with which fields matter"),
)
NEXT = ("official-trainer runs", "the runs in a table on the terminal")

_OUTPUT = "report.html"


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `report`."""
    parser.group("Report")
    parser.positionals("paths", "RUN", "run directories, folders of runs, or a sweep")
    parser.value("output", "FILE", f"the file to write (default: {_OUTPUT}); it is replaced if it is there")


def run(arguments: argparse.Namespace) -> int:
    """Writes a report.

    Raises:
      UsageError: no folder is named, or the file cannot be written.
      NoRunError: there is no run.
    """
    paths = [os.path.expanduser(path).rstrip("/") or "/" for path in arguments.paths if path]
    if not paths:
        raise UsageError("name what to report: run directories, a folder of runs, or a sweep, such as runs/digits")
    output = os.path.expanduser(_OUTPUT if arguments.output is None else arguments.output)
    if os.path.isdir(output):
        raise UsageError(f"--output={output} is a folder; name a file, or leave the flag out")
    if not output:
        raise UsageError("--output is empty: is a variable not set? Name a file, or leave the flag out")
    from official_trainer.reports import content, page

    shown = content.of(paths, now_seconds=_now_seconds())
    text = page.render(shown)
    try:
        files.write_text_atomically(output, text)
    except OSError as error:
        what = f"--output={output} cannot be written: {files.reason_of(error)}; name another file"
        raise files.as_storage_error(error, output) or UsageError(what) from error
    terminal.show(f"{output}: {printable(shown['title'])}, {len(text.encode()) / 1e6:.1f} MB; open it in a browser")
    return int(ExitCode.DONE)


def _now_seconds() -> float:
    return time.time()
