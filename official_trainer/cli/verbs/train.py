"""Train an experiment; the same command continues a stopped run.

By default it also evaluates. It takes the flags of Model Garden's train.py.

Owns: `train`.
Does not own: the run (`runs/run.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from official_trainer.cli import flags, process, target, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.config import installed, modes

if TYPE_CHECKING:
    from official_trainer.runs.job import Job

GROUP = "Start with these, in this order"
ORDER = 5
IN_WORKSPACE = True
USAGE = "EXPERIMENT|--experiment=NAME [--mode=MODE] [--model_dir=DIR] [flags] [PATH=VALUE …]"
EXAMPLES = (
    (
        "official-trainer train --experiment=digits_cnn --model_dir=runs/digits",
        "train and evaluate in runs/digits; given again, continue there",
    ),
    ("official-trainer train --experiment=digits_cnn trainer.train_steps=500", "with another value"),
    ("official-trainer train digits_mlp --config_file=configs/digits_mlp.yaml", "with the values of a file"),
    ("official-trainer train digits_mlp --mode=train --model_dir=runs/mlp", "without evaluation"),
    ("official-trainer train digits_mlp --overfit_batches=2", "see whether model and loss can learn two batches"),
)
NEXT = ("official-trainer eval --model_dir=runs/digits", "evaluate a checkpoint")


def add_flags(parser: flags.Parser, offered_modes: Iterable[str] = modes.MODES) -> None:
    """Declares the flags of Model Garden's train.py."""
    flags.add_run_flags(parser)
    flags.add_mode_flag(parser, offered_modes)
    parser.switch("allow_config_change", "continue a run with other values than its checkpoint was saved with")
    parser.value("until_step", "N", "stop after step N, which is saved; the same command without this flag goes on")
    if "predict" in offered_modes:
        help = "train on the first N batches alone, keep nothing, and say whether the loss fell to near zero"
        parser.value("overfit_batches", "N", help)
        parser.group("Only with --mode=predict")
        flags.add_checkpoint_flag(parser)
        flags.add_prediction_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the experiment in the given mode."""
    mode = flags.read_mode(arguments)
    if (num_batches := flags.read_number(arguments, "overfit_batches", least=1)) is not None:
        return _overfit(arguments, mode, num_batches)
    if mode != "predict":
        flags.refuse_idle_prediction(arguments, mode)
    return run_until_stopped(arguments, lambda: target.from_flags(arguments, mode))


def _overfit(arguments: argparse.Namespace, mode: str, num_batches: int) -> int:
    """Trains on a few batches, and prints what came of it.

    Raises:
      UsageError: the mode does not train.
    """
    if mode not in modes.TRAINING_MODES:
        raise UsageError(f"--overfit_batches would have no effect with --mode={mode}; leave one of them out")
    flags.refuse_idle_prediction(arguments, mode)
    job = target.from_flags(arguments, mode)
    part = installed.load_part("official_trainer.reports.overfit", "--overfit_batches")
    learning = part.overfit_job(job, num_batches)
    terminal.show(f"{learning}\nmodel and loss can learn; nothing was kept, and {job.model_dir} was not touched")
    return 0


def run_until_stopped(arguments: argparse.Namespace, find: Callable[[], Job]) -> int:
    """Runs the job that `find` returns, by the flags of `train` or of `predict`."""
    checkpoint, prediction = flags.read_checkpoint(arguments), flags.read_prediction(arguments)
    with process.outliving_reader():
        job = find()
        from official_trainer.runs import run as engine

        engine.run(job, checkpoint=checkpoint, prediction=prediction)
    return 0
