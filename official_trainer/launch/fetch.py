"""Gets the code of a job from storage, and runs a command there: on machines that have an image and not the workspace.

Owns: this program, the words that start it, and the command that uploads the archive before. Does not own: what an
archive holds (`launch/snapshot.py`), which machines get one (`launch/targets/`).

    python -m official_trainer.launch.fetch URL COMMAND…

The command takes the place of this process, in a new folder with the code. An archive that is gone, or is not what its
name says, ends the job with exit code 2; storage that fails ends the process with 75, so that it starts again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from official_trainer import files
from official_trainer.errors import ExitCode
from official_trainer.launch import snapshot
from official_trainer.tracking.code_files import SnapshotError

if TYPE_CHECKING:
    from official_trainer.launch.spec import JobSpec


def words(url: str) -> tuple[str, ...]:
    """Returns the words between a Python interpreter and the command, for the archive at `url`."""
    return ("-m", "official_trainer.launch.fetch", url)


def uploads(job: JobSpec) -> tuple[tuple[str, ...], ...]:
    """Returns the command that uploads the archive of a job's code from the folder of the job; none without one."""
    return () if job.archive is None else (("gcloud", "storage", "cp", *job.archive),)


def before(job: JobSpec) -> tuple[str, ...]:
    """Returns the words before the command of a process that first has to get the code of its job; none without one."""
    return () if job.archive is None else ("python", *words(job.archive[1]))


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns only if the code cannot be had."""
    url, *command = argv
    folder = tempfile.mkdtemp(prefix="official-trainer-")
    archive = os.path.join(folder, files.base_name(url))
    try:
        files.copy(url, archive)
    except FileNotFoundError:  # it was there before the job was submitted
        print(f"error: {url} is gone; submit the job again", file=sys.stderr)
        return int(ExitCode.CONFIG)
    except Exception as error:  # TensorFlow's for a URL
        print(f"error: {url} cannot be read: {files.reason_of(error)}", file=sys.stderr)
        return int(ExitCode.RETRY)
    try:
        code = snapshot.unpack(archive, os.path.join(folder, "code"))
    except SnapshotError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    os.remove(archive)
    os.chdir(code.path)
    os.execvp(command[0], command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
