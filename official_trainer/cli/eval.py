"""Evaluate a checkpoint of an experiment.

Owns: `eval`.
Does not own: the evaluation (`run.py`).
"""

from __future__ import annotations

import argparse

from official_trainer.cli import flags, job, terminal

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
    experiment, resolved, model_dir = job.from_flags_or_run(arguments)
    from official_trainer import run as engine

    metrics = engine.run(
        experiment,
        resolved,
        mode="eval",
        model_dir=model_dir,
        quiet=True,  # the result is printed here
        checkpoint=checkpoint,
        argv=arguments.argv,
    )
    if arguments.json:
        import json

        print(json.dumps(metrics))
    elif metrics:
        print("\n".join(terminal.columns([(name, f"{value:.6g}") for name, value in sorted(metrics.items())])))
    return 0
