"""Suggest a learning rate, by training with a rising one.

The rate rises exponentially from step to step until the loss diverges (Smith
2015, arXiv:1506.01186). The suggestion is a setting to paste; the curve is drawn
in plot.svg. No run directory is read or written.

Owns: `find-lr`.
Does not own: the training and the suggestion (`reports/find_lr.py`), its picture.
"""

from __future__ import annotations

import argparse
import math
import os

from official_trainer import files
from official_trainer.cli import flags, target, terminal
from official_trainer.cli.parser import UsageError

GROUP = "Find settings, and compare runs"
IN_WORKSPACE = True
USAGE = "EXPERIMENT|--experiment=NAME [--steps=N] [--output=DIR] [flags] [PATH=VALUE …]"
EXAMPLES = (
    ("official-trainer find-lr digits_cnn", "a hundred steps from 1e-7 to 10"),
    ("official-trainer find-lr digits_cnn --steps=300", "a finer curve"),
    ("official-trainer find-lr digits_cnn trainer.optimizer_config.optimizer.type=sgd", "with another optimizer"),
)
NEXT = ("official-trainer train digits_cnn", "train, with what it prints")


def add_flags(parser: flags.Parser) -> None:
    """Declares the experiment with its configuration, and the flags of the search."""
    flags.add_run_flags(parser, has_directory=False)
    parser.group("Search")
    parser.value("steps", "N", "training steps, at least 20 (default: 100)")
    parser.value("output", "DIR", "folder of plot.svg (default: find_lr/EXPERIMENT in the workspace)")


def run(arguments: argparse.Namespace) -> int:
    """Prints the suggestion as a setting, and writes the picture.

    Raises:
      UsageError: a flag has an invalid value.
    """
    steps = flags.read_number(arguments, "steps", least=20) or 100
    if arguments.output == "":
        raise UsageError("--output is empty: is a variable not set? Name a directory, or leave the flag out")
    job = target.from_flags(arguments, "train")
    root = target.workspace(arguments) or os.getcwd()
    output = os.path.expanduser(arguments.output or os.path.join(root, "find_lr", job.experiment))
    from official_trainer.reports import find_lr

    curve = find_lr.search(job, num_steps=steps)

    if has_loss := any(map(math.isfinite, curve.losses)):
        files.make_dirs(output)
        drawing = curve.svg(f"{job.experiment}: loss over a rising learning rate")
        files.write_text_atomically(os.path.join(output, "plot.svg"), drawing)
    if (rate := curve.valley) is not None:
        terminal.show(f"suggestion: {find_lr.suggestion(job.resolved, rate)}")
    else:
        terminal.show(
            "no suggestion: the loss did not fall further than it scatters. Try more --steps, a larger batch, or "
            "`train --overfit_batches=1`, which shows whether the model can learn at all"
        )
    terminal.show(f"curve: {os.path.join(output, 'plot.svg')}" if has_loss else "no curve: the loss is never finite")
    return 0
