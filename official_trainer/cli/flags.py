"""The flags that several verbs share, and the parser with which each verb declares its flags.

Owns: Model Garden's flags of a run, `--mode`, `--checkpoint`, the flags of predictions.
Does not own: the spellings of a flag (`spelling.py`), the use of the values (`target.py` and each verb).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from official_trainer.cli.spelling import UsageError, Words, did_you_mean

if TYPE_CHECKING:  # `doctor` reads its flags also where the dependencies of these packages are missing
    from official_trainer.runs.predictions.shards import PredictionSettings

GIN_FLAGS = ("gin_file", "gin_params")


class Parser(argparse.ArgumentParser):
    """An argparse parser with absl's spellings, which reports all problems of a command line at once."""

    def __init__(self, prog: str, *, usage: str, description: str) -> None:
        super().__init__(
            prog,
            usage=f"{prog} {usage}",
            description=description,
            formatter_class=_Formatter,
            add_help=False,
            allow_abbrev=False,
        )
        self.epilog = ""
        self._takes_overrides = False
        self._takes_command = False
        self._value_names: list[str] = []
        self._switch_names: list[str] = []
        self._position_names: list[str] = []
        self.switch("help", "show this text and exit")

    def value(self, name: str, metavar: str, help: str, *, repeat: bool = False) -> None:
        """Declares `--name=METAVAR`, None by default; the last value counts, or all of them with `repeat`."""
        self._value_names.append(name)
        self.add_argument(f"--{name}", metavar=metavar, help=help, action="append" if repeat else "store")

    def switch(self, name: str, help: str, *, default: bool | None = False) -> None:
        """Declares `--name` and `--noname`; the help shows the one that changes the default."""
        self._switch_names.append(name)
        flag = f"--no{name}" if default else f"--{name}"
        self.add_argument(flag, dest=name, action="store_const", const=not default, default=default, help=help)

    def note(self, text: str) -> None:
        """Adds a sentence below the flags of the help."""
        self.epilog = f"{self.epilog} {text}".strip()

    def accept_overrides(self) -> None:
        """Accepts `PATH=VALUE` and `--PATH=VALUE` as values of `--set`."""
        self._takes_overrides = True

    def accept_command(self) -> None:
        """Accepts a `--` before the flags of the command that the verb starts."""
        self._takes_command = True

    def positional(self, name: str, metavar: str, help: str) -> None:
        """Declares a positional argument, None by default."""
        self._position_names.append(name)
        self.add_argument(name, metavar=metavar, nargs="?", help=help)

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Reads `argv`.

        Raises:
          UsageError: a flag that is unknown, without a value or with a wrong one; an argument too many.
        """
        if self._takes_command and "--" in argv:  # it only separates the flags of that command, for readers
            argv = [word for number, word in enumerate(argv) if number != argv.index("--")]
        words = Words(self._value_names, self._switch_names, overrides=self._takes_overrides)
        words.read("--help" if word in ("-h", "--helpfull", "--helpshort") else word for word in argv)
        arguments = self.parse_args([f"--{name}={value}" for name, value in words.values])
        for name, on in words.switches.items():
            setattr(arguments, name, on)
        for name, word in zip(self._position_names, words.positionals, strict=False):
            setattr(arguments, name, word)
        late = [word for word in words.positionals if self._takes_command and word.startswith("--")]
        extra = [word for word in words.positionals[len(self._position_names) :] if word not in late]
        problems = words.problems + [self._unexpected(word) for word in extra]
        if late:
            problems.append(f"{late[0]}: flags after a second `--` are not read; leave one `--` out")
        if problems and not arguments.help:
            raise UsageError("\n".join([*problems, f"`{self.prog} --help` lists the flags"]))
        return arguments

    def words(self, arguments: argparse.Namespace) -> list[str]:
        """Returns the command line that gives this parser's flags the values of `arguments`."""
        words = [getattr(arguments, name) for name in self._position_names if getattr(arguments, name) is not None]
        for name in self._value_names:
            value = getattr(arguments, name)
            values = value if isinstance(value, list) else [] if value is None else [value]
            words += [f"--{name}={each}" for each in values]
        for name in self._switch_names:
            if (on := getattr(arguments, name)) != self.get_default(name):
                words.append(f"--{name}" if on else f"--no{name}")
        return words

    def _unexpected(self, word: str) -> str:
        name, equals, _ = word.partition("=")
        flags = [*self._value_names, *self._switch_names]
        return f"unexpected argument {word!r}{did_you_mean(name, flags, prefix='--') if equals else ''}"


class _Formatter(argparse.HelpFormatter):
    """One column for all flags, wide enough for the longest."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


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
    parser.accept_overrides()
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


def add_config_change_flag(parser: Parser) -> None:
    """Declares `--allow_config_change`."""
    parser.switch("allow_config_change", "continue a run with another config than that of its checkpoint")


def add_checkpoint_flag(parser: Parser) -> None:
    """Declares `--checkpoint`."""
    parser.value("checkpoint", "WHICH", "`latest`, `best` or a step (default: latest)")


def read_checkpoint(arguments: argparse.Namespace) -> str:
    """Returns the checkpoint: `latest`, `best` or the digits of a step.

    Raises:
      UsageError: it is something else.
    """
    which = "latest" if arguments.checkpoint is None else arguments.checkpoint
    if which not in ("latest", "best") and not which.isdecimal():
        near = did_you_mean(which, ("latest", "best"))
        raise UsageError(f"--checkpoint={which}: expected `latest`, `best` or the number of a step{near}")
    return which


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

    given: dict[str, Any] = {}
    for name, choices in (("format", FORMATS), ("data", DATA_SECTIONS)):
        if (value := getattr(arguments, name)) is None:
            continue
        if value not in choices:
            near = did_you_mean(value, choices)
            raise UsageError(f"--{name}={value}: expected one of {', '.join(choices)}{near}")
        given[name] = value
    if (size := arguments.shard_size) is not None:
        if not size.isdecimal() or not int(size):
            raise UsageError(f"--shard_size={size}: expected a number of predictions, at least 1")
        given["shard_size"] = int(size)
    if arguments.output == "":
        raise UsageError("--output is empty: is a variable not set? Name a directory, or leave the flag out")
    return PredictionSettings(output_dir=os.path.expanduser(arguments.output or ""), **given)


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
