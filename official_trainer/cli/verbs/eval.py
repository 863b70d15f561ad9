"""Evaluate a checkpoint of a run.

The run stays as it is; images, texts and such that the task returns are written to eval/ in it. Without an experiment,
--model_dir is evaluated as it was configured.

Owns: `eval`.
Does not own: the evaluation (`runs/run.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from official_trainer.cli import flags, target

GROUP = "Start with these, in this order"
ORDER = 6
IN_WORKSPACE = True
OF_A_RUN = True
USAGE = "[EXPERIMENT|RUN] [--model_dir=DIR] [--checkpoint=latest|best|STEP] [flags] [PATH=VALUE …]"
EXAMPLES = (
    ("official-trainer eval --model_dir=runs/digits", "evaluate the newest checkpoint of a run"),
    ("official-trainer eval --model_dir=runs/digits --checkpoint=best --json", "its best one; metrics as JSON"),
    ("official-trainer eval digits_cnn", "the run of this experiment in runs/digits_cnn"),
)
NEXT = ("official-trainer predict --model_dir=runs/digits", "write the outputs")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `eval`."""
    flags.add_run_flags(parser)
    parser.group("Checkpoint")
    flags.add_checkpoint_flag(parser)
    parser.output_group()
    parser.switch("json", "print the metrics as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Evaluates, and prints the metrics."""
    checkpoint = flags.read_checkpoint(arguments)
    job = target.from_flags_or_run(arguments, "eval")
    from official_trainer.runs import run as engine

    metrics = engine.run(dataclasses.replace(job, quiet=arguments.json), checkpoint=checkpoint)
    if arguments.json:
        print(json.dumps(metrics))
    return 0
