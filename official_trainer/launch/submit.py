"""Jobs for a scheduler, as `launch TARGET` shows and submits them.

Owns: submitting a job, in this order: check its flags and processes, plan the copy of its code, refuse what the
scheduler would refuse, render it; then, as the only command for this job: see that the last one of its name has ended,
copy the code, have the files written, the commands run and the job recorded, say so. Without `--submit` the rendered
job is shown.
Does not own: `launch` (`verbs/launch.py`), the checks of processes (`job_spec.py`), which files and commands a
scheduler gets (`targets/`), running these (`schedulers.py`), the record (`launches.py`), the copy (`snapshot.py`),
submitted jobs (`verbs/job.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import glob
import os
import shlex
import sys
from collections.abc import Iterator
from typing import Any

from official_trainer import files
from official_trainer.cli import flags, target, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.distributed.cluster import PS
from official_trainer.errors import ExitCode
from official_trainer.launch import job_spec, launches, schedulers, snapshot, targets
from official_trainer.launch.launches import Record
from official_trainer.launch.schedulers import SchedulerError
from official_trainer.launch.spec import JobSpec, is_in, with_code
from official_trainer.launch.target import SAME, Phase, Rendered, Target
from official_trainer.runs.job import check_ready
from official_trainer.runs.resume import config_changes
from official_trainer.runs.run import check_startable
from official_trainer.shown import first_few, secret_in, without_secrets
from official_trainer.tracking.code_files import Snapshot

_ONLY_HERE = ("supervise", "spawn", "isolated", "data_workers", "log_dir")
_CALLED = {PS: "parameter server"}


def run(arguments: argparse.Namespace, target_class: type[Target[Any]]) -> int:
    """Shows the job's files and commands, or submits it.

    Raises:
      UsageError: a flag has no effect, or the scheduler would not run the job as intended.
      SchedulerError: the scheduler's program is missing, or fails.
    """
    if given := [f"--{name}" for name in _ONLY_HERE if getattr(arguments, name)]:
        raise UsageError(f"{' and '.join(given)} would have no effect with `launch {target_class.name}`; leave it out")
    if arguments.submit and arguments.dry_run:
        raise UsageError("--submit with --dry_run: keep one of the two; without --submit, the job is only shown")
    scheduler, job = checked(arguments, target_class)
    if arguments.submit:
        ask = functools.partial(schedulers.run_detached, scheduler, folder=job.cwd, seconds=schedulers.ANSWER_SECONDS)
        scheduler = scheduler.pinned(ask)
    folder = folder_of(arguments, job.name)
    job = _with_code(arguments, scheduler, job, folder)
    if problems := [*_unwritable(job, scheduler.profile.secrets_go), *scheduler.problems(job)]:
        text = "\n".join([f"launch {scheduler.name}: this job cannot be run as it is", *problems])
        raise UsageError(without_secrets(text))
    rendered = scheduler.render(job)
    for warning in scheduler.warnings(job):
        terminal.report_error(warning, "warning", "yellow")
    if not arguments.submit:
        _show(scheduler, job, rendered, folder)
        return int(ExitCode.DONE)
    record = Record(
        target=scheduler.name,
        name=job.name,
        id=job.name,
        model_dir=job.model_dir,
        submitted_at=launches.now(),
        argv=arguments.argv,
        submit=rendered.submit,
        files=tuple(rendered.files),
        profile=scheduler.profile.as_dict(),
        is_sweep=job.is_sweep,
        code="" if job.code is None else job.code.path,
    )
    with launches.alone(folder):
        if (last := launches.read(folder)) is not None:  # this job takes the place of one of its name that has ended
            before = launches.target_of(last)
            refuse_unless_ended(folder, before, last, "and another --model_dir makes another job")
            if before.query(()) == scheduler.query(()):  # in the same cluster, for example, which may still have it
                rendered = dataclasses.replace(rendered, submit=scheduler.resume(last.id, rendered.submit))
        with _taken(job.code, is_packed=scheduler.code_as(job.model_dir) == "archive"):
            try:
                submitted = schedulers.submit(folder, scheduler, rendered, record)
            except KeyboardInterrupt:
                what = f"{scheduler.name} may have {record.name} all the same; look there, and cancel it"
                terminal.report_error(what, "note", "dim")
                raise
    report_submitted(submitted, folder, scheduler)
    if job.code is not None:
        print(f"it runs the code as it is now, of which {os.path.relpath(job.code.path)} is a copy")
    return int(ExitCode.DONE)


def _with_code(arguments: argparse.Namespace, scheduler: Target[Any], job: JobSpec, folder: str) -> JobSpec:
    """Returns the job with the snapshot that it will run, if its target takes one and it has a workspace.

    Raises:
      UsageError: a path would lead elsewhere from the copy.
      ConfigChangeError: the job would continue a run whose newest checkpoint other code has saved.
    """
    workspace = target.workspace(arguments)
    form = scheduler.code_as(job.model_dir)
    if workspace is None or form is None or not is_in(job.cwd, str(workspace)):
        return job
    code = snapshot.planned(str(workspace), folder)
    _check_paths(job, code, is_archive=form == "archive")
    if not job.is_sweep and arguments.mode != "predict" and os.path.isdir(job.model_dir):
        config_changes.check_code(job.model_dir, code, allow_config_change=arguments.allow_config_change)
    return with_code(job, code, code.path if form == "folder" else "")


def _check_paths(job: JobSpec, code: Snapshot, *, is_archive: bool) -> None:
    """Refuses relative paths that lead elsewhere from a snapshot, and warns of what an archive does not hold."""
    relative = [(field, path) for field, path in job.paths if path[0] not in "/~"]
    outside = [f"{field}={path}" for field, path in relative if not is_in(os.path.join(job.cwd, path), code.workspace)]
    if outside:
        what = "leads out of the workspace, and the job runs in a copy of it, elsewhere"
        raise UsageError(f"{first_few(outside)} {what}; use an absolute path, or a URL")
    if not is_archive:
        return
    if job.cwd != code.workspace:
        what = "the processes of the job start at the top of the code, where relative paths mean something else"
        raise UsageError(f"{what}; run this command in {code.workspace}, not in {job.cwd}")
    absent = []  # files or a folder in the current directory, of which none is code
    for field, path in relative:
        found = [os.path.normpath(each) for each in glob.glob(path)]
        if found and not any(each == name or each.startswith(f"{name}/") for name in found for each in code.sums):
            absent.append(f"{field}={path}")
    if lost := [*code.links_out, *absent]:
        what = "no code (git ignores it, or it is a link out of the workspace), so the machines of the job will lack it"
        terminal.report_error(f"{first_few(lost)}: {what}", "warning", "yellow")


@contextlib.contextmanager
def _taken(code: Snapshot | None, *, is_packed: bool) -> Iterator[None]:
    """Makes a snapshot for a `with` block that submits its job; removes what it has made if that fails.

    Args:
      code: as it was planned; None makes nothing.
      is_packed: whether the scheduler gets an archive of it.

    Raises:
      UsageError: a file was edited since it was planned.
    """
    if code is None:
        yield
        return
    folder = os.path.dirname(code.path)
    before = os.listdir(folder) if os.path.isdir(folder) else []  # a job whose record is lost may run there
    taken = snapshot.take(code.workspace, folder)
    try:
        if taken.path != code.path:
            changed = first_few(code.changed(taken.sums))
            raise UsageError(f"{changed} changed while the job was being submitted; submit it again")
        if is_packed:
            snapshot.pack(code)
        yield
    except BaseException:
        if launches.read(folder) is None:  # else `job resume` may need it
            for path in {taken.path, taken.archive} - {os.path.join(folder, name) for name in before}:
                files.remove(path)
            launches.remove_if_empty(folder)
        raise


def folder_of(arguments: argparse.Namespace, name: str) -> str:
    """Returns the folder of a job."""
    return os.path.join(root(arguments), launches.FOLDER, name)


def root(arguments: argparse.Namespace) -> str:
    """Returns the directory of `launches/`: the workspace, or else the current directory."""
    return str(target.workspace(arguments) or os.getcwd())


def report_submitted(record: Record, folder: str, scheduler: Target[Any]) -> None:
    """Prints the name of a submitted job, and the commands to manage it."""
    print(f"{record.name} was submitted to {record.target} as {record.id}; its files are in {os.path.relpath(folder)}")
    if scheduler.is_supervised:
        print("while this runs, a slice that is taken away is replaced, and it is deleted once the job has ended:")
        print(f"  official-trainer job supervise {record.name}")
        print("and at any time:")
    for what in ("status", "logs --follow", "cancel"):
        verb, _, flag = what.partition(" ")
        print("  official-trainer job " + " ".join(filter(None, (verb, record.name, flag))))


def checked(arguments: argparse.Namespace, target_class: type[Target[Any]]) -> tuple[Target[Any], JobSpec]:
    """Returns the target and the job, once it has passed the checks of its processes.

    Raises:
      UsageError: a flag has no effect here, or the target cannot run such a job.
      ConfigError: the profile or the experiment's configuration has a problem.
    """
    profile = job_spec.read_profile(arguments, target_class.profile_class(), starts=arguments.submit)
    experiment = target.named_experiment(arguments)
    model_dir = target.model_dir_of(experiment, arguments)
    arguments.model_dir = files.absolute(model_dir)
    is_sweep = arguments.command not in ("train", "predict")
    scheduler = target_class(profile, is_sweep=is_sweep)
    if is_sweep:
        if not scheduler.runs_sweeps:
            known = " and ".join(target.name for target in targets.importable() if target.runs_sweeps)
            fix = f"`official-trainer {arguments.command}` runs one on this machine"
            raise UsageError(f"launch {scheduler.name} cannot run a {arguments.command}; {known} can, and {fix}")
        job = job_spec.check_shared(arguments, scheduler.profile)
    else:
        mode = job_spec.read_mode(arguments, scheduler.profile)
        prediction = flags.read_prediction(arguments)
        if prediction.output_dir:  # only in mode predict
            arguments.output = files.absolute(prediction.output_dir)
            if not is_in(arguments.output, arguments.model_dir):
                what = f"--output={arguments.output} is not below --model_dir, which the processes of a job share"
                raise UsageError(f"{what}; name a folder below {arguments.model_dir}, or leave it out")
        # The check has the directory's content if this machine sees it: a missing one is not created here, because the
        # job may run elsewhere, and reading a URL would need TensorFlow.
        is_unseen = files.is_url(arguments.model_dir) or not os.path.isdir(arguments.model_dir)
        check = check_ready if is_unseen else functools.partial(check_startable, prediction=prediction)
        job = job_spec.check_job(arguments, scheduler.profile, mode, check)
    place = job.model_dir
    if job.predicts:  # beside the training of the run, and its record
        experiment, place = f"{experiment}-predict", arguments.output or files.join(place, "predictions")
    place = place if files.is_url(place) else os.path.realpath(place)  # a directory has one name by all links to it
    return scheduler, dataclasses.replace(job, name=launches.job_name(profile.name, experiment, place))


def _unwritable(job: JobSpec, secrets_go: str) -> Iterator[str]:
    """Yields arguments that a text file or a process cannot have, and those that the files of a job must not have."""
    words = dict.fromkeys(word for role in job.roles for word in role.argv)
    for word in (*words, job.cwd):
        if "\0" in word:
            yield f"{word!r} contains a NUL character, which an argument cannot have; remove it"
        elif word != word.encode("utf-8", "replace").decode("utf-8"):
            yield f"{word!r} is not valid UTF-8; rename it"
        elif kind := secret_in(word):
            what = f"{word} holds what looks like {kind}, which the files of the job would show"
            yield f"{what}; leave it out, and {secrets_go}"


def refuse_unless_ended(folder: str, scheduler: Target[Any], record: Record, so: str) -> None:
    """Refuses to start a job again, unless it is certain that it has ended: two would train in one directory.

    Args:
      folder: of the job.
      scheduler: its target.
      record: of the job.
      so: what follows for a job that has not ended.

    Raises:
      UsageError: it has not ended.
      SchedulerError: the scheduler does not say whether it has.
    """
    state = schedulers.state_of(folder, scheduler, record)
    submitted = f"{record.name} was submitted to {record.target} as {record.id} at {record.submitted_at}"
    cancel = f"`official-trainer job cancel {record.name}` ends it"
    if state.phase is Phase.RUNNING:
        raise UsageError(f"{submitted}, and has not ended ({state.text}), {so}; {cancel}")
    if state.phase is Phase.UNKNOWN:
        raise SchedulerError(
            f"{submitted}, and it is not known whether it has ended, so nothing was started: {state.text}\n"
            f"check: {shlex.join(scheduler.query((record.id,)))}\n"
            f"Once that works, run this command again. If the job still runs, {cancel}; "
            f"if {record.target} no longer exists, remove {os.path.relpath(folder)}"
        )


def _show(scheduler: Target[Any], job: JobSpec, rendered: Rendered, folder: str) -> None:
    """Prints the files of a job, and to stderr its summary and the commands that --submit would run.

    A single file is printed as it is, so that `> FILE` saves it, on a terminal without what every job has.
    """
    for name, text in rendered.files.items():
        if len(rendered.files) > 1:
            print(f"{terminal.paint(f'# {os.path.relpath(os.path.join(folder, name))}', 'bold')}\n{text.rstrip()}\n")
            continue
        parts = SAME.split(text) if sys.stdout.isatty() else [text]
        for number, part in enumerate(parts):
            what = f"# … {part.count(chr(10))} lines that are the same in every job; `> {name}` saves all"
            print(f"{terminal.paint(what, 'dim')}\n" if number % 2 else part, end="")
    sys.stdout.flush()  # before the summary on stderr
    processes: list[str] = []  # of each role how many processes, with their resources
    for is_server in (False, True):
        roles = [role for role in job.roles if (role.name == PS) == is_server]
        names = [f"{role.count} {_CALLED.get(role.name, role.name)}{'s' * (role.count > 1)}" for role in roles]
        if not roles:
            continue
        resources = scheduler.profile.resources_of(roles[0].name)
        cpus, memory, gpus = resources.cpus, resources.memory_gib, resources.gpus
        gets = [f"{cpus} CPU{'s' * (cpus > 1)}"] if cpus else []
        gets += [f"{memory:g} GiB"] if memory else []
        gets += [f"{gpus} GPU{'s' * (gpus > 1)}"] if gpus else []
        each = " each" if sum(role.count for role in roles) > 1 else ""
        processes.append(", ".join(names) + (f" with {', '.join(gets)}{each}" if gets else ""))
    rows = [
        ("processes", "; ".join(processes)),
        ("sweep" if job.is_sweep else "run directory", job.model_dir),
        *([("code", f"as it is now, {len(job.code.sums)} files, which --submit copies")] if job.code else []),
        ("max_restarts", str(scheduler.profile.max_restarts)),
        ("--submit", f"writes {' and '.join(rendered.files)} to {os.path.relpath(folder)}, and runs there:"),
    ]
    if sys.stdout.isatty() and sys.stderr.isatty():
        print(file=sys.stderr)
    terminal.report_error(f"{job.name} for {scheduler.name}; nothing was submitted", "shown", "cyan")
    for label, text in rows:
        print(f"  {terminal.paint(label.ljust(13), 'dim', sys.stderr)}  {text}", file=sys.stderr)
    for argv in rendered.submit:  # quoted as for a shell, although none runs them
        print(f"    {shlex.join(argv)}", file=sys.stderr)
