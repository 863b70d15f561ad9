"""The processes of one job on any machine: their roles, commands and variables.

Owns: `JobProcesses`, and the command and environment of each process, as pure values.
Does not own: starting them (`attempt.py`), how their ends are judged (`verdict.py`), what hands a job to a scheduler.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from official_trainer.distributed.cluster import CHIEF, PS, WORKER, Cluster, process_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Role:
    """Processes of one kind.

    Attributes:
      name: one of `cluster.ROLES`.
      count: the number of processes.
      argv: a module and its arguments, as after `python -m`.
      environ: their variables, without `TF_CONFIG`.
    """

    name: str
    count: int
    argv: tuple[str, ...]
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobProcesses:
    """The processes of one job.

    Attributes:
      roles: with at least one process each.
      grace_seconds: how long a process may save after SIGTERM before it is killed.
    """

    roles: tuple[Role, ...]
    grace_seconds: float

    @property
    def has_servers(self) -> bool:
        """Whether workers and parameter servers serve a chief, and so never end by themselves."""
        return any(role.name == PS for role in self.roles)

    @property
    def in_cluster(self) -> tuple[Role, ...]:
        """The roles with an address in the cluster; the evaluator only watches the run directory."""
        return tuple(role for role in self.roles if role.name in (CHIEF, WORKER, PS))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One process of a job.

    Attributes:
      role: its role.
      index: its number within the role.
      argv: a module and its arguments.
      environ: its variables.
    """

    role: str
    index: int
    argv: tuple[str, ...]
    environ: Mapping[str, str]

    @property
    def name(self) -> str:
        """Its name in messages, such as `worker 1`."""
        return process_name(self.role, self.index)


def members(job: JobProcesses, addresses: Mapping[str, tuple[str, ...]]) -> tuple[Member, ...]:
    """Returns the processes of a job, each with the addresses of the others in its `TF_CONFIG`.

    Args:
      job: its roles.
      addresses: `host:port` of every process in the cluster, by role.
    """
    processes = []
    numbered = [(role, index) for role in job.roles for index in range(role.count)]
    for role, index in numbered:
        cluster = Cluster(addresses=addresses, role=role.name, index=index, source="launch")
        environ = {**role.environ, "TF_CONFIG": json.dumps(cluster.tf_config())}
        processes.append(Member(role=role.name, index=index, argv=role.argv, environ=environ))
    return tuple(processes)
