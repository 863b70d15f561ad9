"""Watch runs or jobs on the terminal as they go on.

Each has its status, step, time that is left, loss and its course, goodput and host. Keys show what it has printed,
write its report, and stop it after a question.

Owns: `top`. Does not own: what is known of a run (`launch/watched.py`), the screen (`launch/top.py`).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys

from official_trainer.cli import flags
from official_trainer.cli.parser import UsageError
from official_trainer.cli.verbs.runs import folder_of
from official_trainer.errors import ExitCode
from official_trainer.launch import submit

USAGE = "[DIR] [--jobs]"
EXAMPLES = (
    ("official-trainer top", "all runs of the workspace"),
    ("official-trainer top runs/sweep", "those below a folder"),
    ("official-trainer top --jobs", "the jobs that were submitted from this workspace"),
)
NEXT = ("official-trainer runs", "the same runs as a table, once")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `top`."""
    parser.group("Runs")
    parser.positional("directory", "DIR", "folder with run directories (default: runs/ of the workspace)")
    parser.switch("jobs", "the jobs of `job list` instead, with the states that their schedulers say")


def run(arguments: argparse.Namespace) -> int:
    """Draws until it is left with `q`.

    Raises:
      UsageError: there is no terminal, no such folder, or textual is not installed.
    """
    if arguments.jobs and arguments.directory is not None:
        raise UsageError("--jobs are those of the workspace, and DIR names runs; leave one out")
    directory = submit.root(arguments) if arguments.jobs else folder_of(arguments)
    if not os.path.isdir(directory):
        raise UsageError(f"the folder {directory} is not there; name a folder of runs")
    if importlib.util.find_spec("textual") is None:
        raise UsageError("top needs textual, not installed here; pip install 'official-trainer[top]'")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top draws on a terminal, and this is none; `official-trainer runs` prints a table")
    from official_trainer.launch import top
    from official_trainer.launch.watched import Watcher

    top.Top(Watcher(directory, of_jobs=arguments.jobs)).run()
    return int(ExitCode.DONE)
