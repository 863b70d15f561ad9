"""Jobs that were handed to an engine: their folders, their records, and running the engine's commands.

Owns: `launches/NAME/` with the rendered files and `launch.json`, which only their owner can read; running the engine's
programs, each as a list of words without a shell.
Does not own: the content of files and commands (`target.py` and each target).
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from official_trainer import config, files
from official_trainer.config import installed
from official_trainer.errors import ExitCode, UserError
from official_trainer.launch import targets
from official_trainer.launch.target import Argv, JobState, Phase, Rendered, Target
from official_trainer.lock import DirectoryLock, LockedError
from official_trainer.nearest import did_you_mean
from official_trainer.shown import shorten
from official_trainer.tracking import code_files

FOLDER = code_files.LAUNCHES
RECORD = "launch.json"
ANSWER_SECONDS = 60.0
"""How long an engine may take to say how a job is."""

_LATE = 124  # the exit code of `timeout`
_DIGITS = 8
_LONGEST_NAME = 30
_LONGEST_COMMAND = 120


class EngineError(UserError, RuntimeError):
    """A program of the engine is missing, or has failed and printed why."""


class RecordError(UserError, ValueError):
    """The job does not exist, or its record cannot be read."""

    exit_code = ExitCode.CONFIG


class OthersRecordError(RecordError):
    """The record is that of another user's job, in a workspace that several share."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """A submitted job, as in `launch.json`.

    Attributes:
      target: the name of the engine.
      name: of the job.
      id: the engine's name for it.
      model_dir: its run directory.
      submitted_at: when, in UTC.
      argv: the command line that submitted it.
      submit: the engine's commands that submitted it, as lists of words.
      files: names of its files.
      profile: every value of its profile.
      is_sweep: whether its workers work on a sweep.
      code: the folder of the snapshot that it runs; empty without one.
    """

    target: str
    name: str
    id: str
    model_dir: str
    submitted_at: str
    argv: Sequence[str]
    submit: tuple[Argv, ...]
    files: Sequence[str]
    profile: dict[str, Any]
    is_sweep: bool = False
    code: str = ""


def job_name(wanted: str, experiment: str, model_dir: str) -> str:
    """Returns the name of a job: unique for each run directory, and always the same for one.

    Args:
      wanted: its beginning; empty for the experiment's name.
      experiment: name of the experiment.
      model_dir: its run directory.
    """
    begin = wanted or re.sub(r"[^a-z0-9]+", "-", experiment.lower()).strip("-")
    begin = begin if begin[:1].isalpha() else f"job-{begin}"
    return f"{begin[:_LONGEST_NAME].rstrip('-')}-{hashlib.sha256(os.fsencode(model_dir)).hexdigest()[:_DIGITS]}"


@contextlib.contextmanager
def alone(folder: str) -> Iterator[None]:
    """Keeps other commands from starting the job of a folder, for a block that reads its record and starts it.

    Otherwise each would find that there is no such job yet, and only the last one would be on record.

    Raises:
      LockedError: another command starts it.
    """
    files.make_dirs(folder)
    try:
        lock = DirectoryLock(folder)
        lock.acquire()
    except LockedError:
        name = os.path.basename(folder)
        raise LockedError(f"another command is starting {name} now. Wait until it has ended.") from None
    try:
        yield
    finally:
        _remove(os.path.join(folder, ".lock"))  # a job's folder holds nothing else that is ours
        lock.release()
        remove_if_empty(folder)


def submit(folder: str, target: Target[Any], rendered: Rendered, record: Record) -> Record:
    """Writes a job's files, starts it, and writes its record; returns the record, with the engine's id.

    The engine's output is printed.

    Args:
      folder: of the job.
      target: its engine.
      rendered: the files and commands.
      record: without the engine's id.

    Raises:
      EngineError: a program is missing or has failed; the folder is as it was before. If a command before it has
        succeeded, the record is written, so that the job can be cancelled.
    """
    last = read(folder)
    paths = {name: os.path.join(folder, name) for name in rendered.files}
    before = {path: files.read_bytes(path) if os.path.isfile(path) else None for path in paths.values()}
    files.make_dirs(folder)
    try:
        for name, text in rendered.files.items():
            assert name == os.path.basename(name) and name not in ("", RECORD), name
            files.write_text_atomically(paths[name], text, private=True)
        record = start(folder, target, rendered.submit, record)
    except BaseException:
        if read(folder) == last:  # `job resume` submits the recorded job, so the folder must hold its files
            for path, content in before.items():
                if content is None:
                    _remove(path)
                else:
                    files.write_bytes_atomically(path, content, private=True)
            remove_if_empty(folder)
        raise
    for name in set(last.files if last else ()) - {*rendered.files, RECORD}:
        _remove(os.path.join(folder, os.path.basename(name)))
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
            _write(folder, record)
            what += f"; `official-trainer job cancel {record.name}` cancels what was started before it"
        if what:
            raise EngineError(f"{shown(argv)} {what}")
    record = dataclasses.replace(record, id=found)
    _write(folder, record)
    return record


def shown(argv: Argv) -> str:
    """Returns a command for a message: quoted as for a shell, and shortened."""
    return shorten(shlex.join(argv), _LONGEST_COMMAND)


def run(target: Target[Any], argv: Argv, folder: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program of an engine in a job's folder.

    Args:
      target: the engine.
      argv: the program and its words.
      folder: of the job.
      **options: of `subprocess.run`; without any, the output is shown.

    Raises:
      EngineError: the program is missing; the message names where to get it.
    """
    _check_there(target, argv)
    return subprocess.run(argv, cwd=folder, text=True, check=False, **options)


def run_detached(
    target: Target[Any], argv: Argv, folder: str, seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program as `run` does, keeps its output, and lets no Ctrl-C and no question reach it.

    Args:
      target: the engine.
      argv: the program and its words.
      folder: where it runs.
      seconds: after which it is killed, with the processes that it has started, and has failed; None for no limit.

    Raises:
      EngineError: the program is missing, or cannot be started.
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
        raise EngineError(f"{argv[0]} cannot be started: {files.reason_of(error)}") from error
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
    """Returns the state of a job, as its engine says it now."""
    (state,) = _states(target, [record.id], folder, ANSWER_SECONDS)
    return state


def states_of(records: Sequence[Record], folder: str, seconds: float) -> list[JobState]:
    """Returns the states of jobs, each engine and place asked once, all at the same time.

    Args:
      records: of the jobs.
      folder: where the engines' programs run.
      seconds: how long each may take.
    """
    found: dict[int, JobState] = {}
    places: dict[Argv, tuple[Target[Any], list[int]]] = {}
    for number, record in enumerate(records):
        try:
            target = target_of(record)
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
    except EngineError as error:
        return [JobState(Phase.UNKNOWN, str(error))] * len(job_ids)


def _check_there(target: Target[Any], argv: Argv) -> None:
    if shutil.which(argv[0]) is None:
        raise EngineError(f"{argv[0]} is not on the PATH, and `{target.name}` needs it: {target.needs}")


def target_of(record: Record) -> Target[Any]:
    """Returns the target of a job, with the profile of the job.

    Raises:
      RecordError: there is no such target, or that of an installed package cannot be used.
      ConfigError: the profile is that of another version of this package.
    """
    if record.target not in targets.names():
        near = did_you_mean(record.target, targets.names())
        fix = f"was it removed? Once the job has ended, remove {os.path.join(FOLDER, record.name)}"
        raise RecordError(f"{record.name}: no such target: {record.target}{near}; {fix}")
    try:
        target = targets.get(record.target)
    except installed.PackageError as error:
        raise RecordError(f"{record.name}: {error}") from error
    # Earlier versions say more of a job, which is in its files.
    gone, managed = {"sweep", "sweep_at_once", *target.profile_class.REMOVED}, target.profile_class.MANAGED_WITH
    values = {
        name: value for name, value in record.profile.items() if name not in gone or managed.get(name, value) != value
    }
    profile = config.resolve(target.profile_class(), params_overrides=[json.dumps(values)]).config
    return target(profile, is_sweep=record.is_sweep)


def read(folder: str) -> Record | None:
    """Returns the record of the job in a folder; None without one.

    Raises:
      RecordError: it cannot be read; `OthersRecordError` if it is that of another user.
    """
    path = os.path.join(folder, RECORD)
    try:
        values = json.loads(files.read_text(path))
        return Record(**values | {"submit": tuple(map(tuple, values["submit"]))})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise OthersRecordError(f"{path} belongs to another user, who alone can manage this job") from error
    except (ValueError, TypeError, KeyError) as error:
        raise RecordError(
            f"{path} cannot be read ({error}); restore it, or remove the folder of a job that has ended"
        ) from error


def read_all(root: str) -> tuple[list[Record], list[str]]:
    """Returns all jobs that this user has submitted from a workspace, the last one first, and what cannot be read."""
    found: list[Record | None] = []
    unreadable: list[str] = []
    for name in files.list_dir(os.path.join(root, FOLDER)):
        try:
            found.append(read(os.path.join(root, FOLDER, name)))
        except OthersRecordError:
            continue
        except RecordError as error:
            unreadable.append(str(error))
    return sorted(filter(None, found), key=lambda record: record.submitted_at, reverse=True), unreadable


def now() -> str:
    """Returns the time for a record."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def remove_if_empty(folder: str) -> None:
    """Removes the folder of a job, and that of all jobs, unless there is something in them."""
    for place in (folder, os.path.dirname(folder)):
        with contextlib.suppress(OSError):  # it is not empty
            os.rmdir(place)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        os.remove(path)


def _write(folder: str, record: Record) -> None:
    text = json.dumps(dataclasses.asdict(record), indent=2, ensure_ascii=False)
    files.write_text_atomically(os.path.join(folder, RECORD), text + "\n", private=True)
