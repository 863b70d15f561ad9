"""Train an experiment many times, with values drawn from a space.

The same command continues a sweep that was stopped or killed, and works on it beside another one that runs. With a word
in place of the experiment: `sweep show DIR` prints its table, and `sweep best DIR` the values of its best trial.

Owns: `sweep`, its flags and these words.
Does not own: the sweep (`sweeps/`), the run of a trial (`official-trainer train`), the table (`sweeps/shown.py`).
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from official_trainer import files
from official_trainer.cli import flags, process, target, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.errors import ExitCode
from official_trainer.nearest import did_you_mean

if TYPE_CHECKING:
    from official_trainer.config import Resolved
    from official_trainer.sweeps.plan import Plan

GROUP = "Find settings, and compare runs"
USAGE = "EXPERIMENT|show DIR|best DIR [--space=FILE|'PATH=log(1e-5, 1e-1)'] [--trials=N] [flags] [PATH=VALUE …]"
EXAMPLES = (
    (
        "official-trainer sweep digits_mlp --space=sweep.yaml --trials=6 --model_dir=runs/sweep",
        "six trials, with values drawn as a file says; given again, continue there",
    ),
    ("official-trainer sweep show runs/sweep", "the table of the trials"),
    ("official-trainer sweep best runs/sweep --write=best.yaml", "write the values of the best trial"),
)
NEXT = ("official-trainer eval --model_dir=runs/sweep/trials/0/run", "evaluate one")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `sweep`."""
    flags.add_run_flags(parser)
    parser.group(flags.WHICH_RUN)
    parser.positional("directory", "DIR", "with `show` and `best`: the directory of a sweep")
    parser.group("Sweep", "It needs --model_dir, where `trials/N/run` is the run directory of trial N.")
    add_worker_flags(parser)
    parser.value("write", "FILE", "with `best`: write its values as a file for --config_file")


def add_worker_flags(parser: flags.Parser) -> None:
    """Declares the flags of a sweep that the workers of a job have too."""
    parser.value("space", "SPACE", "YAML file of a sweep, or PATH=log(low, high); may be repeated", repeat=True)
    parser.value("trials", "N", "how many trials are completed or pruned (default: 20, or the whole grid)")
    parser.value("parallel", "N", "how many train at the same time (default: 1)")


def run(arguments: argparse.Namespace) -> int:
    """Runs a sweep, or does what a word asks of one."""
    if importlib.util.find_spec("optuna") is None:
        raise UsageError("sweeps need Optuna: pip install 'official-trainer[sweep]'")
    act = _WORDS.get(arguments.name)
    if act is None and arguments.directory:
        near = did_you_mean(str(arguments.name), _WORDS)
        raise UsageError(f"unexpected argument {arguments.directory!r}: name one experiment{near}")
    if act is not _best and arguments.write is not None:
        raise UsageError("--write is for `official-trainer sweep best DIR`; leave it out")
    if act is None:
        return _sweep(arguments)
    for word in _words_of_run(arguments):
        if word.startswith("--") and word.partition("=")[0] not in _READ_BY_WORDS:
            raise UsageError(f"{word} is not for `official-trainer sweep {arguments.name} DIR`; leave it out")
    directory = os.path.expanduser(arguments.directory or arguments.model_dir or "")
    if not directory:
        raise UsageError(f"name the directory of a sweep: official-trainer sweep {arguments.name} DIR")
    act(directory, arguments)
    return int(ExitCode.DONE)


def _show(directory: str, arguments: argparse.Namespace) -> None:
    """Prints the table of the trials, and which fields matter."""
    from official_trainer.sweeps import results, shown, study

    described = results.identity(directory)
    opened_study = results.opened(directory)
    shown.print_table(described, opened_study, results.best(opened_study))
    if (shares := study.importance(opened_study)) is not None:
        names = shown.names_of(shares)
        listed = ", ".join(f"{names[path]} {share:.0%}" for path, share in shares.items())
        terminal.show(f"what matters: {listed}")


def _best(directory: str, arguments: argparse.Namespace) -> None:
    from official_trainer.sweeps import distributions, results, shown, space

    described = results.identity(directory)
    study = results.opened(directory)
    number = results.best(study)
    if number is None:
        raise UsageError(f"{directory} has no complete trial yet; `official-trainer sweep show {directory}` has all")
    trial = study.get_trials(deepcopy=False)[number]
    fields = [distributions.read(path, written) for path, written in described["sweep"]["space"].items()]
    metric = described["sweep"]["objective"]["metric"]
    head = f"# trial {number} of {directory}, {shown.ending(trial, metric)}"
    text = "\n".join([head, *(f"{path}: {value}" for path, value in space.texts(fields, trial.params))])
    if arguments.write:
        try:
            files.write_text_atomically(os.path.expanduser(arguments.write), f"{text}\n")
        except OSError as error:
            what = f"--write={arguments.write} cannot be written: {files.reason_of(error)}"
            raise UsageError(f"{what}; name another file") from error
    terminal.show(text)


_WORDS = {"show": _show, "best": _best}
_READ_BY_WORDS = ("--model_dir", "--quiet", "--traceback")
"""Flags of the command of a sweep that `show` and `best` take too."""


def worker_command(arguments: argparse.Namespace) -> tuple[list[str], str, float]:
    """Returns what each worker of a job runs that works on a sweep, as `cli/verbs/__init__.py` says.

    Raises:
      UsageError: no directory is named.
      ConfigError: the file of the sweep or the experiment's configuration has a problem.
    """
    plan = _planned(arguments)
    return _words_of_run(arguments), plan.directory, plan.grace_seconds


def _words_of_run(arguments: argparse.Namespace) -> list[str]:
    """Returns the command line of a sweep, without its word."""
    parser = flags.Parser("", usage="", description="")
    flags.add_run_flags(parser)
    add_worker_flags(parser)
    return parser.words(arguments)


def _sweep(arguments: argparse.Namespace) -> int:
    from official_trainer.sweeps import shown, sweep

    plan = _planned(arguments)
    with process.outliving_reader():
        sweep.run(plan, shown.Shown(plan.config.space, plan.objective, quiet=arguments.quiet))
    _show(plan.directory, arguments)
    return int(ExitCode.DONE)


def _planned(arguments: argparse.Namespace) -> Plan:
    """Returns what a sweep does.

    Raises:
      UsageError: no directory is named.
      ConfigError: the file of the sweep, its space or the experiment's configuration has a problem.
    """
    from official_trainer.sweeps import plan

    if not arguments.model_dir:
        raise UsageError("name a directory for the sweep: --model_dir=DIR")
    settings = _settings(arguments)
    job = target.from_flags(arguments, "train_and_eval")
    base = target.base_of(job.experiment, arguments)

    def changed(sets: Sequence[str], **others: object) -> argparse.Namespace:
        """Returns the flags of the sweep, with overrides above everything else."""
        flags_of_run = copy.copy(arguments)
        vars(flags_of_run).update(others, set=[*(arguments.set or ()), *sets])
        return flags_of_run

    def resolve(sets: Sequence[str]) -> Resolved:
        return target.resolve(job.experiment, changed(sets), base=base, warns=False)

    def words(verb: str, model_dir: str, sets: Sequence[str]) -> list[str]:
        parser = flags.Parser(verb, usage="", description="")
        flags.add_run_flags(parser)
        return parser.words(changed(sets, model_dir=model_dir, quiet=False))

    swept = plan.Experiment(name=job.experiment, directory=job.model_dir, resolve=resolve, words=words, gin=job.gin)
    return plan.planned(swept, settings)


def _settings(arguments: argparse.Namespace) -> Resolved:
    """Returns the file of the sweep, below the flags.

    Raises:
      ConfigError: either has a problem.
    """
    from official_trainer import config
    from official_trainer.sweeps.settings import SweepConfig

    config_files = []
    values = []  # of flags: the flag, the path in a `SweepConfig`, the text
    for text in arguments.space or ():
        path, equals, distribution = text.partition("=")
        if equals:
            quoted = path.strip().replace("'", "''")
            values.append(("--space", f"space.'{quoted}'", distribution.strip()))
        else:
            config_files.append(text)
    for name in ("trials", "parallel"):
        if (value := getattr(arguments, name)) is not None:
            values.append((f"--{name}", name, str(value)))
    return config.resolve(SweepConfig(), config_files=config_files, flags=values)
