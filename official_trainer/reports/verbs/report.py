"""Write a page about runs or a sweep, to read, send or print.

It has a summary in words, the table of the runs, their curves, what differs, where the time went, pictures,
checkpoints and, of a sweep, what matters. The page loads nothing. With `--watch` it is served on this machine, and
follows runs that go on.

Owns: `report`. Does not own: the page and its server (`reports/`).
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.cli import flags, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.errors import ExitCode
from official_trainer.shown import printable

USAGE = "RUN|SWEEP … [--output=FILE] [--watch]"
EXAMPLES = (
    ("official-trainer report runs/digits --output=report.html", "a page about one run"),
    ("official-trainer report runs --output=report.html", "all runs below a folder beside each other"),
    ("official-trainer report runs/sweep --watch", "a sweep that goes on, in a browser"),
)
NEXT = ("official-trainer runs", "the runs in a table on the terminal")

_OUTPUT = "report.html"
_REFRESH_SECONDS = 5.0
_HEAD_BYTES = 4096


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `report`."""
    parser.group("Report")
    parser.positionals("paths", "RUN", "run directories, folders of runs, or a sweep")
    parser.value("output", "FILE", f"the file to write (default: {_OUTPUT}); an older report is replaced")
    parser.switch("watch", "serve the report on 127.0.0.1, refreshed, until Ctrl-C; no file is written")
    parser.value("port", "PORT", "with --watch: the port (default: one that is free)")


def run(arguments: argparse.Namespace) -> int:
    """Writes or serves a report.

    Raises:
      UsageError: no folder is named, or the file cannot be written.
      NoRunError: there is no run.
    """
    paths = [os.path.expanduser(path).rstrip("/") or "/" for path in arguments.paths if path]
    if not paths:
        raise UsageError("name what to report: run directories, a folder of runs, or a sweep, such as runs/digits")
    if arguments.watch:
        return _watch(paths, arguments)
    if arguments.port is not None:
        raise UsageError("--port is for --watch; leave it out")
    output = os.path.expanduser(_OUTPUT if arguments.output is None else arguments.output)
    if not output:
        raise UsageError("--output is empty: is a variable not set? Name a file, or leave the flag out")
    from official_trainer.reports import page

    try:
        with open(output, "rb") as file:  # before anything is read
            head = file.read(_HEAD_BYTES)
    except FileNotFoundError:
        head = b""
    except OSError as error:
        raise UsageError(f"--output={output} cannot be written: {files.reason_of(error)}; name another file") from error
    if head and page.MARK.encode() not in head:
        raise UsageError(f"--output={output} is no report, and would be lost; name another file, or delete it")
    content = _content(paths)
    text = page.render(content)
    try:
        files.write_text_atomically(output, text)
    except OSError as error:
        what = f"--output={output} cannot be written: {files.reason_of(error)}; name another file"
        raise files.as_storage_error(error, output) or UsageError(what) from error
    terminal.show(f"{output}: {printable(content['title'])}, {len(text.encode()) / 1e6:.1f} MB; open it in a browser")
    return int(ExitCode.DONE)


def _content(paths: Sequence[str], refresh_seconds: float | None = None) -> Mapping[str, Any]:
    from official_trainer.reports import content, gathered

    now_seconds = _now_seconds()
    found = gathered.gather(paths, now_seconds=now_seconds)
    return content.of(found, now_seconds=now_seconds, refresh_seconds=refresh_seconds)


def _watched(paths: Sequence[str]) -> Mapping[str, Any]:
    """Returns the report as it is now, also before there is a run."""
    from official_trainer.reports import content
    from official_trainer.reports.opened import NoRunYetError

    try:
        return _content(paths, _REFRESH_SECONDS)
    except NoRunYetError as error:
        why = str(error).partition("; name run directories")[0]
        return content.waiting(paths, why, now_seconds=_now_seconds(), refresh_seconds=_REFRESH_SECONDS)


def _now_seconds() -> float:
    return time.time()


def _watch(paths: Sequence[str], arguments: argparse.Namespace) -> int:
    from official_trainer.reports.page import Server

    if arguments.output is not None:
        raise UsageError("--output and --watch exclude each other: a served report is no file; leave one out")
    port = flags.read_number(arguments, "port", least=1) or 0
    if port > 65535:
        raise UsageError(f"--port={port}: expected a number from 1 to 65535")
    make = functools.partial(_watched, paths)
    first = make()  # what is wrong with the paths is said here, not in a browser
    with Server(make, port=port) as server:
        terminal.show(
            f"{server.address} has the report, refreshed every {_REFRESH_SECONDS:.0f} seconds; Ctrl-C ends it"
        )
        if not first["runs"]:
            terminal.show(f"no run yet. {printable(first['summary'][0][1])}")
        sys.stdout.flush()  # a reader of a pipe waits for the address
        server.serve_forever(poll_interval=0.2)
    return int(ExitCode.DONE)
