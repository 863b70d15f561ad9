"""What git says of the code that a process runs: its commit, and what was changed since.

Owns: asking git, within limits of time and size, and beside the start of a run; the variable with the commit of a job.
Does not own: where a run keeps the answer (`record.py`), how two runs are compared (`reports/pair.py`), making the
commit of a job (`launch/code.py`).
"""

from __future__ import annotations

import os
import subprocess

from official_trainer.shown import without_secrets
from official_trainer.threads import WorkerThread, has_ended

COMMIT = "OFFICIAL_TRAINER_COMMIT"
"""Our own variable: the commit of the code that a job was given, in a copy or an image that git does not know."""

LIMIT_BYTES = 256 << 10
"""Most bytes of a difference that are kept."""

DIFF = ("diff", "--no-ext-diff", "--no-textconv", "--no-color")
"""A difference in the form that `git apply` takes, without programs that a repository names."""

DIRTY = "-dirty"
"""The end of a revision if files differ from its commit."""

_TIMEOUT_SECONDS = 5.0
_CUT = "# cut here: the whole is larger than 256 KiB\n"


class Code:
    """The commit and the changes of a workspace, asked for by a thread, so that nothing waits for git.

    Attributes:
      revision: the commit, with `-dirty` if files differ from it; None without git, and until it has answered.
      changes: what was changed since, as `git diff HEAD` has it, without passwords in URLs; at most 256 KiB.

    Args:
      workspace: the folder; None asks nothing.
    """

    def __init__(self, workspace: str | os.PathLike[str] | None) -> None:
        self.revision: str | None = None
        self.changes = ""
        thread = WorkerThread("git")
        self._workspace = workspace
        self._call = thread.submit(self._ask)
        thread.close()

    def wait(self, seconds: float) -> bool:
        """Waits for the answer, for at most `seconds`; returns whether it is there."""
        return has_ended(self._call, seconds)

    def _ask(self) -> None:
        if commit := given_commit():
            self.revision = commit
            return
        if (workspace := self._workspace) is None:
            return
        revision = (ask(workspace, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") or "").strip()
        if revision.endswith(DIRTY):
            self.changes = without_secrets(ask(workspace, *DIFF, "HEAD", "--") or "")
        self.revision = revision or None


def given_commit() -> str | None:
    """Returns the commit that this process runs as a part of a job; None if it runs what the workspace has."""
    return os.environ.get(COMMIT) or None


def ask(folder: str | os.PathLike[str], *arguments: str) -> str | None:
    """Returns what a command of git prints, cut after 256 KiB; None if it fails, takes long, or there is no git.

    Args:
      folder: where it runs.
      arguments: the command. It takes no lock of the repository, so it disturbs no other command.
    """
    command = ["git", "--no-optional-locks", "-C", os.fspath(folder), *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    text = done.stdout[:LIMIT_BYTES].decode("utf-8", "replace")
    return text if len(done.stdout) <= LIMIT_BYTES else f"{text.rpartition(chr(10))[0]}\n{_CUT}"
