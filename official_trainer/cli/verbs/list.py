"""List the workspace's experiments; --all adds Model Garden's.

Each line has the name and what the experiment is, and one of the workspace its file or module. Every verb takes them.

Owns: `list`.
Does not own: finding them (`tasks/registry.py`, `garden/index.py`).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from official_trainer.cli import flags, target, terminal
from official_trainer.cli.parser import UsageError

if TYPE_CHECKING:
    from pathlib import Path

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
    """Prints the experiments, the files that cannot be read, and what Model Garden has.

    Raises:
      UsageError: there is neither a workspace nor Model Garden.
    """
    from official_trainer.garden import index
    from official_trainer.tasks import registry

    workspace, garden = target.workspace(arguments), index.entries()
    nowhere = f"no workspace: no folder upwards of {os.getcwd()} holds experiments/; {target.NEW_WORKSPACE}"
    experiments, problems = registry.listed(workspace, target.imports(arguments))
    if workspace is None and not garden and not experiments:
        raise UsageError(nowhere)
    unlisted = [problem.message for problem in problems]
    if arguments.json:
        listed = {
            "workspace": None if workspace is None else str(workspace),
            "experiments": [_as_json(experiment) for experiment in experiments.values()],
            "unlisted": unlisted,
            "garden": [_as_json(experiment) for experiment in garden.values()],
        }
        print(json.dumps(listed, indent=2))
        return 0
    if experiments:
        _show_table([(name, one.summary, _file_or_module(one, workspace)) for name, one in experiments.items()])
    else:
        terminal.show_line(nowhere if workspace is None else f"no experiments in {workspace / 'experiments'}")
    for message in unlisted:
        terminal.show_line(message, "unlisted  ")
    if garden and arguments.all:
        print(f"\n{terminal.paint(f'Model Garden {index.release()}', 'bold')}")
        _show_table([(name, experiment.summary) for name, experiment in garden.items()])
    elif garden:
        print()
        count = len(garden)
        terminal.show_line(f"Model Garden {index.release()} has {count} more; `official-trainer list --all` lists them")
    return 0


def _show_table(rows: Sequence[Sequence[str]]) -> None:
    terminal.show("\n".join(terminal.table((), rows, fit=terminal.width())))


def _file_or_module(experiment: Experiment, workspace: Path | None) -> str:
    is_inside = workspace is not None and experiment.path.is_relative_to(workspace)
    return str(experiment.path.relative_to(workspace)) if workspace and is_inside else experiment.module


def _as_json(experiment: Experiment) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "summary": experiment.summary,
        "path": str(experiment.path),
        "line": experiment.line,
    }
