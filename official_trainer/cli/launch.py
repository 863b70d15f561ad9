"""Start the processes of a distributed run, label what they print, and end them together.

Owns: `launch` and its flags; what is refused before anything starts; what is said at the end.
Does not own: the processes (`launch/`), what each of them does (`train.py`).
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from official_trainer import files, modes
from official_trainer.cli import flags, target, terminal, train
from official_trainer.cli.spelling import UsageError, did_you_mean
from official_trainer.cluster import CHIEF, EVALUATOR, PS, WORKER, Cluster
from official_trainer.errors import ExitCode

if TYPE_CHECKING:
    from official_trainer.config import Resolved
    from official_trainer.launch.spec import JobSpec
    from official_trainer.launch.verdict import Outcome

USAGE = "local [--workers=N] [--ps=N] [flags] [--] --experiment=NAME [flags of train] [PATH=VALUE …]"

_TARGETS = ("local",)
_COLOURS: tuple[terminal.Colour, ...] = ("cyan", "magenta", "green", "yellow", "blue")
_GRACE_MARGIN_SECONDS = 10.0  # processes give up by themselves after runtime.stop_grace_seconds
_JOB_NAME_FIELD = "task.train_data.tf_data_service_job_name"
_STRATEGIES = {PS: "parameter_server", WORKER: "multi_worker_mirrored"}


def add_flags(parser: flags.Parser) -> None:
    """Declares where and how many, and the flags of `train`."""
    parser.positional("target", "local", "where: processes on this machine")
    parser.value("workers", "N", "workers that train together (default: 1)")
    parser.switch("chief", "one more process, which leads the workers; without it worker 0 does")
    parser.value("ps", "N", "parameter servers; the workers then serve a chief, which is added")
    parser.switch("evaluator", "one more process, which evaluates beside them (they: --mode=train)")
    parser.switch("supervise", "start again what ends with exit code 75 or 143")
    parser.value("max_restarts", "N", "with --supervise: give up after so many (default: while checkpoints come)")
    parser.switch("spawn", "start each process anew, instead of forking from one that has imported TensorFlow")
    parser.value("data_workers", "N", "a tf.data service beside them: a dispatcher, and processes that prepare batches")
    parser.value("log_dir", "DIR", "a file there for what each process prints")
    parser.switch("dry_run", "print the processes and start none")
    parser.takes_command = True
    train.add_flags(parser, modes.TRAINING_MODES)


def run(arguments: argparse.Namespace) -> int:
    """Starts the processes and returns the exit code of the run."""
    if arguments.target not in _TARGETS:
        near = did_you_mean(arguments.target, _TARGETS) if arguments.target else ""
        raise UsageError(f"launch where? expected `launch local`, not {arguments.target or 'nothing'}{near}")
    counts = read_counts(arguments)
    limit = _number("max_restarts", arguments.max_restarts, least=0)
    if limit is not None and not arguments.supervise:
        raise UsageError(f"--max_restarts={limit} has no effect without --supervise; add that, or leave it out")
    job, model_dir = _checked_job(arguments, counts)
    from official_trainer.launch import local, output
    from official_trainer.launch.attempt import Options

    if arguments.dry_run:
        _print_plan(job)
        return int(ExitCode.DONE)
    options = Options(supervise=arguments.supervise, max_restarts=limit)
    if arguments.spawn:
        options = Options(supervise=arguments.supervise, max_restarts=limit, preload=())
    log_dir = os.path.expanduser(arguments.log_dir) if arguments.log_dir else None
    printer = output.Printer(sys.stdout, paint=paint_label, log_dir=log_dir, quiet=arguments.quiet)
    outcome = local.launch(job, options, printer, newest=lambda: local.newest_step(model_dir))
    if job.journal is not None:
        shutil.rmtree(job.journal, ignore_errors=True)  # data in memory is in it; one at a URL stays
    report(outcome)
    return outcome.code


def read_counts(arguments: argparse.Namespace) -> dict[str, int]:
    """Returns how many processes of each role are asked for.

    Raises:
      UsageError: a count is none.
    """
    workers = _number("workers", arguments.workers, least=1) or 1
    servers = _number("ps", arguments.ps, least=0) or 0
    return {
        CHIEF: int(arguments.chief or servers > 0),
        WORKER: workers,
        PS: servers,
        EVALUATOR: int(arguments.evaluator),
    }


def _number(name: str, text: str | None, *, least: int) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise UsageError(f"--{name}={text}: expected a number from {least}")
    return int(text)


def _checked_job(arguments: argparse.Namespace, counts: dict[str, int]) -> tuple[JobSpec, str]:
    """Returns what to start, and the run directory, once all is refused that a process would refuse at its start."""
    if arguments.evaluator and arguments.mode is None:
        arguments.mode = "train"
    mode = flags.read_mode(arguments)
    if mode not in modes.TRAINING_MODES:
        raise UsageError(f"--mode={mode} does not train: use `official-trainer train --mode={mode}`, or --evaluator")
    if arguments.evaluator and modes.TRAINING_MODES[mode] != "never":
        raise UsageError(f"--evaluator with --mode={mode}: both would evaluate; use --mode=train, or leave one out")
    ports = use_data_service(arguments, counts)
    experiment, resolved, model_dir, gin = target.from_flags(arguments)
    refuse_strategy(resolved, counts)
    from official_trainer import run as engine
    from official_trainer.data_service import WORK_DIR
    from official_trainer.job import Job, check_ready
    from official_trainer.launch.spec import training_job, with_data_service

    check = check_ready if arguments.dry_run else engine.check_startable  # the latter makes the directory
    startable = Job(
        experiment=experiment,
        resolved=resolved,
        model_dir=model_dir,
        mode=mode,
        allow_config_change=arguments.allow_config_change,
        cluster=_cluster_of(counts),
        gin=gin,
    )
    check(startable)
    parser = flags.Parser("train", usage="", description="")
    train.add_flags(parser, modes.TRAINING_MODES)
    grace = resolved.config.runtime.stop_grace_seconds + _GRACE_MARGIN_SECONDS
    job = training_job(counts, parser.words(arguments), grace_seconds=grace)
    if ports:  # not where an earlier service kept its journal, with addresses that are somebody else's by now
        job = with_data_service(job, ports, files.join(model_dir, WORK_DIR, str(ports[0])))
    return job, model_dir


def _cluster_of(counts: Mapping[str, int]) -> Cluster | None:
    """Returns the cluster as its chief will see it, but for the addresses; None for a process alone."""
    addresses = {role: ("",) * counts[role] for role in (CHIEF, WORKER, PS) if counts[role]}
    if sum(map(len, addresses.values())) == 1:
        return None
    return Cluster(addresses=addresses, role=next(iter(addresses)), index=0, source="launch")


def use_data_service(arguments: argparse.Namespace, counts: Mapping[str, int]) -> list[int]:
    """Has the job read from a tf.data service of its own if one is asked for.

    Args:
      arguments: get the address of the dispatcher, and the name of the job that workers share.
      counts: how many processes of each role.

    Returns:
      Ports of the dispatcher and of each data worker; none without a service.

    Raises:
      UsageError: there is another service, or parameter servers.
    """
    count = _number("data_workers", arguments.data_workers, least=0)
    if not count:
        return []
    if arguments.tf_data_service:
        raise UsageError(
            "--data_workers starts a tf.data service, and --tf_data_service names one; keep one of the two"
        )
    if counts[PS]:
        raise UsageError(
            f"--data_workers={count} with --ps={counts[PS]}: workers of parameter servers read by themselves"
        )
    from official_trainer.launch import local, spec

    ports = local.free_ports(1 + count)
    arguments.tf_data_service = spec.dispatcher_address(ports[0])
    if counts[CHIEF] + counts[WORKER] > 1:  # under a name, so that a word of the user's that names another comes later
        arguments.set = [f"{_JOB_NAME_FIELD}=launch", *(arguments.set or ())]
    return ports


def refuse_strategy(resolved: Resolved, counts: dict[str, int]) -> None:
    """Refuses a strategy under which the processes would not train together.

    Raises:
      UsageError: it is one for a single process.
    """
    if counts[CHIEF] + counts[WORKER] + counts[PS] == 1:
        return
    strategy = resolved.config.runtime.distribution_strategy
    fitting = _STRATEGIES[PS if counts[PS] else WORKER]
    if strategy not in (fitting, "auto"):
        names = [f"{count} {role}{'s' * (count > 1)}" for role, count in counts.items() if role != EVALUATOR and count]
        raise UsageError(
            f"runtime.distribution_strategy={strategy} does not train with {', '.join(names)}; "
            f"set runtime.distribution_strategy={fitting}, or leave it at auto"
        )


def paint_label(label: str, number: int) -> str:
    """Returns a label in the colour of its process; the launcher's own is dim."""
    return terminal.paint(label, "dim" if number < 0 else _COLOURS[number % len(_COLOURS)])


def report(outcome: Outcome) -> None:
    """Says at the end what it was that failed first, as it said it itself."""
    cause, note = outcome.cause, outcome.note
    if cause is None:
        if note:
            terminal.report_error(note)
        return
    if cause.code == ExitCode.PREEMPTED:
        said = "all have ended" if outcome.was_asked else f"{cause.name} {cause.how}"
        said += f"; {note}" if note else "; the same command continues the run"
        terminal.report_error(said, "stopped")
        return
    said = f"{cause.name} {cause.how}" + (f"; {note}" if note else "")
    if cause.last:
        said += "\n".join(["; its last lines:", *(f"    {line}" for line in cause.last)])
    terminal.report_error(said)


def _print_plan(job: JobSpec) -> None:
    from official_trainer.launch import local

    for member in local.place(job):
        environ = " ".join(f"{name}={shlex.quote(value)}" for name, value in member.environ.items())
        before = f"{environ} \\\n  " if environ else ""
        print(f"# {member.name}\n{before}python -m {shlex.join(member.argv)}\n")
