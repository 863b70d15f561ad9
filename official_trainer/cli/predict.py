"""Write a checkpoint's predictions for all examples to files; after a kill, the same command continues.

Owns: `predict`.
Does not own: the predictions (`runs/predict.py`).
"""

from __future__ import annotations

import argparse

from official_trainer.cli import flags, target, train

USAGE = "[EXPERIMENT] [--model_dir=DIR] [--checkpoint=latest|best|STEP] [--output=DIR] [flags] [PATH=VALUE …]"


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `predict`."""
    flags.add_run_flags(parser)
    flags.add_checkpoint_flag(parser)
    flags.add_prediction_flags(parser)
    parser.note("With --model_dir and no experiment, the run there predicts as it was configured.")


def run(arguments: argparse.Namespace) -> int:
    """Predicts; only the log is printed."""
    return train.run_until_stopped(arguments, "predict", target.from_flags_or_run)
