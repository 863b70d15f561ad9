"""List the experiments of the workspace and of Model Garden.

Each line has the name, what the experiment is, and its file or module.

Owns: `list`.
Does not own: finding them (`tasks/registry.py`, `garden/index.py`).
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from official_trainer.cli import flags, target, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.errors import printable

if TYPE_CHECKING:
    from official_trainer.garden.index import Entry
    from official_trainer.tasks.registry import Experiment

USAGE = "[--json]"
EXAMPLES = (
    ("official-trainer list", "names to give to the other verbs"),
    ("official-trainer list --json", "the same for a program, with paths and lines"),
)
NEXT = ("official-trainer show digits_cnn", "the values of an experiment")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `list`."""
    parser.output_group()
    parser.switch("json", "print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints name, description and file of each experiment, the files that cannot be read, and what Model Garden has.

    Raises:
      UsageError: there is neither a workspace nor Model Garden.
    """
    from official_trainer.garden import index
    from official_trainer.tasks import registry

    workspace, theirs = target.workspace(arguments), index.entries()
    nowhere = f"no workspace: no folder upwards of {os.getcwd()} holds experiments/; {target.NEW_WORKSPACE}"
    if workspace is None and not theirs:
        raise UsageError(nowhere)
    found = registry.experiments(workspace).values() if workspace is not None else []
    unlisted = [problem.message for problem in registry.unlisted(workspace)] if workspace is not None else []
    failures = index.failures() if theirs else {}
    if arguments.json:
        import json

        listed = {
            "workspace": None if workspace is None else str(workspace),
            "experiments": [_as_json(each) for each in found],
            "unlisted": unlisted,
            "garden": [{**_as_json(each), "failure": failures.get(each.name)} for each in theirs.values()],
        }
        print(json.dumps(listed, indent=2))
        return 0
    rows = [(e.name, e.summary, str(e.path.relative_to(workspace or ""))) for e in found]
    if workspace is None:
        terminal.show(nowhere)
    else:
        terminal.show("\n".join(terminal.columns(rows)) if rows else f"no experiments in {workspace / 'experiments'}")
    for message in unlisted:
        print(f"{terminal.paint('unlisted', 'red')}  {printable(message)}")
    if theirs:
        print(f"\n{terminal.paint(f'Model Garden {index.release()}', 'bold')}")
        good = [(e.name, e.summary, e.module) for e in theirs.values() if e.name not in failures]
        terminal.show("\n".join(terminal.columns(good)))
        for name, failure in sorted(failures.items()):
            print(f"{terminal.paint('cannot be imported', 'red')}  {printable(f'{name}: {failure}')}")
    return 0


def _as_json(experiment: Experiment | Entry) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "summary": experiment.summary,
        "path": str(experiment.path),
        "line": experiment.line,
    }
