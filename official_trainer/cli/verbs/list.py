"""List the workspace's experiments; --all adds Model Garden's.

Each line has the name, what the experiment is, and its file or module. Every verb takes each of them.

Owns: `list`.
Does not own: finding them (`tasks/registry.py`, `garden/index.py`).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from official_trainer.cli import flags, target, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.shown import printable, wrapped

if TYPE_CHECKING:
    from official_trainer.garden.scan import Experiment

GROUP = "Start with these, in this order"
ORDER = 2
USAGE = "[--all] [--import=MODULE] [--json]"
EXAMPLES = (
    ("official-trainer list", "names to give to the other verbs"),
    ("official-trainer list --all", "with those of Model Garden"),
    ("official-trainer list --json", "the same for a program, with paths and lines"),
    ("official-trainer list --import=my_project.experiments", "with those that a module of yours registers"),
)
NEXT = ("official-trainer show digits_cnn", "the values of an experiment")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `list`."""
    parser.group("Experiments")
    flags.add_import_flag(parser)
    parser.switch("all", "list those of Model Garden too")
    parser.output_group()
    parser.switch("json", "print JSON; always has all of them")


def run(arguments: argparse.Namespace) -> int:
    """Prints name, description and file of each experiment, the files that cannot be read, and what Model Garden has.

    Raises:
      UsageError: there is neither a workspace nor Model Garden.
    """
    from official_trainer.garden import index
    from official_trainer.tasks import registry

    workspace, imports, theirs = target.workspace(arguments), target.imports(arguments), index.entries()
    nowhere = f"no workspace: no folder upwards of {os.getcwd()} holds experiments/; {target.NEW_WORKSPACE}"
    experiments, problems = registry.listed(workspace, imports)
    if workspace is None and not theirs and not experiments:
        raise UsageError(nowhere)
    found, unlisted = experiments.values(), [problem.message for problem in problems]
    if arguments.json:
        import json

        listed = {
            "workspace": None if workspace is None else str(workspace),
            "experiments": [_as_json(each) for each in found],
            "unlisted": unlisted,
            "garden": [_as_json(each) for each in theirs.values()],
        }
        print(json.dumps(listed, indent=2))
        return 0
    if found:
        inside = {each.name for each in found if workspace and each.path.is_relative_to(workspace)}
        places = {e.name: str(e.path.relative_to(workspace or "")) if e.name in inside else e.module for e in found}
        _show_table([(each.name, each.summary, places[each.name]) for each in found])
    else:
        _say(nowhere if workspace is None else f"no experiments in {workspace / 'experiments'}")
    for message in unlisted:
        _say(message, "unlisted", "red")
    if theirs and arguments.all:
        print(f"\n{terminal.paint(f'Model Garden {index.release()}', 'bold')}")
        _show_table([(e.name, e.summary, e.module) for e in theirs.values()])
    elif theirs:
        _say(f"\nModel Garden {index.release()} has {len(theirs)} more; `official-trainer list --all` lists them")
    return 0


def _show_table(rows: Sequence[tuple[str, str, str]]) -> None:
    terminal.show("\n".join(terminal.columns(rows, fit=terminal.width(), text=1)))


def _say(message: str, label: str = "", colour: terminal.Colour = "red") -> None:
    """Prints a line; with a label before it that is coloured on a terminal."""
    text = wrapped(f"{label}  {printable(message)}" if label else printable(message), terminal.width())
    print(text.replace(label, terminal.paint(label, colour), 1) if label else text)


def _as_json(experiment: Experiment) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "summary": experiment.summary,
        "path": str(experiment.path),
        "line": experiment.line,
    }
