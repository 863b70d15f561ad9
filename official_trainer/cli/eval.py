"""Evaluate a checkpoint of an experiment.

Owns: `eval`.
Does not own: the evaluation (`runs/run.py`).
"""

from __future__ import annotations

import argparse

from official_trainer.cli import flags, target

USAGE = "[EXPERIMENT] [--model_dir=DIR] [--checkpoint=latest|best|STEP] [flags] [PATH=VALUE …]"


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `eval`."""
    flags.add_run_flags(parser)
    flags.add_checkpoint_flag(parser)
    parser.switch("json", "print the metrics as JSON")
    parser.note("With --model_dir and no experiment, the run there is evaluated as it was configured.")


def run(arguments: argparse.Namespace) -> int:
    """Evaluates, and prints the metrics."""
    checkpoint = flags.read_checkpoint(arguments)
    experiment, resolved, model_dir, gin = target.from_flags_or_run(arguments)
    from official_trainer.runs import run as engine

    metrics = engine.run(
        experiment,
        resolved,
        mode="eval",
        model_dir=model_dir,
        quiet=arguments.quiet or arguments.json,
        checkpoint=checkpoint,
        argv=arguments.argv,
        gin=gin,
    )
    if arguments.json:
        import json

        print(json.dumps(metrics))
    return 0
