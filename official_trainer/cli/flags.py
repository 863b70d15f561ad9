"""The flags that several verbs share.

Owns: Model Garden's flags of a run, `--mode`, `--checkpoint`, the flags of predictions.
Does not own: the spellings of a flag (`parser.py`), the use of the values (`target.py` and each verb).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from official_trainer.cli.parser import Parser, UsageError, did_you_mean

if TYPE_CHECKING:  # `doctor` reads its flags also where the dependencies of these packages are missing
    from official_trainer.runs.predictions.shards import PredictionSettings

GIN_FLAGS = ("gin_file", "gin_params")


def add_run_flags(parser: Parser) -> None:
    """Declares the experiment, its run directory and its configuration."""
    parser.positional("name", "EXPERIMENT", "the experiment, in place of --experiment")
    parser.value("experiment", "NAME", "the experiment; `official-trainer list` shows all")
    parser.value("model_dir", "DIR", "where the run lives (default: runs/EXPERIMENT in the workspace)")
    add_config_flags(parser)
    parser.value("gin_file", "FILE", "gin bindings for functions of libraries; may be repeated", repeat=True)
    parser.value("gin_params", "BINDINGS", "such as f.x=1, one a line, over the files; may be repeated", repeat=True)
    parser.switch("quiet", "print warnings, errors and results only")


def add_config_flags(parser: Parser) -> None:
    """Declares the flags that change a configuration, by precedence; the last one wins."""
    parser.value("config_file", "FILE", "YAML over the experiment's values; may be repeated", repeat=True)
    parser.value("tpu", "ADDRESS", "sets runtime.tpu")
    parser.value("tf_data_service", "ADDRESS", "training data comes through the tf.data service at grpc://HOST:PORT")
    parser.value(
        "params_override",
        "VALUES",
        "a.b=1,c=[1,2], or YAML, or a YAML file, over the files; may be repeated",
        repeat=True,
    )
    parser.switch("enable_async_checkpointing", "sets trainer.async_checkpoint to false", default=True)
    parser.value("set", "PATH=VALUE", "one value, over all the others; may be repeated", repeat=True)
    parser.note("PATH=VALUE and --PATH=VALUE are short for --set PATH=VALUE.")


def changes_config(arguments: argparse.Namespace) -> bool:
    """Returns whether any flag that changes a configuration is given."""
    given = any(
        getattr(arguments, name) for name in ("config_file", "tpu", "tf_data_service", "params_override", "set")
    )
    return given or not arguments.enable_async_checkpointing


def add_mode_flag(parser: Parser, offered: Iterable[str] | None = None) -> None:
    """Declares `--mode`, with the offered modes in its help; None offers all."""
    from official_trainer.config import modes

    parser.value("mode", "MODE", f"one of {', '.join(offered or modes.MODES)} (default: {modes.DEFAULT_MODE})")


def read_mode(arguments: argparse.Namespace) -> str:
    """Returns the mode.

    Raises:
      ModeError: there is no such mode.
    """
    from official_trainer.config import modes

    mode = modes.DEFAULT_MODE if arguments.mode is None else arguments.mode
    modes.check(mode)
    return mode


def add_checkpoint_flag(parser: Parser) -> None:
    """Declares `--checkpoint`."""
    parser.value("checkpoint", "WHICH", "`latest`, `best` or a step (default: latest)")


def read_checkpoint(arguments: argparse.Namespace) -> str:
    """Returns the checkpoint: `latest`, `best` or the digits of a step.

    Raises:
      UsageError: it is something else.
    """
    which = "latest" if arguments.checkpoint is None else str(arguments.checkpoint)
    if which not in ("latest", "best") and not which.isdecimal():
        near = did_you_mean(which, ("latest", "best"))
        raise UsageError(f"--checkpoint={which}: expected `latest`, `best` or the number of a step{near}")
    return which


def read_number(arguments: argparse.Namespace, name: str, *, least: int) -> int | None:
    """Returns the number that a flag has; None if it is not given.

    Raises:
      UsageError: it is no whole number, or smaller than `least`.
    """
    text: str | None = getattr(arguments, name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise UsageError(f"--{name}={text}: expected a number from {least}")
    return int(text)


def _read_choice(arguments: argparse.Namespace, name: str, choices: Sequence[str]) -> str:
    """Returns the choice that a flag has; the first one if it is not given."""
    text = choices[0] if getattr(arguments, name) is None else str(getattr(arguments, name))
    if text not in choices:
        near = did_you_mean(text, choices)
        raise UsageError(f"--{name}={text}: expected one of {', '.join(choices)}{near}")
    return text


def add_prediction_flags(parser: Parser) -> None:
    """Declares the flags of predictions."""
    from official_trainer.runs.predictions.shards import DATA_SECTIONS, FORMATS

    parser.value("output", "DIR", "where predictions go (default: predictions in the run directory)")
    parser.value("format", "FORMAT", f"of predictions, one of {', '.join(FORMATS)} (default: {FORMATS[0]})")
    parser.value("data", "SECTION", f"whose examples, one of {', '.join(DATA_SECTIONS)} (default: {DATA_SECTIONS[0]})")
    parser.value("shard_size", "ROWS", "predictions in a file (default: as many as make about 32 MiB)")


def read_prediction(arguments: argparse.Namespace) -> PredictionSettings:
    """Returns the settings of predictions.

    Raises:
      UsageError: a flag has an invalid value.
    """
    from official_trainer.runs.predictions.shards import DATA_SECTIONS, FORMATS, PredictionSettings

    if arguments.output == "":
        raise UsageError("--output is empty: is a variable not set? Name a directory, or leave the flag out")
    return PredictionSettings(
        output_dir=os.path.expanduser(arguments.output or ""),
        format=_read_choice(arguments, "format", FORMATS),
        data=_read_choice(arguments, "data", DATA_SECTIONS),
        shard_size=read_number(arguments, "shard_size", least=1),
    )


def refuse_idle_prediction(arguments: argparse.Namespace, mode: str) -> None:
    """Refuses flags of predictions in a mode that does not predict.

    Raises:
      UsageError: such a flag is given.
    """
    if given := [f"--{name}" for name in _PREDICTION_FLAGS if getattr(arguments, name) is not None]:
        raise UsageError(f"{' and '.join(given)} would have no effect with --mode={mode}; leave it out, or use predict")


_PREDICTION_FLAGS = ("checkpoint", "output", "format", "data", "shard_size")


def add_idle_gin_flags(parser: Parser) -> None:
    """Declares the gin flags without help, so that `refuse_idle_gin` can explain why this verb does not use them."""
    for name in GIN_FLAGS:
        parser.value(name, "VALUE", argparse.SUPPRESS, repeat=True)


def refuse_idle_gin(arguments: argparse.Namespace) -> None:
    """Refuses gin flags for a verb that calls no function that they could bind; empty values are fine.

    Raises:
      UsageError: such a flag has a value.
    """
    if given := [f"--{name}" for name in GIN_FLAGS if any(getattr(arguments, name) or ())]:
        what = "no effect here: gin binds arguments of functions and does not change the config"
        raise UsageError(f"{' and '.join(given)} would have {what}; leave it out")
