"""A job of `launch`: what it trains, which code it runs, and what each of its roles runs.

Owns: `JobSpec`, jobs that train or share work, as pure values; a job in the copy of its code.
Does not own: the processes of a job (`processes/job.py`), starting them (`processes/`, `launch/targets/`), making the
copy (`code.py`).
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Mapping, Sequence

from official_trainer.checkpoints import manifest
from official_trainer.distributed.cluster import EVALUATOR, GIVEN_GPUS, ROLES, WORKER
from official_trainer.processes.job import JobProcesses, Role
from official_trainer.tracking.git_state import COMMIT

_EVALUATOR_MODE = "continuous_eval"

_FILE_WORD = re.compile(r"--(?:config_file|gin_file|params_override|space)=((?:(?:\./)*\.\.)?/.*)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Code:
    """The commit that a job runs, and where its copy is.

    Attributes:
      commit: its hash.
      workspace: the folder of which it is.
      folder: the copy.
    """

    commit: str
    workspace: str
    folder: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSpec(JobProcesses):
    """A job as it is submitted; every role then has the flag `--model_dir`.

    Attributes:
      name: of the job, where it is submitted.
      model_dir: its run directory, which all of its processes have to see: a URL or an absolute path.
      cwd: the directory of the command; relative paths in the arguments of its roles start there.
      strategy: its `runtime.distribution_strategy`.
      is_sweep: whether its workers do not train together: each works on the trials of a sweep.
      code: the commit that it runs, in a copy that it sees; None for what the scheduler or the profile has.
    """

    name: str = ""
    model_dir: str = ""
    cwd: str = ""
    strategy: str = ""
    is_sweep: bool = False
    code: Code | None = None

    def newest_step(self) -> int | None:
        """Returns the step of the newest complete checkpoint of its run; None without one."""
        return max(manifest.committed_steps(self.model_dir), default=None)

    @property
    def predicts(self) -> bool:
        """Whether its processes share predictions, each without the others."""
        return any("--mode=predict" in role.argv for role in self.roles)


def training_job(
    counts: Mapping[str, int], argv: Sequence[str], *, grace_seconds: float, gpus: Mapping[str, int] | None = None
) -> JobSpec:
    """Returns the job that trains one experiment.

    Args:
      counts: the number of processes of each role.
      argv: the flags of `train`, with the mode as `--mode=MODE`; the evaluator gets its own mode.
      grace_seconds: see `JobSpec`.
      gpus: of a process of each role, which finds its number in a variable; None for none.
    """
    command = ("official_trainer", "train")
    evaluating = [word for word in argv if not word.startswith("--mode=")] + [f"--mode={_EVALUATOR_MODE}"]
    words = {role: tuple(evaluating if role == EVALUATOR else argv) for role in ROLES}
    given = {role: {GIVEN_GPUS: str(count)} for role, count in (gpus or {}).items() if count}
    roles = [
        Role(name=role, count=counts[role], argv=command + words[role], environ=given.get(role, {}))
        for role in ROLES
        if counts.get(role)
    ]
    return JobSpec(roles=tuple(roles), grace_seconds=grace_seconds)


def shared_job(workers: int, argv: Sequence[str], *, grace_seconds: float) -> JobSpec:
    """Returns the job that works on a sweep; each of its workers is a process alone.

    Args:
      workers: how many there are.
      argv: the verb and its flags, such as `sweep`.
      grace_seconds: see `JobSpec`.
    """
    role = Role(name=WORKER, count=workers, argv=("official_trainer", *argv))
    return JobSpec(roles=(role,), grace_seconds=grace_seconds, is_sweep=True)


def files_of_this_machine(job: JobSpec) -> dict[str, str]:
    """Returns the flags with an absolute path of a file, which other machines may not have, each with that path."""
    words = dict.fromkeys(word for role in job.roles for word in role.argv)
    return {word: match[1] for word in words if (match := _FILE_WORD.fullmatch(word)) and match[1].startswith("/")}


def in_copy(job: JobSpec, code: Code, search_path: Sequence[str]) -> JobSpec:
    """Returns the job in the copy of its code, in the place of the workspace.

    Args:
      job: its directory, and files that its flags name, may be in the workspace.
      code: the commit and its copy.
      search_path: folders where Python finds modules first; those of the workspace are then those of the copy.
    """

    def moved(path: str) -> str:
        return posixpath.normpath(posixpath.join(code.folder, posixpath.relpath(path, code.workspace)))

    def word_moved(word: str) -> str:
        if (match := _FILE_WORD.fullmatch(word)) is None:
            return word
        path = posixpath.normpath(posixpath.join(job.cwd, match[1]))  # a relative one may lead out of the workspace
        return word.removesuffix(match[1]) + (moved(path) if is_in(path, code.workspace) else path)

    environ = {COMMIT: code.commit}
    if any(is_in(path, code.workspace) for path in search_path):
        folders = [moved(path) if is_in(path, code.workspace) else path for path in search_path]
        environ["PYTHONPATH"] = ":".join(dict.fromkeys(folders))
    roles = tuple(
        dataclasses.replace(role, argv=tuple(map(word_moved, role.argv)), environ={**role.environ, **environ})
        for role in job.roles
    )
    return dataclasses.replace(job, roles=roles, cwd=moved(job.cwd), code=code)


def is_in(path: str, folder: str) -> bool:
    """Returns whether a path is this folder or below it; a URL never is."""
    return f"{posixpath.normpath(path)}/".startswith(f"{posixpath.normpath(folder).rstrip('/')}/")
