"""The commands of a scheduler: those that start a job, and those that ask for its state, run without a shell.

Owns: running a target's commands, each a list of words, in a job's folder; that a job is on record once it has started,
and that nothing is left of one that has not.
Does not own: which commands and files these are (`target.py` and each target), the record (`launches.py`), what is
refused before (`submit.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from official_trainer import config, files
from official_trainer.errors import UserError
from official_trainer.launch import launches
from official_trainer.launch.launches import Record, RecordError
from official_trainer.launch.target import Argv, JobState, Phase, Rendered, Target
from official_trainer.shown import shorten

ANSWER_SECONDS = 60.0
"""How long a scheduler may take to say how a job is."""

_LATE = 124  # the exit code of `timeout`
_LONGEST_COMMAND = 120


class SchedulerError(UserError, RuntimeError):
    """A program of the scheduler is missing, or has failed and printed why."""


def submit(folder: str, target: Target[Any], rendered: Rendered, record: Record) -> Record:
    """Writes a job's files, starts it, and writes its record; returns the record, with the scheduler's id.

    The scheduler's output is printed.

    Args:
      folder: of the job.
      target: its scheduler.
      rendered: the files and commands.
      record: without the scheduler's id.

    Raises:
      SchedulerError: a program is missing or has failed; the folder is as it was before. If a command before it has
        succeeded, the record is written, so that the job can be cancelled.
    """
    last = launches.read(folder)
    paths = {name: os.path.join(folder, name) for name in rendered.files}
    before = {path: files.read_bytes(path) if os.path.isfile(path) else None for path in paths.values()}
    files.make_dirs(folder)
    try:
        for name, text in rendered.files.items():
            assert name == os.path.basename(name) and name not in ("", launches.RECORD), name
            files.write_text_atomically(paths[name], text, private=True)
        record = start(folder, target, rendered.submit, record)
    except BaseException:
        if launches.read(folder) == last:  # `job resume` submits the recorded job, so the folder must hold its files
            for path, content in before.items():
                if content is None:
                    launches.remove(path)
                else:
                    files.write_bytes_atomically(path, content, private=True)
            launches.remove_if_empty(folder)
        raise
    for name in set(last.files if last else ()) - {*rendered.files, launches.RECORD}:
        launches.remove(os.path.join(folder, os.path.basename(name)))
    return record


def start(folder: str, target: Target[Any], commands: Sequence[Argv], record: Record) -> Record:
    """Runs the commands that start a job whose files exist; returns and raises as `submit`."""
    found = record.id
    for number, argv in enumerate(commands):
        done = run(target, argv, folder, stdout=subprocess.PIPE)
        output = done.stdout.strip()
        what = f"ended with exit code {done.returncode}; its error is above" if done.returncode else ""
        if not done.returncode and number == len(commands) - 1:
            found = target.id_of(record.name, done.stdout)
            printed = repr(shorten(output, _LONGEST_COMMAND)) if output else "nothing"
            check = f"check in {target.name} itself whether a job was started, and cancel it there"
            what = "" if found else f"printed {printed} and no job id; {check}"
        is_bare_id = len(output.split()) == 1 and found in output  # which is printed in a sentence later
        if output and not is_bare_id:
            print(done.stdout.rstrip())
        if what and number:
            launches.write(folder, record)
            what += f"; `official-trainer job cancel {record.name}` cancels what was started before it"
        if what:
            raise SchedulerError(f"{shown(argv)} {what}")
    record = dataclasses.replace(record, id=found)
    launches.write(folder, record)
    return record


def shown(argv: Argv) -> str:
    """Returns a command for a message: quoted as for a shell, and shortened."""
    return shorten(shlex.join(argv), _LONGEST_COMMAND)


def run(target: Target[Any], argv: Argv, folder: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program of a scheduler in a job's folder.

    Args:
      target: the scheduler.
      argv: the program and its words.
      folder: of the job.
      **options: of `subprocess.run`; without any, the output is shown.

    Raises:
      SchedulerError: the program is missing; the message names where to get it.
    """
    _check_there(target, argv)
    return subprocess.run(argv, cwd=folder, text=True, check=False, **options)


def run_detached(
    target: Target[Any], argv: Argv, folder: str, seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program as `run` does, keeps its output, and lets no Ctrl-C and no question reach it.

    Args:
      target: the scheduler.
      argv: the program and its words.
      folder: where it runs.
      seconds: after which it is killed, with the processes that it has started, and has failed; None for no limit.

    Raises:
      SchedulerError: the program is missing, or cannot be started.
    """
    _check_there(target, argv)
    # A user's defaults for squeue, such as SQUEUE_PARTITION, would hide jobs from it.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise SchedulerError(f"{argv[0]} cannot be started: {files.reason_of(error)}") from error
    with process:
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return subprocess.CompletedProcess(argv, _LATE, "", f"{argv[0]} did not answer within {seconds:g} s")
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def state_of(folder: str, target: Target[Any], record: Record) -> JobState:
    """Returns the state of a job, as its scheduler says it now."""
    (state,) = _states(target, [record.id], folder, ANSWER_SECONDS)
    return state


def states_of(records: Sequence[Record], folder: str, seconds: float) -> list[JobState]:
    """Returns the states of jobs, each scheduler and place asked once, all at the same time.

    Args:
      records: of the jobs.
      folder: where the schedulers' programs run.
      seconds: how long each may take.
    """
    found: dict[int, JobState] = {}
    places: dict[Argv, tuple[Target[Any], list[int]]] = {}
    for number, record in enumerate(records):
        try:
            target = launches.target_of(record)
        except (RecordError, config.ConfigError) as error:
            found[number] = JobState(Phase.UNKNOWN, str(error))
        else:
            places.setdefault(target.query(()), (target, []))[1].append(number)

    def look(place: tuple[Target[Any], list[int]]) -> dict[int, JobState]:
        target, numbers = place
        states = _states(target, [records[number].id for number in numbers], folder, seconds)
        return dict(zip(numbers, states, strict=True))

    with ThreadPoolExecutor(max(len(places), 1)) as pool:
        for states in pool.map(look, places.values()):
            found |= states
    return [found[number] for number in range(len(records))]


def _states(target: Target[Any], job_ids: Sequence[str], folder: str, seconds: float) -> list[JobState]:
    try:
        return list(target.states(job_ids, run_detached(target, target.query(job_ids), folder, seconds)))
    except SchedulerError as error:
        return [JobState(Phase.UNKNOWN, str(error))] * len(job_ids)


def _check_there(target: Target[Any], argv: Argv) -> None:
    if shutil.which(argv[0]) is None:
        raise SchedulerError(f"{argv[0]} is not on the PATH, and `{target.name}` needs it: {target.needs}")
