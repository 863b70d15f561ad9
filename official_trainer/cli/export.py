"""Export a checkpoint as a SavedModel for serving.

Owns: `export`.
Does not own: what is exported (`official_trainer/tasks/export.py`).
"""

from __future__ import annotations

import argparse

from official_trainer.cli import flags, target

USAGE = "[EXPERIMENT] [--model_dir=DIR] [--checkpoint=latest|best|STEP] [--output_dir=DIR] [PATH=VALUE …]"


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `export`."""
    flags.add_run_flags(parser)
    flags.add_checkpoint_flag(parser)
    parser.value("output_dir", "DIR", "where the SavedModel goes (default: export/saved_model in the run directory)")
    parser.note("With --model_dir and no experiment, the run there is exported as it was configured.")


def run(arguments: argparse.Namespace) -> int:
    """Exports, and prints the path of the SavedModel."""
    checkpoint = flags.read_checkpoint(arguments)
    experiment, resolved, model_dir, gin = target.from_flags_or_run(arguments)
    from official_trainer.runs import run as engine

    output_dir = arguments.output_dir or None
    path = engine.export(
        experiment, resolved, model_dir=model_dir, checkpoint=checkpoint, output_dir=output_dir, gin=gin
    )
    print(path)
    return 0
