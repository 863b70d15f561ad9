"""Jobs for a scheduler, as `launch TARGET` shows and submits them.

Owns: the order: check flags and processes, name the commit of the code, refuse what the scheduler would refuse, render;
then, with `--submit`, copy the code, write the files, run the scheduler's command, record the job and say what follows.
Does not own: `launch` (`verbs/launch.py`), the checks of processes (`job_spec.py`), which files and commands a
scheduler gets (`targets/`), the record (`launches.py`), the commit (`code.py`), submitted jobs (`verbs/job.py`).
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from official_trainer import files
from official_trainer.cli import flags, target, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.distributed.cluster import PS
from official_trainer.errors import ExitCode, UserError
from official_trainer.launch import code, job_spec, launches, targets
from official_trainer.launch.launches import Record
from official_trainer.launch.spec import Code, JobSpec, in_copy, is_in
from official_trainer.launch.target import Rendered, Target
from official_trainer.runs.job import check_ready
from official_trainer.runs.resume import config_changes
from official_trainer.runs.run import check_startable
from official_trainer.shown import secret_in, shorten, without_secrets

_ONLY_HERE = ("supervise", "log_dir")
_LONGEST_COMMAND = 120
_DIGITS = 12  # of a commit in the name of its copy


class SchedulerError(UserError, RuntimeError):
    """A program of the scheduler is missing, or has failed and printed why."""


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
    folder = os.path.join(root(arguments), launches.FOLDER, job.name)
    job = _with_code(arguments, scheduler, job, folder)
    if problems := [*_unwritable(job, scheduler.profile.secrets_go), *scheduler.problems(job)]:
        text = "\n".join([f"launch {scheduler.name}: this job cannot be run as it is", *problems])
        raise UsageError(without_secrets(text))
    rendered = scheduler.render(job)
    if not arguments.submit:
        _show(scheduler, job, rendered, folder)
        return int(ExitCode.DONE)
    record = _submit(arguments, scheduler, job, rendered, folder=folder)
    print(f"{job.name} was submitted to {scheduler.name} as {record.id}; its files are in {os.path.relpath(folder)}")
    for name, argv in dataclasses.asdict(record.commands).items():
        print(f"  {name.ljust(6)}  {shlex.join(argv)}")
    print(f"`official-trainer job status {job.name}` runs the first of them, `job logs` and `job cancel` the others")
    return int(ExitCode.DONE)


def checked(arguments: argparse.Namespace, target_class: type[Target[Any]]) -> tuple[Target[Any], JobSpec]:
    """Returns the target and the job, once it has passed the checks of its processes.

    Raises:
      UsageError: a flag has no effect here, or the target cannot run such a job.
      ConfigError: the profile or the experiment's configuration has a problem.
    """
    profile = job_spec.read_profile(arguments, target_class.profile_class(), starts=arguments.submit)
    experiment = target.named_experiment(arguments)
    arguments.model_dir = files.absolute(target.model_dir_of(experiment, arguments))
    scheduler = target_class(profile)
    if arguments.command == job_spec.SWEEP:
        if not scheduler.runs_sweeps:
            able = " and ".join(name for name in targets.names() if targets.get(name).runs_sweeps)
            fix = "`official-trainer sweep` runs one on this machine"
            raise UsageError(f"launch {scheduler.name} cannot run a sweep; {able} can, and {fix}")
        job = job_spec.check_sweep(arguments, scheduler.profile)
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
    directory = job.model_dir
    if job.predicts:  # beside the training of the run, and its record
        experiment = f"{experiment}-predict"
        directory = arguments.output or files.join(directory, "predictions")
    if not files.is_url(directory):  # it has one name by all links to it
        directory = os.path.realpath(directory)
    return scheduler, dataclasses.replace(job, name=launches.job_name(profile.name, experiment, directory))


def root(arguments: argparse.Namespace) -> str:
    """Returns the directory of `launches/`: the workspace, or else the current directory."""
    return str(target.workspace(arguments) or os.getcwd())


def _with_code(arguments: argparse.Namespace, scheduler: Target[Any], job: JobSpec, folder: str) -> JobSpec:
    """Returns the job in the copy of its code, where the scheduler gets one and git knows the workspace.

    Raises:
      CodeError: git fails.
      ConfigChangeError: the job would continue a run whose newest checkpoint other code has saved.
    """
    workspace = target.workspace(arguments)
    if workspace is None or not scheduler.copies_code or not is_in(job.cwd, str(workspace)):
        return job
    if (commit := code.commit_of(str(workspace))) is None:
        what = f"git does not know {workspace}, so the job runs what is there whenever it starts"
        terminal.report_error(f"{what}; `git init` there keeps the code of each job", "note", "dim")
        return job
    if not job.is_sweep and arguments.mode != "predict" and os.path.isdir(job.model_dir):
        config_changes.check_code(job.model_dir, commit, allow_config_change=arguments.allow_config_change)
    copy = os.path.join(folder, f"code-{commit[:_DIGITS]}")
    # What pip has installed "editable" from the workspace would else be what is edited meanwhile.
    editable = [path for path in sys.path if is_in(path, str(workspace)) and "site-packages" not in path]
    search_path = [*editable, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return in_copy(job, Code(commit=commit, workspace=str(workspace), folder=copy), search_path)


def _submit(
    arguments: argparse.Namespace, scheduler: Target[Any], job: JobSpec, rendered: Rendered, *, folder: str
) -> Record:
    """Copies the code, writes the files, runs the scheduler's command; returns the record that it has written.

    Raises:
      SchedulerError: the program is missing or has failed, and nothing is on record; its own words are on the terminal.
    """
    argv = rendered.submit
    if shutil.which(argv[0]) is None:
        raise SchedulerError(f"{argv[0]} is not on the PATH, and `{scheduler.name}` needs it: {scheduler.needs}")
    if os.path.exists(os.path.join(folder, launches.RECORD)):
        what = f"{job.name} was submitted before; `official-trainer job cancel {job.name}` ends it or clears it away"
        terminal.report_error(what, "note", "dim")
    files.make_dirs(folder)
    if job.code is not None:
        code.keep(job.code, job.name)
        code.copy(job.code)
    for name, text in rendered.files.items():
        assert name == os.path.basename(name) and name not in ("", launches.RECORD), name
        files.write_text_atomically(os.path.join(folder, name), text, private=True)
    done = subprocess.run(argv, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    shown = shorten(shlex.join(argv), _LONGEST_COMMAND)
    output = done.stdout.strip()
    if done.returncode:
        raise SchedulerError(f"{shown} ended with exit code {done.returncode}; its error is above")
    if not (job_id := scheduler.id_of(job.name, done.stdout)):
        printed = repr(shorten(output, _LONGEST_COMMAND)) if output else "nothing"
        check = f"check in {scheduler.name} itself whether a job was started, and cancel it there"
        raise SchedulerError(f"{shown} printed {printed} and no job id; {check}")
    if output not in ("", job_id):  # which is printed in a sentence later
        print(output)
    record = Record(
        target=scheduler.name,
        id=job_id,
        model_dir=job.model_dir,
        submitted_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        argv=arguments.argv,
        commit=None if job.code is None else job.code.commit,
        commands=scheduler.commands(job, job_id, folder),
    )
    launches.write(folder, record)
    return record


def _unwritable(job: JobSpec, secrets_go: str) -> Iterator[str]:
    """Yields arguments that a text file cannot have, and those that the files of a job must not have."""
    words = dict.fromkeys(word for role in job.roles for word in role.argv)
    for word in (*words, job.cwd):
        if word != word.encode("utf-8", "replace").decode("utf-8"):
            yield f"{word!r} is not valid UTF-8; rename it"
        elif secret := secret_in(word):
            what = f"{word} holds what looks like {secret}, which the files of the job would show"
            yield f"{what}; leave it out, and {secrets_go}"


def _show(scheduler: Target[Any], job: JobSpec, rendered: Rendered, folder: str) -> None:
    """Prints the files of a job, and to stderr its summary and the command that --submit would run.

    A single file is printed as it is, so that `> FILE` saves it.
    """
    for name, text in rendered.files.items():
        heading = f"{terminal.paint(f'# {os.path.relpath(os.path.join(folder, name))}', 'bold')}\n"
        print(text if len(rendered.files) == 1 else f"{heading}{text.rstrip()}\n\n", end="")
    sys.stdout.flush()  # before the summary on stderr
    counts = [f"{role.count} {role.name}{'s' * (role.count > 1 and role.name != PS)}" for role in job.roles]
    rows = [
        ("processes", ", ".join(counts)),
        ("sweep" if job.is_sweep else "run directory", job.model_dir),
        ("max_restarts", str(scheduler.profile.max_restarts)),
        ("--submit", f"writes {' and '.join(rendered.files)} to {os.path.relpath(folder)}, and runs there:"),
        ("", shlex.join(rendered.submit)),  # quoted as for a shell, although none runs it
    ]
    if job.code is not None:
        rows.insert(2, ("code", f"commit {job.code.commit[:_DIGITS]}, the workspace as it is now; --submit copies it"))
    terminal.report_error(f"{job.name} for {scheduler.name}; nothing was submitted", "shown", "cyan")
    for label, text in rows:
        print(f"  {terminal.paint(label.ljust(13), 'dim', sys.stderr)}  {text}", file=sys.stderr)
