"""Write a checkpoint's predictions for all examples to files; after a kill, the same command continues.

Owns: `predict`.
Does not own: the predictions (`runs/predict.py`).
"""

from __future__ import annotations

import argparse

from official_trainer.cli import flags, target
from official_trainer.stopping import StopRequest

USAGE = "[EXPERIMENT] [--model_dir=DIR] [--checkpoint=latest|best|STEP] [--output=DIR] [flags] [PATH=VALUE …]"


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `predict`."""
    flags.add_run_flags(parser)
    flags.add_checkpoint_flag(parser)
    flags.add_prediction_flags(parser)
    parser.note("With --model_dir and no experiment, the run there predicts as it was configured.")


def run(arguments: argparse.Namespace) -> int:
    """Predicts; only the log is printed."""
    checkpoint, prediction = flags.read_checkpoint(arguments), flags.read_prediction(arguments)
    with StopRequest() as stop:
        with stop.interruptible():
            experiment, resolved, model_dir, gin = target.from_flags_or_run(arguments)
            from official_trainer.runs import run as engine
        engine.run(
            experiment,
            resolved,
            mode="predict",
            model_dir=model_dir,
            quiet=arguments.quiet,
            checkpoint=checkpoint,
            argv=arguments.argv,
            gin=gin,
            stop=stop,
            prediction=prediction,
        )
    return 0
