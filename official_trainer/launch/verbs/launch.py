"""Run an experiment in several processes, here or on a cluster.

The target `local` starts them on this machine. For another target the job is shown, and with --submit it is submitted.

Owns: `launch` with its flags and the fields of profiles in its help; a job on this machine, and the message about its
end.
Does not own: how flags become a job (`launch/job_spec.py`), jobs of schedulers (`launch/submit.py`), processes of this
machine (`processes/`).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from official_trainer.cli import flags, help_text, process, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.cli.verbs import train
from official_trainer.errors import ExitCode
from official_trainer.launch import job_spec
from official_trainer.nearest import did_you_mean, nearest

if TYPE_CHECKING:
    from official_trainer.launch.profile import Profile
    from official_trainer.launch.spec import JobSpec
    from official_trainer.processes.job import Member
    from official_trainer.processes.verdict import Outcome

GROUP = "Use several processes or machines"
USAGE = (
    "TARGET [--profile=FILE] [--submit] [--workers=N] [flags] [--] [train|sweep|predict] --experiment=NAME [its flags] "
    "[PATH=VALUE …]"
)
EXAMPLES = (
    ("official-trainer launch local --workers=2 -- --experiment=digits_cnn", "two workers on this machine"),
    ("official-trainer launch local --workers=2 --dry_run -- digits_cnn", "print their commands only"),
    (
        "official-trainer launch slurm -- digits_cnn --model_dir=/shared/runs/digits",
        "show a job for Slurm; `--submit` before the `--` submits it",
    ),
    (
        "official-trainer launch slurm --profile=sweep -- sweep digits_mlp "
        "--space='task.model.mlp.dropout=float(0, 0.5)' --model_dir=/shared/runs/sweep",
        "show an array of workers that share a sweep",
    ),
    (
        "official-trainer launch kubernetes -- digits_cnn --model_dir=/runs/digits",
        "show a JobSet for Kubernetes; /runs is a volume of the profile",
    ),
    (
        "official-trainer launch tpu -- digits_cnn --model_dir=gs://my-bucket/digits",
        "show a job for a Cloud TPU slice (experimental: never run there)",
    ),
)
NEXT = ("official-trainer job status digits-cnn", "the state of a submitted job")

LOCAL = "local"
_ELSEWHERE = {
    "skypilot": "SkyPilot starts tasks itself, and this package finds its place in them. Write your task into "
    "launch/skypilot.yaml, and start it with: sky jobs launch --env MODEL_DIR=gs://BUCKET/RUN launch/skypilot.yaml"
}
_COLOURS: tuple[terminal.Colour, ...] = ("cyan", "magenta", "green", "yellow", "blue")
_NOT_HERE = ("name", "resources", "ps_resources")


def add_flags(parser: flags.Parser) -> None:
    """Declares where the job runs, how many processes it has, and the flags of `train` and `sweep`."""
    from official_trainer.launch import targets

    parser.group("Target of the job")
    names = (LOCAL, *targets.names())
    parser.positional("target", "TARGET", f"one of {', '.join(names)}")
    parser.value(
        "profile",
        "FILE",
        "YAML file of the job's settings, or the name of one in launch/ (default: launch/TARGET.yaml, if there is one)",
    )
    parser.group("Processes of the job, over the profile")
    parser.value("workers", "N", "workers that train together (default: 1)")
    parser.switch("chief", "add a process that leads the workers (default: worker 0 leads)", default=None)
    parser.value("ps", "N", "parameter servers; a chief is added, which the workers serve")
    parser.switch("evaluator", "add a process that evaluates; the others get --mode=train", default=None)
    parser.value("max_restarts", "N", "the most restarts; `launch local`: with --supervise")
    parser.group("Only with the other targets than local")
    parser.switch("submit", "submit the job (default: only show it)")
    parser.group("Only with `launch local`")
    parser.switch("dry_run", "print the commands of the processes and start none")
    parser.switch("supervise", "restart the job after exit code 75 or 143")
    parser.value("log_dir", "DIR", "write the output of each process to a file there")
    sweep = job_spec.load_sweep()
    parser.accept_command("train", *([] if sweep is None else [job_spec.SWEEP]), "predict")
    train.add_flags(parser, job_spec.MODES)
    if sweep is not None:
        parser.group(f"Only with `-- {job_spec.SWEEP}`")
        sweep.add_worker_flags(parser)


def more_help(arguments: argparse.Namespace) -> Iterator[str]:
    """Yields the fields of a profile for the target that is named with `--help`."""
    from official_trainer import config
    from official_trainer.launch import targets
    from official_trainer.launch.profile import Profile

    name = arguments.target
    if name not in (LOCAL, *targets.names()):
        return
    settings = config.settings(Profile() if name == LOCAL else targets.get(name).profile_class())
    idle = _NOT_HERE if name == LOCAL else ()
    fields = (setting for setting in settings if setting.path.partition(".")[0] not in idle)
    yield from help_text.fields_help(f"Fields of a profile, launch/{name}.yaml, with their defaults", fields)


def run(arguments: argparse.Namespace) -> int:
    """Starts the processes and returns the exit code of the run; for a scheduler, shows the job or submits it."""
    from official_trainer.launch import targets

    names = (LOCAL, *targets.names())
    if (name := arguments.target) not in names:
        if name in _ELSEWHERE:
            raise UsageError(f"launch {name}: {_ELSEWHERE[name]}")
        near = nearest(name or "", names) or [LOCAL]
        given = f", not {name}{did_you_mean(name, names)}" if name else ""
        what = f"launch TARGET: expected one of {', '.join(names)}{given}"
        raise UsageError(f"{what}\ntry: official-trainer launch {near[0]} --help")
    job_spec.refuse_idle(arguments)
    if arguments.target == LOCAL:
        if arguments.command == job_spec.SWEEP:
            fix = "`official-trainer sweep` itself runs one here, with --parallel=N trials at the same time"
            raise UsageError(f"launch local does not run a sweep; {fix}")
        return _run_here(arguments)
    from official_trainer.launch import submit

    return submit.run(arguments, targets.get(arguments.target))


def _run_here(arguments: argparse.Namespace) -> int:
    from official_trainer.launch.profile import Profile
    from official_trainer.processes import forked, local, output
    from official_trainer.processes.attempt import Options

    profile = job_spec.read_profile(arguments, Profile(), starts=not arguments.dry_run)
    limit = _limit_here(arguments, profile)
    job = _job_here(arguments, profile)
    if arguments.dry_run:
        _print_commands(local.members_here(job))
        return int(ExitCode.DONE)
    options = Options(
        newest_step=job.newest_step,
        supervise=arguments.supervise,
        max_restarts=limit,
    )
    forked.preload()
    log_dir = os.path.expanduser(arguments.log_dir or "")
    with process.outliving_reader():
        printer = output.Printer(
            sys.stdout,
            paint=paint_label,
            columns=terminal.width,
            log_dir=log_dir,
            quiet=arguments.quiet,
        )
        outcome = local.launch(job, options, printer)
    report(outcome)
    return outcome.code


def _job_here(arguments: argparse.Namespace, profile: Profile) -> JobSpec:
    """Returns the job on this machine, checked."""
    from official_trainer.runs import run as engine
    from official_trainer.runs.job import check_ready

    mode = job_spec.read_mode(arguments, profile)
    prediction = flags.read_prediction(arguments)
    starting = functools.partial(engine.check_startable, prediction=prediction)
    check = check_ready if arguments.dry_run else starting  # the latter makes the directory
    job = job_spec.check_job(arguments, profile, mode, check)
    roles = [dataclasses.replace(role, environ=profile.environ) for role in job.roles]
    return dataclasses.replace(job, roles=tuple(roles))


def _print_commands(members: Sequence[Member]) -> None:
    """Prints what starts each process of a job by hand."""
    for member in members:
        environ = " ".join(f"{name}={shlex.quote(value)}" for name, value in member.environ.items())
        before = f"{environ} \\\n  " if environ else ""
        print(f"# {member.name}\n{before}python -m {shlex.join(member.argv)}\n")


def _limit_here(arguments: argparse.Namespace, profile: Profile) -> int | None:
    """Returns how often a job on this machine is restarted at most; refuses settings without effect here."""
    if arguments.submit:
        raise UsageError("--submit: `launch local` starts the processes at once; leave it out")
    default = type(profile)()
    if idle := [name for name in _NOT_HERE if getattr(profile, name) != getattr(default, name)]:
        what = f"{' and '.join(idle)}: no effect with `launch local`; remove it"
        raise UsageError(f"--profile={arguments.profile}: {what}")
    is_set = arguments.max_restarts is not None or profile.max_restarts != default.max_restarts
    if is_set and not arguments.supervise:
        given = f"--max_restarts={profile.max_restarts}"
        raise UsageError(f"{given} has no effect without --supervise; add that, or leave it out")
    return profile.max_restarts if is_set or arguments.profile else None


def paint_label(label: str, number: int) -> str:
    """Returns a label in the colour of its process; the launcher's own is dim."""
    return terminal.paint(label, "dim" if number < 0 else _COLOURS[number % len(_COLOURS)])


def report(outcome: Outcome) -> None:
    """Reports how the job ended: the process that failed first, with its last lines of output."""
    cause, note = outcome.cause, outcome.note
    if cause is None:
        if note:
            terminal.report_error(note)
        return
    if cause.code == ExitCode.PREEMPTED:
        message = "all processes have ended" if outcome.was_asked else f"{cause.name} {cause.how}"
        message += f"; {note}" if note else "; the same command continues the run"
        terminal.report_error(message, "stopped")
        return
    message = f"{cause.name} {cause.how}" + (f"; {note}" if note else "")
    if cause.last:
        message += "\n".join(["; its last lines:", *(f"    {line}" for line in cause.last)])
    terminal.report_error(message)
