"""What a job consists of, wherever it runs: roles, how many processes each has, and their commands.

Owns: `JobSpec`, and what each process is told, as pure values. Does not own: starting anything
(`launch/local/local.py`).
"""

from __future__ import annotations

import dataclasses
import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from official_trainer.distributed.cluster import CHIEF, EVALUATOR, GIVEN_GPUS, PS, ROLES, WORKER, Cluster, process_name

_EVALUATOR_MODE = "continuous_eval"

DISPATCHER, DATA_WORKER = "dispatcher", "data_worker"
DATA_ROLES = (DISPATCHER, DATA_WORKER)
"""The processes of a tf.data service beside the job, as `data-service --role` calls them. No cluster knows of them."""

_FILE_WORD = re.compile(r"--(?:config_file|gin_file|params_override)=(/.*)")

ALL_ROLES = (*ROLES, *DATA_ROLES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Role:
    """Processes of one kind.

    Attributes:
      name: one of `ALL_ROLES`.
      count: how many.
      argv: a module and its arguments, as after `python -m`.
      environ: what is set for them beside `TF_CONFIG`.
      ports: where each of them listens, as its flag `--port`; none for those that the cluster gives an address.
    """

    name: str
    count: int
    argv: tuple[str, ...]
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ports: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSpec:
    """The processes of one job.

    Attributes:
      roles: those that there are.
      name: what the job is called where it is submitted.
      model_dir: its run directory, which all of its processes have to see: a URL or an absolute path. Where a job is
        submitted, `--model_dir` is among the words of every role.
      cwd: where the command was given; relative paths among the words of its roles start there.
      strategy: its `runtime.distribution_strategy`.
      grace_seconds: from SIGTERM to the end of a process, which saves meanwhile; after that it is killed.
      journal: the folder of its dispatcher, of no use to anybody once the job has ended.
    """

    roles: tuple[Role, ...]
    grace_seconds: float
    name: str = ""
    model_dir: str = ""
    cwd: str = ""
    strategy: str = ""
    journal: str | None = None

    @property
    def has_servers(self) -> bool:
        """Whether workers and parameter servers serve a chief: they never end by themselves."""
        return any(role.name == PS for role in self.roles)

    @property
    def in_cluster(self) -> tuple[Role, ...]:
        """The roles that have an address there; the evaluator only watches the run directory."""
        return tuple(role for role in self.roles if role.name in (CHIEF, WORKER, PS))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One process of a job.

    Attributes:
      role: what it does.
      index: which of its role.
      argv: a module and its arguments.
      environ: what is set for it.
    """

    role: str
    index: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]

    @property
    def name(self) -> str:
        """What it is called: `worker 1`."""
        return self.role if self.role == DISPATCHER else process_name(self.role, self.index).replace("_", " ")


def training_job(counts: Mapping[str, int], argv: Sequence[str], *, grace_seconds: float) -> JobSpec:
    """Returns the job that trains one experiment.

    Args:
      counts: how many processes of each role.
      argv: the words after `train`, with the mode as `--mode=MODE`; the evaluator has its own.
      grace_seconds: see `JobSpec`.
    """
    command = ("official_trainer", "train")
    evaluating = [word for word in argv if not word.startswith("--mode=")] + [f"--mode={_EVALUATOR_MODE}"]
    words = {role: tuple(evaluating if role == EVALUATOR else argv) for role in ROLES}
    roles = [Role(name=role, count=counts[role], argv=command + words[role]) for role in ROLES if counts.get(role)]
    return JobSpec(roles=tuple(roles), grace_seconds=grace_seconds)


def with_gpus(job: JobSpec, gpus_of: Callable[[str], int]) -> JobSpec:
    """Returns the job with each process told how many GPUs it is given; what is given none is told nothing.

    Args:
      job: its processes.
      gpus_of: returns how many GPUs a process of a role is given.
    """
    told = {role.name: {GIVEN_GPUS: str(gpus)} if (gpus := gpus_of(role.name)) else {} for role in job.roles}
    roles = [dataclasses.replace(role, environ={**role.environ, **told[role.name]}) for role in job.roles]
    return dataclasses.replace(job, roles=tuple(roles))


def with_data_service(job: JobSpec, ports: Sequence[int], work_dir: str) -> JobSpec:
    """Returns the job with a dispatcher and data workers beside it.

    Args:
      job: what trains; its processes know the dispatcher's address.
      ports: of the dispatcher, then of each data worker; they keep them when they are started again.
      work_dir: where the dispatcher keeps its journal.
    """
    command = ("official_trainer", "data-service")
    dispatching = (*command, f"--role={DISPATCHER}", f"--work_dir={work_dir}")
    working = (*command, f"--role={DATA_WORKER}", f"--dispatcher={dispatcher_address(ports[0])}")
    roles = (
        Role(name=DISPATCHER, count=1, argv=dispatching, ports=tuple(ports[:1])),
        Role(name=DATA_WORKER, count=len(ports) - 1, argv=working, ports=tuple(ports[1:])),
    )
    return dataclasses.replace(job, roles=(*job.roles, *roles), journal=work_dir)


def dispatcher_address(port: int) -> str:
    """Returns where a dispatcher on this machine is reached."""
    return f"grpc://localhost:{port}"


def members(job: JobSpec, addresses: Mapping[str, Sequence[str]]) -> tuple[Member, ...]:
    """Returns the processes of a job, each told where the others are.

    Args:
      job: what they are.
      addresses: `host:port` of every process that has one, by role.
    """
    found = {role: tuple(addresses[role]) for role in addresses}
    return tuple(
        Member(
            role=role.name,
            index=index,
            argv=(*role.argv, f"--port={role.ports[index]}") if role.ports else role.argv,
            environ={**role.environ, **({} if role.name in DATA_ROLES else _told(found, role.name, index))},
        )
        for role in job.roles
        for index in range(role.count)
    )


def files_of_this_machine(job: JobSpec) -> dict[str, str]:
    """Returns words that name a file by an absolute path, which other machines may not have, each with that path."""
    words = dict.fromkeys(word for role in job.roles for word in role.argv)
    return {word: match[1] for word in words if (match := _FILE_WORD.fullmatch(word))}


def is_in(path: str, folder: str) -> bool:
    """Tells whether a path is a folder, or below it; no URL is in one."""
    return f"{posixpath.normpath(path)}/".startswith(f"{posixpath.normpath(folder).rstrip('/')}/")


def idle_tpu(job: JobSpec) -> Iterator[str]:
    """Yields what a job that gets a TPU would do without it."""
    if job.strategy not in ("", "auto", "tpu"):
        yield f"runtime.distribution_strategy={job.strategy} would leave the TPU idle; set it to tpu or auto"


def literal(text: str) -> str:
    """Returns a text that Kubernetes and Vertex AI leave alone: they fill in `$(NAME)`, and read `$$` as `$`."""
    return text.replace("$", "$$")


def _told(addresses: Mapping[str, tuple[str, ...]], role: str, index: int) -> dict[str, str]:
    cluster = Cluster(addresses=addresses, role=role, index=index, source="launch")
    return {"TF_CONFIG": json.dumps(cluster.tf_config())}
