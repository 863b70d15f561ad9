"""The folder `launches/` of a workspace: what was submitted, a folder with files and a record for each job.

Owns: `launches/NAME/launch.json`, which only its owner can read, and the name of a job.
Does not own: submitting it (`submit.py`), the content of its files (`targets/`), the copy of its code (`code.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Sequence

from official_trainer import files
from official_trainer.errors import ExitCode, UserError
from official_trainer.launch.target import Commands
from official_trainer.nearest import did_you_mean

FOLDER = "launches"
RECORD = "launch.json"

_DIGITS = 8
_LONGEST_NAME = 30


class RecordError(UserError, ValueError):
    """The job does not exist, or its record cannot be read."""

    exit_code = ExitCode.CONFIG


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """A submitted job, as in `launch.json`.

    Attributes:
      target: the name of the scheduler.
      id: the scheduler's name for the job.
      model_dir: its run directory.
      submitted_at: when, in UTC.
      argv: the command line that submitted it.
      commit: of its code; None if it runs what is in the workspace or the image.
      commands: the scheduler's own, which follow.
    """

    target: str
    id: str
    model_dir: str
    submitted_at: str
    argv: Sequence[str]
    commit: str | None
    commands: Commands


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


def find(root: str, name: str) -> str:
    """Returns the folder of a submitted job.

    Args:
      root: the folder of `launches/`.
      name: of the job, or its beginning.

    Raises:
      RecordError: there is no such job, or there are several.
    """
    folder = os.path.join(root, FOLDER)
    names = [job for job in files.list_dir(folder) if os.path.exists(os.path.join(folder, job, RECORD))]
    matching = [name] if name in names else [job for job in names if name and job.startswith(name)]
    if len(matching) == 1:
        return os.path.join(folder, matching[0])
    there = f"jobs: {', '.join(names)}" if names else f"none was submitted from {root}"
    if not name:
        raise RecordError(f"which job? {there}")
    if matching:
        raise RecordError(f"{name} is the beginning of several names: {', '.join(matching)}; give a longer one")
    raise RecordError(f"no such job: {name}{did_you_mean(name, names)}\n{there}")


def read(folder: str) -> Commands:
    """Returns the commands for the job in a folder.

    Raises:
      RecordError: they cannot be read, as those of another user.
    """
    path = os.path.join(folder, RECORD)
    try:
        commands = json.loads(files.read_text(path))["commands"]
        return Commands(**{name: tuple(argv) for name, argv in commands.items()})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason, fix = str(error), "see to the job with the scheduler's own commands, and delete the folder"
        if isinstance(error, OSError):
            reason, fix = files.reason_of(error), "it belongs to who has submitted the job"
        raise RecordError(f"{path} cannot be read ({reason}); {fix}") from error


def write(folder: str, record: Record) -> None:
    """Writes the record of the job in a folder."""
    text = json.dumps(dataclasses.asdict(record), indent=2, ensure_ascii=False)
    files.write_text_atomically(os.path.join(folder, RECORD), text + "\n", private=True)
