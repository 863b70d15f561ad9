"""The folder `launches/` of a workspace: the record of each job that a scheduler has got, in a folder with its files.

Owns: `launches/NAME/launch.json`, which only its owner can read, and the name of a job; which of two commands may start
the job. Does not own: starting it (`submit.py`, `schedulers.py`), the content of its files (`target.py` and each
target), the files of the code (`snapshot.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from official_trainer import config, files
from official_trainer.config import installed
from official_trainer.errors import ExitCode, UserError
from official_trainer.launch import targets
from official_trainer.launch.target import Argv, Target
from official_trainer.lock import DirectoryLock, LockedError
from official_trainer.nearest import did_you_mean
from official_trainer.tracking import code_files

FOLDER = code_files.LAUNCHES
RECORD = "launch.json"

_DIGITS = 8
_LONGEST_NAME = 30


class RecordError(UserError, ValueError):
    """The job does not exist, or its record cannot be read."""

    exit_code = ExitCode.CONFIG


class OthersRecordError(RecordError):
    """The record is that of another user's job, in a workspace that several share."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """A submitted job, as in `launch.json`.

    Attributes:
      target: the name of the scheduler.
      name: of the job.
      id: the scheduler's name for it.
      model_dir: its run directory.
      submitted_at: when, in UTC.
      argv: the command line that submitted it.
      submit: the scheduler's commands that submitted it, as lists of words.
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
        remove(os.path.join(folder, ".lock"))  # a job's folder holds nothing else that is ours
        lock.release()
        remove_if_empty(folder)


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


def remove(path: str) -> None:
    """Removes a file of a job, if it is there."""
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        os.remove(path)


def write(folder: str, record: Record) -> None:
    """Writes the record of the job in a folder."""
    text = json.dumps(dataclasses.asdict(record), indent=2, ensure_ascii=False)
    files.write_text_atomically(os.path.join(folder, RECORD), text + "\n", private=True)
