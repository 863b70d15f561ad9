"""A job of `launch`: what it trains, where its code comes from, and what each of its roles runs.

Owns: `JobSpec`, jobs that train, share work or have a tf.data service, and their code, as pure values.
Does not own: the processes of a job (`processes/job.py`), starting them (`processes/`, `launch/targets/`).
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

from official_trainer import files
from official_trainer.checkpoints import manifest
from official_trainer.distributed.cluster import EVALUATOR, GIVEN_GPUS, ROLES, WORKER
from official_trainer.processes.job import DATA_WORKER, DISPATCHER, JobProcesses, Role
from official_trainer.tracking.code_files import Snapshot

_EVALUATOR_MODE = "continuous_eval"

_FILE_WORD = re.compile(r"--(?:config_file|gin_file|params_override|space)=((?:(?:\./)*\.\.)?/.*)")

_READS = re.compile(r"task\.(?:.*[._])?(?:files?|paths?|folder|dir|checkpoint)(?:\.\w+)?")
_WRITES = "index_folder"  # made again where it is absent

PLACE = ".launch"
"""The folder of a run directory with what belongs to its job. With the dot, it still counts as one of no run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSpec(JobProcesses):
    """A job as it is submitted; every role then has the flag `--model_dir`.

    Attributes:
      name: of the job, where it is submitted.
      model_dir: its run directory, which all of its processes have to see: a URL or an absolute path.
      cwd: the directory of the command; relative paths in the arguments of its roles start there.
      strategy: its `runtime.distribution_strategy`.
      is_sweep: whether its workers do not train together: each works on the trials of a sweep.
      code: the snapshot that it runs; None for what the scheduler or the profile has.
      paths: field and value of each text in its config that may be a local path; a relative one starts at `cwd`.
    """

    name: str = ""
    model_dir: str = ""
    cwd: str = ""
    strategy: str = ""
    is_sweep: bool = False
    code: Snapshot | None = None
    paths: tuple[tuple[str, str], ...] = ()

    @property
    def archive(self) -> tuple[str, str] | None:
        """The archive of its code: the name in the folder of the job, and the URL in its run directory.

        A run directory at `/gcs/BUCKET`, where machines of Vertex AI see a bucket, is at gs://BUCKET.
        """
        if self.code is None:
            return None
        name = posixpath.basename(self.code.archive)
        return name, posixpath.join(re.sub("^/gcs/", "gs://", self.model_dir), PLACE, name)

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
      argv: the verb and its flags, such as `sweep` with `--join`.
      grace_seconds: see `JobSpec`.
    """
    role = Role(name=WORKER, count=workers, argv=("official_trainer", *argv))
    return JobSpec(roles=(role,), grace_seconds=grace_seconds, is_sweep=True)


def with_data_service(job: JobSpec, ports: Sequence[int], work_dir: str) -> JobSpec:
    """Returns the job with a dispatcher and data workers.

    Args:
      job: the training; its processes know the dispatcher's address.
      ports: of the dispatcher, then of each data worker; they stay the same after a restart.
      work_dir: the folder for the dispatcher's journal, which is useless once the job has ended.
    """
    command = ("official_trainer", "data-service")
    dispatching = (*command, f"--role={DISPATCHER}", f"--work_dir={work_dir}")
    working = (*command, f"--role={DATA_WORKER}", f"--dispatcher={dispatcher_address(ports[0])}")
    roles = (
        Role(name=DISPATCHER, count=1, argv=dispatching, ports=tuple(ports[:1])),
        Role(name=DATA_WORKER, count=len(ports) - 1, argv=working, ports=tuple(ports[1:])),
    )
    return dataclasses.replace(job, roles=(*job.roles, *roles))


def dispatcher_address(port: int) -> str:
    """Returns the address of a dispatcher on this machine."""
    return f"grpc://localhost:{port}"


def files_of_this_machine(job: JobSpec) -> dict[str, str]:
    """Returns the flags with an absolute path of a file, which other machines may not have, each with that path."""
    words = dict.fromkeys(word for role in job.roles for word in role.argv)
    return {word: match[1] for word in words if (match := _FILE_WORD.fullmatch(word)) and match[1].startswith("/")}


def reads_files(field: str) -> bool:
    """Whether a field of the config names files or a folder that a process reads, as its name says."""
    return _READS.fullmatch(field) is not None and not field.endswith(_WRITES)


def local_paths(value: object, field: str = "") -> Iterator[tuple[str, str]]:
    """Yields field and text of each value that may be a local path: it has a slash or `reads_files`, and is no URL."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from local_paths(part, f"{field}.{name}".removeprefix("."))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from local_paths(part, field)
    elif isinstance(value, str) and value and ("/" in value or reads_files(field)) and not files.is_url(value):
        yield field, value


def with_code(job: JobSpec, code: Snapshot, folder: str) -> JobSpec:
    """Returns the job with a snapshot in the place of its workspace.

    Args:
      job: its directory, and files that its flags name, may be in the workspace.
      code: the snapshot.
      folder: where it will be; empty for the current directory of each process.
    """

    def moved(path: str) -> str:
        return posixpath.normpath(posixpath.join(folder, posixpath.relpath(path, code.workspace)))

    def word_moved(word: str) -> str:
        if (match := _FILE_WORD.fullmatch(word)) is None:
            return word
        path = posixpath.normpath(posixpath.join(job.cwd, match[1]))  # a relative one may lead out of the workspace
        return word.removesuffix(match[1]) + (moved(path) if is_in(path, code.workspace) else path)

    roles = tuple(dataclasses.replace(role, argv=tuple(map(word_moved, role.argv))) for role in job.roles)
    return dataclasses.replace(job, roles=roles, cwd=moved(job.cwd), code=code)


def is_in(path: str, folder: str) -> bool:
    """Returns whether a path is this folder or below it; a URL never is."""
    return f"{posixpath.normpath(path)}/".startswith(f"{posixpath.normpath(folder).rstrip('/')}/")


def literal(text: str) -> str:
    """Returns a text with `$` escaped: Kubernetes and Vertex AI replace `$(NAME)`, and read `$$` as `$`."""
    return text.replace("$", "$$")
