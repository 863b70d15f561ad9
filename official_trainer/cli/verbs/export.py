"""Export a checkpoint as a SavedModel for serving.

It prints the directory. Without an experiment, --model_dir is exported as it was configured.

Owns: `export`.
Does not own: what is exported (`official_trainer/tasks/export.py`).
"""

from __future__ import annotations

import argparse
import os

from official_trainer.cli import flags, target

GROUP = "Use a trained model"
IN_WORKSPACE = True
OF_A_RUN = True
USAGE = (
    "[EXPERIMENT|RUN] [--model_dir=DIR] [--checkpoint=WHICH] [--format=NAMES] [--output_dir=DIR] [flags] [PATH=VALUE …]"
)
EXAMPLES = (
    ("official-trainer export --model_dir=runs/digits", "the newest checkpoint, to export/STEP there"),
    (
        "official-trainer export --model_dir=runs/digits --checkpoint=best",
        "the best one, beside that: to export/best/STEP",
    ),
    (
        "official-trainer export --model_dir=runs/digits --checkpoint=best --output_dir=served/7",
        "to another directory",
    ),
    (
        "official-trainer export runs/digits --format=tflite,onnx",
        "with files of these formats beside the SavedModel, compared with the model",
    ),
)
NEXT = ("official-trainer show runs/digits", "the values that the exported run used")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `export`."""
    flags.add_run_flags(parser)
    parser.group("Checkpoint and output files")
    flags.add_checkpoint_flag(parser)
    parser.value("output_dir", "DIR", "directory of the SavedModel (default: export/STEP in the run directory)")
    help = "other formats beside the SavedModel, with commas: trainer.export.formats of this export alone"
    parser.value("format", "NAMES", help)


def run(arguments: argparse.Namespace) -> int:
    """Exports, and prints the path of the SavedModel."""
    checkpoint = flags.read_checkpoint(arguments)
    if arguments.format is not None:
        names = [name.strip() for name in arguments.format.split(",") if name.strip()]
        arguments.set = [*(arguments.set or ()), f"trainer.export.formats=[{', '.join(names)}]"]
    job = target.from_flags_or_run(arguments, "export")
    from official_trainer.runs import run as engine

    output_dir = os.path.expanduser(arguments.output_dir or "") or None
    print(engine.export(job, checkpoint=checkpoint, output_dir=output_dir))
    return 0
