"""Try every part of a run in a minute, before it is started.

It builds, trains a step, saves, restores and exports, in every mode the same, and leaves nothing behind. It takes the
flags of `train`. Without an experiment, --model_dir is checked as it was configured.

Owns: `check`: takes train's flags, prints a line for each step.
Does not own: the steps (`runs/check.py`).
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from official_trainer.cli import flags, target, terminal

if TYPE_CHECKING:
    from official_trainer.runs.check import CheckStep

GROUP = "Start with these, in this order"
ORDER = 4
IN_WORKSPACE = True
OF_A_RUN = True
USAGE = "[EXPERIMENT|RUN] [--model_dir=DIR] [flags] [PATH=VALUE …]"
EXAMPLES = (
    ("official-trainer check digits_cnn", "try the experiment as it is"),
    ("official-trainer check digits_cnn --config_file=configs/digits_cnn.yaml", "with the values of a file"),
    ("official-trainer check --model_dir=runs/digits", "with the values of a run"),
    ("official-trainer check digits_cnn task.train_data.global_batch_size=32", "with another batch size"),
)
NEXT = ("official-trainer train digits_cnn", "train what was checked")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `train`, so that `train` can be replaced by `check` in any command."""
    flags.add_run_flags(parser)
    flags.add_mode_flag(parser)
    parser.switch("allow_config_change", "accept other values than the checkpoint of the run was saved with")
    help = "a metric that evaluations have to produce, beside those that the configuration names; may be repeated"
    parser.value("metric", "NAME", help, repeat=True)


def run(arguments: argparse.Namespace) -> int:
    """Tries the steps, each reported as it ends; the first that fails ends the check with its own exit code."""
    job = target.from_flags_or_run(arguments, flags.read_mode(arguments))
    from official_trainer.runs import run as engine

    for step in engine.check(job, arguments.metric or ()):
        terminal.show_only_warnings()  # that a part was built or saved is what the lines of the check say
        if not arguments.quiet:
            _show(step)
        if step.error is not None:
            raise step.error
    return 0


def _show(step: CheckStep) -> None:
    """Prints the line of a step, and those that its outcome has below it."""
    mark = "ok" if step.error is None else "failed"
    first, *more = step.outcome.split("\n")
    label = f"{mark:<8}{step.name:<18}{step.seconds:6.1f} s  "
    terminal.show_line(first, label, "green" if step.error is None else "red")
    for line in more:
        terminal.show_line(line.lstrip(), "  ")
