"""What a job consists of, wherever it runs: roles, how many processes each has, and their commands.

Owns: `JobSpec`, and what each process is told, as pure values. Does not own: starting anything (`local.py`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from official_trainer.cluster import EVALUATOR, PS, ROLES, Cluster, process_name

_EVALUATOR_MODE = "continuous_eval"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Role:
    """Processes of one kind.

    Attributes:
      name: one of `cluster.ROLES`.
      count: how many.
      argv: a module and its arguments, as after `python -m`.
      environ: what is set for them beside `TF_CONFIG`.
    """

    name: str
    count: int
    argv: tuple[str, ...]
    environ: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSpec:
    """The processes of one job.

    Attributes:
      roles: those that there are.
      grace_seconds: from SIGTERM to the end of a process, which saves meanwhile; after that it is killed.
    """

    roles: tuple[Role, ...]
    grace_seconds: float

    @property
    def has_servers(self) -> bool:
        """Whether workers and parameter servers serve a chief: they never end by themselves."""
        return any(role.name == PS for role in self.roles)

    @property
    def in_cluster(self) -> tuple[Role, ...]:
        """The roles that have an address; the evaluator only watches the run directory."""
        return tuple(role for role in self.roles if role.name != EVALUATOR)


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
        return process_name(self.role, self.index)


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
            argv=role.argv,
            environ={**role.environ, "TF_CONFIG": json.dumps(_told(found, role.name, index))},
        )
        for role in job.roles
        for index in range(role.count)
    )


def _told(addresses: Mapping[str, tuple[str, ...]], role: str, index: int) -> Mapping[str, object]:
    return Cluster(addresses=addresses, role=role, index=index, source="launch").tf_config()
