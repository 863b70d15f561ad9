"""Train an experiment many times, with values drawn from a space.

The same command continues a sweep that was stopped or killed. With a word in place of the experiment: `sweep show DIR`
prints its table, `sweep best DIR` the values of its best trial, `sweep retry DIR` has trials run again, and
`sweep stop DIR` ends it until the next command.

Owns: `sweep`, its flags and these words.
Does not own: the sweep (`sweeps/`), the run of a trial (`official-trainer train`), the table (`sweeps/table.py`).
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from official_trainer import files
from official_trainer.cli import flags, process, target, terminal, verbs
from official_trainer.cli.parser import UsageError
from official_trainer.errors import ExitCode
from official_trainer.shown import passwords_in, without_secrets

if TYPE_CHECKING:
    from official_trainer.config import Resolved
    from official_trainer.sweeps.driver import Plan
    from official_trainer.sweeps.observer import Observer

USAGE = (
    "EXPERIMENT|show DIR|best DIR|retry DIR [N …]|stop DIR [--space=FILE|'PATH=log(1e-5, 1e-1)'] [--trials=N] [flags] "
    "[PATH=VALUE …]"
)
EXAMPLES = (
    (
        "official-trainer sweep digits_mlp --space=sweep.yaml --trials=6 --model_dir=runs/sweep",
        "six trials, with values drawn as a file says; given again, continue there",
    ),
    ("official-trainer sweep show runs/sweep --sort=best", "the table of the trials, the best first"),
    ("official-trainer sweep best runs/sweep --write=best.yaml", "write the values of the best trial"),
)
_ORDERS = ("trial", "best")
_WIDTH = 80  # of the table, where the output is no terminal
NEXT = ("official-trainer eval --model_dir=runs/sweep/trials/0/run", "evaluate one")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `sweep`."""
    flags.add_run_flags(parser)
    parser.group(flags.WHICH_RUN)
    parser.positional("directory", "DIR", "with `show`, `best`, `retry` and `stop`: the directory of a sweep")
    parser.positionals("numbers", "N", "with `retry`: trials that run again (default: those that failed)")
    parser.group("Sweep", "It needs --model_dir, where `trials/N/run` is the run directory of trial N.")
    add_worker_flags(parser)
    parser.switch("join", "work on the sweep beside other processes that do, on this machine or others")
    parser.value("sort", "COLUMN", "with `show`: one of trial, best (default: trial)", choices=_ORDERS)
    parser.value("trial", "N", "with `best`: the trial to take (default: the best one)")
    parser.value(
        "write", "FILE", "with `best`: write its values as a file for --config_file; of a population, a script"
    )


def add_worker_flags(parser: flags.Parser) -> None:
    """Declares the flags of a sweep that the workers of a job have too."""
    parser.value("space", "SPACE", "YAML file of a sweep, or PATH=log(low, high); may be repeated", repeat=True)
    parser.value("trials", "N", "how many trials are completed or pruned (default: 20, or the whole grid)")
    parser.value("parallel", "N", "how many train at the same time (default: 1)")
    parser.value("storage", "URL", "database that gets a study of the sweep; env:NAME takes it from a variable")


def run(arguments: argparse.Namespace) -> int:
    """Runs a sweep, or does what a word asks of one."""
    act = _WORDS.get(arguments.name)
    if act is None and arguments.directory:
        raise UsageError(f"unexpected argument {arguments.directory!r}: name one experiment")
    for flag, (name, is_in_use) in _OF_WORDS.items():
        if name != arguments.name and is_in_use(arguments):
            raise UsageError(f"{flag} is for `official-trainer sweep {name} DIR`; leave it out")
    if act is None:
        return _sweep(arguments)
    directory = os.path.expanduser(arguments.directory or arguments.model_dir or "")
    if not directory:
        raise UsageError(f"name the directory of a sweep: official-trainer sweep {arguments.name} DIR")
    act(directory, arguments)
    return int(ExitCode.DONE)


def _show(directory: str, arguments: argparse.Namespace) -> None:
    _print_table(directory, by_rank=arguments.sort == "best")


def _print_table(directory: str, *, by_rank: bool = False) -> None:
    from official_trainer.sweeps import results
    from official_trainer.sweeps import table as sweep_table

    try:
        found, content = results.write(directory)
    except OSError:  # a folder that is only read
        found = results.read(directory, with_runs=True)
        content = results.as_json(found)
    width = terminal.width() or _WIDTH
    terminal.show("\n".join(sweep_table.lines(found, content, width, by_rank=by_rank)))


def _best(directory: str, arguments: argparse.Namespace) -> None:
    from official_trainer.sweeps import results
    from official_trainer.sweeps import table as sweep_table
    from official_trainer.sweeps.trial import describe

    found = results.read(directory, with_runs=True)
    if arguments.trial is not None:
        chosen = found.get(_number(arguments.trial, "--trial=")).trial
    elif not found.best:
        raise UsageError(f"{directory} has no complete trial yet; `official-trainer sweep show {directory}` has all")
    elif len(found.best) > 1 and arguments.write:
        numbers = ", ".join(str(each.number) for each in found.best)
        raise UsageError(f"of several metrics, trials {numbers} are the best; choose one with --trial=N")
    elif len(found.best) > 1:  # none of them beats another
        front = {each.number for each in found.best}
        only = dataclasses.replace(found, results=tuple(each for each in found.results if each.trial.number in front))
        table = sweep_table.table(only, terminal.width() or _WIDTH, by_rank=True)
        end = "each of these is the best in its way; --trial=N prints the values of one"
        terminal.show("\n".join([*table, "", end]))
        return
    else:
        (chosen,) = found.best
    state = describe(chosen, found.objective.metric) if chosen.state else "not done"
    head = f"# trial {chosen.number} of {directory}, {state.partition(chr(10))[0]}"
    count = found.get(chosen.number).cores
    on = f"# on {count} core{'' if count == 1 else 's'}; on another number, its last bits may differ"
    text = "\n".join([head, *([] if count is None else [on]), *found.again(chosen)])
    if arguments.write:
        files.write_text_atomically(os.path.expanduser(arguments.write), f"{text}\n")
    terminal.show(text)


def _retry(directory: str, arguments: argparse.Namespace) -> None:
    from official_trainer.sweeps import requests

    numbers = requests.retry(directory, [_number(word) for word in arguments.numbers])
    if numbers:
        listed = ", ".join(map(str, numbers))
        terminal.show(f"the command of the sweep runs again: {listed}; with the values that they had")
    else:
        terminal.show(f"no trial in {directory} has failed; name the numbers of those that are to run again")


def _stop(directory: str, arguments: argparse.Namespace) -> None:
    from official_trainer.sweeps import requests

    if requests.stop(directory, terminal.show):
        terminal.show("the sweep is stopped, its trials have saved; the command that began it continues it")
    else:
        terminal.show(f"no process runs the sweep in {directory}; the command that began it continues it")


def _number(word: str, flag: str = "") -> int:
    if not (word.isascii() and word.isdecimal()):
        raise UsageError(f"{flag}{word}: expected the number of a trial, such as 3")
    return int(word)


_WORDS = {"show": _show, "best": _best, "retry": _retry, "stop": _stop}
_OF_WORDS: dict[str, tuple[str, Callable[[argparse.Namespace], object]]] = {
    "--sort": ("show", lambda arguments: arguments.sort),
    "--trial": ("best", lambda arguments: arguments.trial),
    "--write": ("best", lambda arguments: arguments.write),
    "N": ("retry", lambda arguments: arguments.numbers),
}
"""What only one of the words takes."""


def worker_command(arguments: argparse.Namespace) -> verbs.WorkerCommand:
    """Returns what each worker of a job runs that works on a sweep.

    Raises:
      UsageError: the job would contain a password.
      ConfigError: the file of the sweep or the experiment's configuration has a problem.
    """
    arguments.join = True
    plan = _planned(arguments)
    if passwords_in(plan.config.storage):
        raise UsageError(
            f"storage={without_secrets(plan.config.storage)} has a password, which the files of the job would show; "
            "write storage=env:NAME, and give each worker the URL in the environment variable NAME"
        )
    parser = flags.Parser("", usage="", description="")
    flags.add_run_flags(parser)
    add_worker_flags(parser)
    return verbs.WorkerCommand([*parser.words(arguments), "--join"], plan.directory, plan.grace_seconds)


def _sweep(arguments: argparse.Namespace) -> int:
    from official_trainer.sweeps import sweep

    plan = _planned(arguments)
    with process.outliving_reader():
        sweep.run(plan, _observer(plan, quiet=arguments.quiet))
    _print_table(plan.directory)
    return int(ExitCode.DONE)


def _planned(arguments: argparse.Namespace) -> Plan:
    """Returns what a sweep does.

    Raises:
      UsageError: no directory is named.
      ConfigError: the file of the sweep, its space or the experiment's configuration has a problem.
    """
    from official_trainer.sweeps import subject

    if not arguments.model_dir:
        raise UsageError("name a directory for the sweep: --model_dir=DIR")
    settings = _settings(arguments)
    experiment, _, directory, gin = target.from_flags(arguments)
    base = target.base_of(experiment, arguments)

    def changed(sets: Sequence[str], **others: object) -> argparse.Namespace:
        """Returns the flags of the sweep, with overrides above everything else."""
        found = copy.copy(arguments)
        vars(found).update(others, set=[*(arguments.set or ()), *sets])
        return found

    def resolve(sets: Sequence[str]) -> Resolved:
        return target.resolve(experiment, changed(sets), base=base, warns=False)

    def words(verb: str, model_dir: str, sets: Sequence[str]) -> list[str]:
        parser = flags.Parser(verb, usage="", description="")
        flags.add_run_flags(parser)
        return parser.words(changed(sets, model_dir=model_dir, quiet=False))

    swept = subject.Experiment(name=experiment, directory=directory, resolve=resolve, words=words, gin=gin)
    return subject.planned(swept, settings, directory, joins=arguments.join)


def _observer(plan: Plan, *, quiet: bool) -> Observer:
    """Returns what shows a sweep: a table on a terminal, lines elsewhere."""
    from official_trainer.sweeps.live_table import LiveTable, Progress
    from official_trainer.sweeps.observer import Observer, PlainLines, names_of
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
    quoted = "space.'{}'"  # where the distribution of a field is in a `SweepConfig`
    inline = [
        ("--space", quoted.format(path.strip().replace("'", "''")), text.strip())
        for _, (path, equals, text) in given
        if equals
    ]
    names = ("trials", "parallel", "storage")
    values = [(f"--{name}", name, str(getattr(arguments, name))) for name in names]
    return config.resolve(
        SweepConfig(),
        config_files=[text for text, (_, equals, _) in given if not equals],
        flags=[*inline, *(each for each in values if each[2] != "None")],
    )
