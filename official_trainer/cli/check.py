"""Try everything a run will do, in a minute, before it is started.

Owns: `check`: takes train's flags, prints a line for each step.
Does not own: the steps (`run.py`).
"""

from __future__ import annotations

import argparse

from official_trainer.cli import flags, job, terminal

USAGE = "--experiment=NAME [--model_dir=DIR] [flags] [PATH=VALUE …]"

_NAME_WIDTH = 28


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `train`, so that `train` can be replaced by `check` in any command."""
    flags.add_run_flags(parser)
    flags.add_mode_flag(parser)
    parser.note("The same steps are tried for every mode.")


def run(arguments: argparse.Namespace) -> int:
    """Tries the steps, each reported as it ends; the first that fails ends the check with its own exit code."""
    flags.read_mode(arguments)
    experiment, resolved, model_dir = job.from_flags(arguments)
    from official_trainer import run as engine

    for name, outcome, seconds in engine.check(experiment, resolved, model_dir=model_dir):
        if not arguments.quiet:
            print(
                f"{terminal.paint('ok', 'green')}  {name:<{_NAME_WIDTH}}{seconds:7.1f} s  {outcome}".rstrip(),
                flush=True,
            )
    return 0
