"""The processes of a run by role, and which of them this one is.

Owns: the description of a cluster, and the checks of everything that describes one. Does not own: where it is read from
(`environment.py`), connecting to processes, starting them (`launch/`). Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.errors import ExitCode, UserError
from official_trainer.lazy import tf
from official_trainer.nearest import did_you_mean
from official_trainer.shown import shorten

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"
ROLES = (CHIEF, WORKER, PS, EVALUATOR)

GIVEN_GPUS = "OFFICIAL_TRAINER_GPUS"
"""Our own variable: how many GPUs an engine was asked to give the process; one that sees fewer does not train."""


class ClusterError(UserError, ValueError):
    """The environment describes the processes of a run in a way that is not possible."""

    exit_code = ExitCode.CONFIG


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """The processes of one run.

    Attributes:
      addresses: `host:port` of every process, by role.
      role: of this process.
      index: of this process among those of its role.
      source: where this was read: `TF_CONFIG` or `runtime.worker_hosts`.
    """

    addresses: Mapping[str, tuple[str, ...]]
    role: str
    index: int
    source: str

    @property
    def is_chief(self) -> bool:
        """Whether this process leads the run: the chief, or worker 0 where there is no chief."""
        return self.role == CHIEF or (self.role == WORKER and self.index == 0 and CHIEF not in self.addresses)

    @property
    def name(self) -> str:
        """The name of this process in messages: `worker 1`."""
        return process_name(self.role, self.index)

    @property
    def training(self) -> tuple[tuple[str, int], ...]:
        """Role and index of the processes that train together: the chief, if there is one, then the workers."""
        roles = (CHIEF, WORKER)
        return tuple((role, index) for role in roles for index in range(len(self.addresses.get(role, ()))))

    def resolver(self, roles: Sequence[str]) -> tf.distribute.cluster_resolver.ClusterResolver:
        """Returns TensorFlow's description of the processes with these roles, and of this process."""
        spec = tf.train.ClusterSpec({role: list(self.addresses[role]) for role in roles if role in self.addresses})
        return tf.distribute.cluster_resolver.SimpleClusterResolver(
            spec, task_type=self.role, task_id=self.index, rpc_layer="grpc"
        )

    def tf_config(self) -> dict[str, Any]:
        """Returns the value of the variable `TF_CONFIG` that TensorFlow's resolvers expect."""
        cluster = {role: list(addresses) for role, addresses in self.addresses.items()}
        return {"cluster": cluster, "task": {"type": self.role, "index": self.index}}


def given_gpus(environ: Mapping[str, str]) -> int:
    """Returns how many GPUs an engine was asked to give a process; 0 if that is not known."""
    text = environ.get(GIVEN_GPUS, "")
    return int(text) if text.isdecimal() else 0


def process_name(role: str, index: int) -> str:
    """Returns the name of a process in messages: `worker 1`; without a number for `chief`, of which there is one."""
    return role if role in (CHIEF, EVALUATOR) else f"{role} {index}"


def checked_cluster(addresses: Mapping[str, Sequence[str]], role: str, index: int, source: str) -> Cluster:
    """Returns a cluster that has passed all checks.

    Args:
      addresses: of every process, by role.
      role: of this process.
      index: of this process.
      source: the name of the variable, for messages.

    Raises:
      ClusterError: it is not possible.
    """
    listed = {name: tuple(addresses[name]) for name in ROLES if addresses.get(name)}
    seen: dict[str, str] = {}
    for name, number, address in ((n, i, a) for n in listed for i, a in enumerate(listed[n])):
        _check_address(address, f"{source}: {name}[{number}]")
        if address in seen:
            raise ClusterError(
                f"{source}: {address} is the address of both {seen[address]} and {process_name(name, number)}; "
                "each process needs its own"
            )
        seen[address] = process_name(name, number)
    what = ""
    if len(chiefs := listed.get(CHIEF, ())) > 1:
        what = f"there are {len(chiefs)} chiefs: {', '.join(chiefs)}; keep one, the others are workers"
    elif PS in listed and not chiefs:
        what = "there are parameter servers (ps), but no chief that coordinates them; add one to the cluster"
    elif PS in listed and WORKER not in listed:
        what = "there are parameter servers (ps), but no workers that compute; add at least one"
    if what:
        raise ClusterError(f"{source}: {what}")
    count = len(listed.get(role, ()))
    if role == EVALUATOR and not count:
        count = 1  # TFJob does not list it with the processes that train
    if index >= count:
        there = f"0 to {count - 1}" if count > 1 else "0 only" if count else f"no {role}"
        raise ClusterError(
            f"{source}: the index of this {role} is {index}, but there is {there}; "
            f"expected one of the processes in {', '.join(listed) or 'the cluster'}"
        )
    return Cluster(addresses=listed, role=role, index=index, source=source)


def _check_address(address: object, path: str) -> None:
    expected = "expected host:port, such as 10.0.0.1:2222 or [fd00::1]:2222"
    if not isinstance(address, str):
        raise ClusterError(f"{path} is {shorten(json.dumps(address))}; {expected}")
    host, colon, port = address.rpartition(":")
    if not colon or not host or (":" in host and not re.fullmatch(r"\[[\w:.%]+\]", host)):
        raise ClusterError(f"{path} is {address!r}, which has no port; {expected}")
    if re.search(r"[\s/,]", host):
        raise ClusterError(f"{path} is {address!r}, of which {host!r} is no host name; {expected}")
    if not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise ClusterError(f"{path} is {address!r}, of which {port!r} is no port from 1 to 65535; {expected}")


def check_role(role: object, path: str) -> str:
    """Returns a role, or raises an error that names `place`."""
    if role in ROLES:
        return str(role)
    hint = did_you_mean(CHIEF if role == "master" else str(role), ROLES)
    raise ClusterError(f"{path} is {shorten(json.dumps(role))}; expected one of {', '.join(ROLES)}{hint}")
