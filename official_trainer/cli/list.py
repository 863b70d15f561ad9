"""List the experiments of the workspace.

Owns: `list`.
Does not own: finding them (`registry.py`).
"""

from __future__ import annotations

import argparse
import os

from official_trainer.cli import flags, target, terminal
from official_trainer.cli.spelling import UsageError

USAGE = "[--json]"


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `list`."""
    parser.switch("json", "print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints name, description and file of each experiment, and the files that cannot be read.

    Raises:
      UsageError: there is no workspace here.
    """
    from official_trainer import registry

    workspace = target.workspace(arguments)
    if workspace is None:
        raise UsageError(f"no workspace: no folder upwards of {os.getcwd()} holds experiments/; {target.NEW_WORKSPACE}")
    found = registry.experiments(workspace).values()
    unlisted = [problem.message for problem in registry.unlisted(workspace)]
    if arguments.json:
        import json

        listed = [{"name": e.name, "summary": e.summary, "path": str(e.path), "line": e.line} for e in found]
        print(json.dumps({"workspace": str(workspace), "experiments": listed, "unlisted": unlisted}, indent=2))
        return 0
    rows = [(e.name, e.summary, str(e.path.relative_to(workspace))) for e in found]
    print("\n".join(terminal.columns(rows)) if rows else f"no experiments in {workspace / 'experiments'}")
    for message in unlisted:
        print(f"{terminal.paint('unlisted', 'red')}  {message}")
    return 0
