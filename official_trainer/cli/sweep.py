"""Train an experiment many times, with values drawn from a space.

The same command continues a sweep that was stopped or killed. `sweep show DIR` prints its table, `sweep best DIR` the
values of its best trial.

Owns: `sweep` and its flags.
Does not own: the sweep (`sweeps/`), the run of a trial (`official-trainer train`).
"""

from __future__ import annotations

import argparse
import copy
import functools
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from official_trainer import files
from official_trainer.cli import flags, process, target, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.errors import ExitCode

if TYPE_CHECKING:
    from official_trainer.config import Resolved
    from official_trainer.sweeps.driver import Plan
    from official_trainer.sweeps.observer import Observer
    from official_trainer.sweeps.subject import Planned

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
    add_sweep_flags(parser)
    parser.switch("join", "work on the sweep beside other processes that do, on this machine or others")
    parser.value(
        "write", "FILE", "with `best`: write its values as a file for --config_file; of a population, a script"
    )


def add_sweep_flags(parser: flags.Parser) -> None:
    """Declares the flags of a sweep that the workers of a job have too."""
    parser.value("space", "SPACE", "YAML file of a sweep, or PATH=log(low, high); may be repeated", repeat=True)
    parser.value("trials", "N", "how many trials are completed or pruned (default: 20, or the whole grid)")
    parser.value("parallel", "N", "how many train at the same time (default: 1)")


def run(arguments: argparse.Namespace) -> int:
    """Runs a sweep, or shows one."""
    if arguments.name in ("show", "best"):
        return _show(arguments)
    if arguments.directory:
        raise UsageError(f"unexpected argument {arguments.directory!r}: name one experiment")
    if arguments.write:
        raise UsageError("--write is for `official-trainer sweep best DIR`; leave it out")
    return _sweep(arguments)


def _show(arguments: argparse.Namespace) -> int:
    from official_trainer.sweeps import sweep

    directory = os.path.expanduser(arguments.directory or arguments.model_dir or "")
    if not directory:
        raise UsageError(f"name the directory of a sweep: official-trainer sweep {arguments.name} DIR")
    if arguments.name == "show":
        if arguments.write:
            raise UsageError("--write is for `official-trainer sweep best DIR`; leave it out")
        terminal.show("\n".join(terminal.columns(sweep.table(directory))))
        return int(ExitCode.DONE)
    from official_trainer.sweeps.driver import describe

    found = sweep.best_of(directory)
    if not found:
        raise UsageError(f"{directory} has no complete trial yet; `official-trainer sweep show {directory}` has all")
    if len(found) > 1:
        numbers = ", ".join(str(each.number) for each in found)
        raise UsageError(f"trials {numbers} are the best; `official-trainer sweep show {directory}` has their results")
    (best,) = found
    head = f"# trial {best.number} of {directory}, {describe(best, 'value')}"
    text = "\n".join([head, *sweep.again(directory, best)])
    if arguments.write:
        files.write_text_atomically(os.path.expanduser(arguments.write), f"{text}\n")
    terminal.show(text)
    return int(ExitCode.DONE)


def _sweep(arguments: argparse.Namespace) -> int:
    from official_trainer.sweeps import sweep

    planned = plan_of(arguments)
    with process.outliving_reader():
        sweep.run(*planned, _observer(planned.plan, quiet=arguments.quiet))
    terminal.show("\n".join(terminal.columns(sweep.table(planned.plan.directory))))
    return int(ExitCode.DONE)


def plan_of(arguments: argparse.Namespace) -> Planned:
    """Returns what a sweep does, what draws its values, and what stays the same while it lasts.

    Raises:
      UsageError: no directory is named.
      ConfigError: the file of the sweep, its space or the experiment's configuration has a problem.
    """
    from official_trainer.sweeps import subject

    if not arguments.model_dir:
        raise UsageError("name a directory for the sweep: --model_dir=DIR")
    settings = _settings(arguments)
    experiment, _, directory, gin = target.from_flags(arguments)
    swept = subject.Experiment(
        name=experiment,
        directory=directory,
        resolve=functools.partial(_resolved, experiment, arguments),
        words=functools.partial(_words, arguments),
        gin=gin,
    )
    return subject.planned(swept, settings, directory, joins=arguments.join)


def _observer(plan: Plan, *, quiet: bool) -> Observer:
    """Returns what shows a sweep: a table on a terminal, lines elsewhere."""
    from official_trainer.cli.live_table import LiveTable
    from official_trainer.sweeps.observer import Observer, PlainLines, names_of
    from official_trainer.sweeps.progress import Progress
    from official_trainer.tracking.console import can_redraw

    names = names_of(plan.config.space)
    if quiet:
        return Observer()
    if not can_redraw(sys.stdout):
        return PlainLines(names, terminal.show)
    asked, parallel = plan.course.total, plan.config.parallel
    size = plan.config.population.size if plan.config.population is not None else None
    progress = Progress(plan.directory, asked=asked, parallel=parallel, objective=plan.objective, size=size)
    return LiveTable(progress, names, sys.stdout)


def _settings(arguments: argparse.Namespace) -> Resolved:
    """Returns the file of the sweep, below the flags.

    Raises:
      ConfigError: either has a problem.
    """
    from official_trainer import config
    from official_trainer.sweeps.settings import SweepConfig

    given = [(text, text.partition("=")) for text in arguments.space or ()]
    inline = [("--space", _place(path.strip()), text.strip()) for _, (path, equals, text) in given if equals]
    numbers = [(f"--{name}", name, str(getattr(arguments, name))) for name in ("trials", "parallel")]
    return config.resolve(
        SweepConfig(),
        config_files=[text for text, (_, equals, _) in given if not equals],
        flags=[*inline, *(each for each in numbers if each[2] != "None")],
    )


def _place(path: str) -> str:
    """Returns where the distribution of a field is in a `SweepConfig`."""
    return "space.'" + path.replace("'", "''") + "'"


def _resolved(experiment: str, arguments: argparse.Namespace, sets: Sequence[str]) -> Resolved:
    """Returns the experiment's config with overrides above everything else."""
    changed = copy.copy(arguments)
    changed.set = [*(arguments.set or ()), *sets]
    return target.resolve(experiment, changed, warns=False)


def _words(arguments: argparse.Namespace, verb: str, model_dir: str, sets: Sequence[str]) -> list[str]:
    """Returns the words after a verb: those of the sweep, with overrides."""
    parser = flags.Parser(verb, usage="", description="")
    flags.add_run_flags(parser)
    changed = copy.copy(arguments)
    changed.model_dir, changed.quiet = model_dir, False
    changed.set = [*(arguments.set or ()), *sets]
    return parser.words(changed)
