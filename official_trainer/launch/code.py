"""The code of a job: one commit of the workspace, with all files that git does not ignore.

Owns: making that commit beside the user's index and branches, keeping it, copying it to a folder.
Does not own: which commit a run records (`tracking/git_state.py`), what a restart with another one means
(`runs/resume/config_changes.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from typing import Any

from official_trainer.errors import ExitCode, UserError
from official_trainer.launch.launches import FOLDER
from official_trainer.launch.spec import Code

_NOT_CODE = (FOLDER, "runs")  # where .gitignore does not name them
_AUTHOR = {f"GIT_{who}_{what}": "official-trainer" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
_NO_VARIABLES: Mapping[str, str] = {}
_SECONDS = 600.0
_FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on


class CodeError(UserError, RuntimeError):
    """Git cannot say or copy what the code of a job is."""

    exit_code = ExitCode.CONFIG


def commit_of(workspace: str) -> str | None:
    """Returns a commit of the workspace as it is now; None where no repository of git has it.

    It is HEAD if nothing differs. The same files on the same HEAD are the same commit.

    Raises:
      CodeError: git fails in the repository.
    """
    if (
        _run(workspace, "rev-parse", "--git-dir").returncode
        or not _run(workspace, "check-ignore", "-q", ".").returncode
    ):
        return None
    with tempfile.TemporaryDirectory() as folder:
        environ = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        index = os.path.join(workspace, _git(workspace, "rev-parse", "--git-path", "index"))
        if os.path.exists(index):  # git then reads only files that were changed since
            shutil.copy(index, environ["GIT_INDEX_FILE"])
        _git(workspace, "add", "--update", "--", ".", environ=environ)
        top = _git(workspace, "rev-parse", "--show-prefix")
        not_code = ["--exclude=__pycache__/", *(f"--exclude=/{top}{name}" for name in _NOT_CODE)]
        new = _git(workspace, "ls-files", "-z", "--others", "--exclude-standard", *not_code, "--", ".").split("\0")
        text = "".join(f"{name}\0" for name in new if name and not name.endswith("/"))  # but repositories inside
        _git(workspace, "update-index", "-z", "--add", "--stdin", environ=environ, text=text)
        tree = _git(workspace, "write-tree", environ=environ)
    head = _run(workspace, "log", "-1", "--format=%H %T %ct")
    if head.returncode:  # there is no commit yet
        return _git(workspace, "commit-tree", tree, "-m", "Code of a job", environ=_AUTHOR | _dates("0"))
    commit, tree_of_head, seconds = head.stdout.split()
    if tree == tree_of_head:
        return commit
    return _git(workspace, "commit-tree", tree, "-p", commit, "-m", "Code of a job", environ=_AUTHOR | _dates(seconds))


def keep(code: Code, name: str) -> None:
    """Makes a reference to the commit of a job, so that git does not remove it.

    Args:
      code: of the job.
      name: of the job.
    """
    _git(code.workspace, "update-ref", f"refs/official-trainer/{name}", code.commit)


def copy(code: Code) -> None:
    """Copies the commit to its folder, unless it is there, with links to all else that the workspace has at its top.

    Raises:
      CodeError: git fails.
      OSError: the folder cannot be written.
    """
    if os.path.isdir(code.folder):
        return
    parent = os.path.dirname(code.folder)
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        copied = os.path.join(folder, "code")
        archive = os.path.join(folder, "code.tar")
        _git(code.workspace, "archive", f"--output={archive}", code.commit)
        os.mkdir(copied)
        with tarfile.open(archive) as opened:
            opened.extractall(copied, **_FILTER)
        for name in os.listdir(code.workspace):  # data that git ignores, so that a relative path still leads to it
            if not name.startswith(".") and name != FOLDER and not os.path.lexists(os.path.join(copied, name)):
                os.symlink(os.path.join(code.workspace, name), os.path.join(copied, name))
        os.rename(copied, code.folder)


def _dates(seconds: str) -> dict[str, str]:
    return dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"@{seconds} +0000")


def _git(folder: str, *words: str, environ: Mapping[str, str] = _NO_VARIABLES, text: str = "") -> str:
    """Returns what git prints.

    Args:
      folder: where it runs.
      *words: its command.
      environ: variables for it.
      text: what it reads.
    """
    done = _run(folder, *words, environ=environ, text=text)
    if done.returncode:
        reason = done.stderr.strip().partition("\n")[0]
        what = f"{folder}: `git {words[0]}` fails ({reason}), so it is not known what the code of the job is"
        raise CodeError(f"{what}; mend it until `git status` works")
    return done.stdout.strip()


def _run(
    folder: str, *words: str, environ: Mapping[str, str] = _NO_VARIABLES, text: str = ""
) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", folder, *words]
    try:
        return subprocess.run(
            command,
            env={**os.environ, **environ},
            input=text,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:  # there is no git, or it hangs
        return subprocess.CompletedProcess(command, 1, "", str(error))
