"""Write the outputs of a checkpoint for all examples to files.

Stopped or killed, the same command continues. Without an experiment, --model_dir predicts as it was configured.

Owns: `predict`.
Does not own: the predictions (`runs/predict.py`).
"""

from __future__ import annotations

import argparse

from official_trainer.cli import flags, target
from official_trainer.cli.verbs import train

GROUP = "Use a trained model"
IN_WORKSPACE = True
OF_A_RUN = True
USAGE = "[EXPERIMENT|RUN] [--model_dir=DIR] [--checkpoint=latest|best|STEP] [--output=DIR] [flags] [PATH=VALUE …]"
EXAMPLES = (
    (
        "official-trainer predict --model_dir=runs/digits --format=jsonl",
        "outputs of the newest checkpoint as JSON lines",
    ),
    (
        "official-trainer predict --model_dir=runs/digits --checkpoint=best --output=best_outputs",
        "those of the best one, to another directory",
    ),
)
NEXT = ("official-trainer export --model_dir=runs/digits", "export the model")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `predict`."""
    flags.add_run_flags(parser)
    parser.group("Checkpoint and output files")
    flags.add_checkpoint_flag(parser)
    flags.add_prediction_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Predicts; only the log is printed."""
    return train.run_until_stopped(arguments, lambda: target.from_flags_or_run(arguments, "predict"))
