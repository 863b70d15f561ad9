"""The flags that several verbs share.

Owns: Model Garden's flags of a run, `--mode`, `--checkpoint`, the flags of predictions.
Does not own: the spellings of a flag (`parser.py`), the use of the values (`target.py` and each verb).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from official_trainer.cli.parser import Parser, UsageError
from official_trainer.nearest import did_you_mean

if TYPE_CHECKING:  # `doctor` reads its flags also where the dependencies of these packages are missing
    from official_trainer.runs.predictions import PredictionSettings

WHICH_RUN = "Experiment and run directory"
_CHECKPOINTS = ("latest", "best")


def add_run_flags(parser: Parser, *, has_directory: bool = True) -> None:
    """Declares the experiment and its configuration, and the run directory if the verb has a use for it."""
    parser.group(WHICH_RUN if has_directory else "Experiment")
    parser.positional("name", "EXPERIMENT", "name of the experiment, see `official-trainer list`")
    parser.value("experiment", "NAME", "the same as a flag")
    add_import_flag(parser)
    if has_directory:
        parser.value("model_dir", "DIR", "directory of the run (default: runs/EXPERIMENT)")
    add_config_flags(parser)
    parser.group("Gin bindings", "--gin_params wins over --gin_file.")
    parser.value("gin_file", "FILE", "file of gin bindings; may be repeated", repeat=True)
    parser.value("gin_params", "BINDINGS", "such as f.x=1, one per line; may be repeated", repeat=True)
    parser.output_group()
    parser.switch("quiet", "print only warnings, errors and results")
    parser.switch("traceback", "print the whole traceback of an error in your code")


def add_import_flag(parser: Parser) -> None:
    """Declares `--import`."""
    parser.value("import", "MODULE", "import a module that registers experiments; may be repeated", repeat=True)


def add_config_flags(parser: Parser) -> None:
    """Declares the flags that change a configuration, by precedence; the last one wins."""
    parser.group(
        "Configuration values",
        "--set wins over --params_override, and that over --config_file. PATH=VALUE and --PATH=VALUE are short for "
        "--set=PATH=VALUE. --help with an experiment lists what it can set.",
    )
    parser.value("config_file", "FILE", "YAML file of values; may be repeated", repeat=True)
    parser.value("tpu", "ADDRESS", "sets runtime.tpu")
    parser.value("tf_data_service", "ADDRESS", "read training data from the tf.data service at grpc://HOST:PORT")
    parser.value("params_override", "VALUES", "a.b=1,c=[1,2], YAML or a YAML file; may be repeated", repeat=True)
    parser.switch(
        "enable_async_checkpointing", "save while training waits; sets trainer.async_checkpoint=false", default=True
    )
    parser.value("set", "PATH=VALUE", "one value; may be repeated", repeat=True)


UNCHANGED = {
    **dict.fromkeys(("config_file", "tpu", "tf_data_service", "params_override", "set")),
    "enable_async_checkpointing": True,
}
"""The flags that change a configuration, as they are when they are not given."""


def changes_config(arguments: argparse.Namespace) -> bool:
    """Returns whether any flag that changes a configuration is given."""
    return any((getattr(arguments, name) or None) != value for name, value in UNCHANGED.items())


def add_mode_flag(parser: Parser, offered: Iterable[str] | None = None) -> None:
    """Declares `--mode`, with the offered modes in its help; None offers all."""
    from official_trainer.config import modes

    parser.group(WHICH_RUN)
    help = f"one of {', '.join(offered or modes.MODES)} (default: {modes.DEFAULT_MODE})"
    parser.value("mode", "MODE", help)


def read_mode(arguments: argparse.Namespace) -> str:
    """Returns the mode.

    Raises:
      ModeError: there is no such mode.
    """
    from official_trainer.config import modes

    mode = modes.DEFAULT_MODE if arguments.mode is None else str(arguments.mode)
    modes.refuse_unknown(mode)
    return mode


def called(arguments: argparse.Namespace) -> list[str]:
    """Returns the words of the command as it is typed."""
    words: list[str] = getattr(arguments, "argv", [])
    return ["python", *words] if words[:1] == ["train.py"] else words


def add_checkpoint_flag(parser: Parser) -> None:
    """Declares `--checkpoint`."""
    parser.value("checkpoint", "WHICH", "latest, best or the number of a step (default: latest)")


def read_checkpoint(arguments: argparse.Namespace) -> str:
    """Returns the checkpoint: `latest`, `best` or the digits of a step.

    Raises:
      UsageError: it is something else.
    """
    which = "latest" if arguments.checkpoint is None else str(arguments.checkpoint)
    if which not in _CHECKPOINTS and not which.isdecimal():
        near = did_you_mean(which, _CHECKPOINTS)
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


def add_prediction_flags(parser: Parser) -> None:
    """Declares the flags of predictions."""
    from official_trainer.runs.predictions import DATA_SECTIONS, FORMATS

    parser.value("output", "DIR", "directory of the files (default: predictions/ in the run directory)")
    parser.value("format", "FORMAT", f"one of {', '.join(FORMATS)} (default: {FORMATS[0]})", choices=FORMATS)
    sections = f"{' or '.join(DATA_SECTIONS)} (default: {DATA_SECTIONS[0]})"
    parser.value("data", "SECTION", f"data to read: {sections}", choices=DATA_SECTIONS)
    parser.value("shard_size", "ROWS", "predictions in one file, rounded up to whole batches (default: about 32 MiB)")


def read_prediction(arguments: argparse.Namespace) -> PredictionSettings:
    """Returns the settings of predictions.

    Raises:
      UsageError: a flag has an invalid value.
    """
    from official_trainer.runs.predictions import DATA_SECTIONS, FORMATS, PredictionSettings

    if arguments.output == "":
        raise UsageError("--output is empty: is a variable not set? Name a directory, or leave the flag out")
    return PredictionSettings(
        output_dir=os.path.expanduser(arguments.output or ""),
        format=arguments.format or FORMATS[0],
        data=arguments.data or DATA_SECTIONS[0],
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
