"""Who takes part in a run: its processes by role, and which of them this one is.

Owns: the description of a cluster, and reading it from what schedulers leave in the environment.
Does not own: connecting to anybody (`multi_worker.py`, `parameter_server.py`), starting processes (`launch/`). Imports
no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """The processes of one run.

    Attributes:
      addresses: `host:port` of every process, by role.
      role: of this process.
      index: of this process among those of its role.
      source: where this was read: `TF_CONFIG`, `Slurm` and the like.
    """

    addresses: Mapping[str, tuple[str, ...]]
    role: str
    index: int
    source: str

    @property
    def is_chief(self) -> bool:
        """Whether this process speaks for the run: the chief, or worker 0 where there is none."""
        return self.role == CHIEF or (self.role == WORKER and self.index == 0 and CHIEF not in self.addresses)

    @property
    def name(self) -> str:
        """What this process is called: `worker 1`."""
        return process_name(self.role, self.index)

    @property
    def training(self) -> tuple[tuple[str, int], ...]:
        """Role and index of the processes that train together: the chief, if there is one, then the workers."""
        roles = (CHIEF, WORKER)
        return tuple((role, index) for role in roles for index in range(len(self.addresses.get(role, ()))))

    def tf_config(self) -> dict[str, Any]:
        """Returns what TensorFlow's resolvers expect in the variable `TF_CONFIG`."""
        cluster = {role: list(addresses) for role, addresses in self.addresses.items()}
        return {"cluster": cluster, "task": {"type": self.role, "index": self.index}}


def process_name(role: str, index: int) -> str:
    """Returns what a process is called in messages: `worker 1`; `chief`, of which there is one."""
    return role if role in (CHIEF, EVALUATOR) else f"{role} {index}"


def cluster_env(environ: Mapping[str, str], runtime: Any = None) -> Cluster | None:
    """Returns the cluster that the environment tells of; None for a process alone."""
    config = json.loads(environ.get("TF_CONFIG") or "{}")
    if not config.get("cluster"):
        return None
    addresses = {role: tuple(value) for role, value in config["cluster"].items()}
    task = config["task"]
    return Cluster(addresses=addresses, role=task["type"], index=int(task["index"]), source="TF_CONFIG")
