"""The cluster of a process that Slurm's srun has started, read from the variables that srun sets.

Owns: reading these, and the ports of a job. Does not own: the description of a cluster and its checks (`cluster.py`),
the script that starts the steps (`launch/targets/slurm.py`).
"""

from __future__ import annotations

import collections
import re
import subprocess
from collections.abc import Mapping, Sequence

from official_trainer.distributed.cluster import (
    WORKER,
    Cluster,
    ClusterError,
    check_role,
    checked_cluster,
    number_variable,
    required_variable,
)
from official_trainer.errors import shorten

ROLE = "OFFICIAL_TRAINER_ROLE"
"""Our own variable: the role of the tasks of this step, where each role has a step of its own."""

HOSTS = "OFFICIAL_TRAINER_HOSTS"
"""Our own variable: the node of every process of such a job, such as `chief=n1;worker=n1,n2;ps=n2`."""

SOURCE = "Slurm"
"""The source of a cluster that was read here."""

_FIRST_PORT, _SLOTS, _PORTS_PER_SLOT = 12000, 320, 64  # ends below 32768: no port of a client's
_SRUN = "srun sets it; start this with srun, or set TF_CONFIG"


def run_scontrol(*words: str) -> str:
    """Returns what Slurm's `scontrol` prints.

    Raises:
      OSError: it cannot be run, or fails.
    """
    try:
        done = subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=60, check=True)
    except subprocess.SubprocessError as error:
        raise OSError((getattr(error, "stderr", None) or str(error)).strip()) from error
    return done.stdout


def read(environ: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster of a task of srun; None in the shell of a batch job, which has most of the variables too.

    Raises:
      ClusterError: a variable is malformed.
    """
    if "SLURM_PROCID" not in environ or not ({"SLURM_STEP_ID", "SLURM_STEPID"} & set(environ)):
        return None
    return _step_of_a_role(environ) if environ.get(HOSTS) else _step_of_workers(environ)


def _step_of_a_role(environ: Mapping[str, str]) -> Cluster:
    """Reads a job of `launch slurm` that has a step for each role."""
    nodes: dict[str, list[str]] = {}
    for part in environ[HOSTS].split(";"):
        role, _, names = part.partition("=")
        if not role or not all(names.split(",")):
            example = "chief=n1;worker=n1,n2;ps=n2"
            raise ClusterError(f"{HOSTS}={environ[HOSTS]}: cannot read {part!r}; expected such as {example}")
        nodes[role] = names.split(",")
    rank, job = (number_variable(environ, name, _SRUN) for name in ("SLURM_PROCID", "SLURM_JOB_ID"))
    role = check_role(required_variable(environ, ROLE, _SRUN), ROLE)
    here, there = environ.get("SLURMD_NODENAME"), nodes.get(role, [])[rank : rank + 1]
    if here and there and here != there[0]:
        raise ClusterError(
            f"{HOSTS}={environ[HOSTS]}: {role} {rank} belongs on {there[0]}, and srun started it on {here}; "
            "`launch slurm` sets both, so let it start the steps"
        )
    return checked_cluster(_addresses(nodes, job), role, rank, SOURCE)


def _step_of_workers(environ: Mapping[str, str]) -> Cluster | None:
    """Reads a step of several tasks, all of them workers, in the order of their ranks."""
    count_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    count = number_variable(environ, count_name, _SRUN) if count_name in environ else 1
    if count < 2:
        return None
    rank, job = (number_variable(environ, name, _SRUN) for name in ("SLURM_PROCID", "SLURM_JOB_ID"))
    list_name = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in environ else "SLURM_JOB_NODELIST"
    nodes = required_variable(environ, list_name, _SRUN)
    try:
        hosts = run_scontrol("show", "hostnames", nodes).split()
    except OSError as error:
        raise ClusterError(
            f"Slurm: `scontrol show hostnames {nodes}` fails: {error}; put scontrol on the PATH, or set TF_CONFIG"
        ) from error
    places = _places(environ, hosts, count)
    if (node := environ.get("SLURM_NODEID")) is not None and rank < count and node != str(places[rank]):
        raise ClusterError(
            f"Slurm: SLURM_NODEID={node}, but task {rank} of {count} belongs on node {places[rank]} of {nodes}; "
            "start the tasks in blocks: srun --distribution=block"
        )
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", "0"))
    slot = job + 131 * int(step if step.isdecimal() else 0)
    nodes_of_tasks = {WORKER: [hosts[number] for number in places]}
    return checked_cluster(_addresses(nodes_of_tasks, slot), WORKER, rank, SOURCE)


def _places(environ: Mapping[str, str], hosts: Sequence[str], count: int) -> list[int]:
    """Returns for each task, by rank, the number of its node."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE") or ""
    parts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in text.split(",")]
    per_node = [int(part[1]) for part in parts if part for _ in range(int(part[2] or 1))]
    if None in parts or len(per_node) != len(hosts) or sum(per_node) != count:
        raise ClusterError(
            f"Slurm: SLURM_STEP_TASKS_PER_NODE={text!r} does not distribute {count} tasks over the {len(hosts)} nodes "
            f"{shorten(','.join(hosts))}; expected such as 2(x3),1; {_SRUN}"
        )
    places = [(node, local) for node, tasks in enumerate(per_node) for local in range(tasks)]
    is_cyclic = environ.get("SLURM_DISTRIBUTION", "").startswith("cyclic")
    return [node for node, _ in (sorted(places, key=lambda place: place[::-1]) if is_cyclic else places)]


def _addresses(nodes: Mapping[str, Sequence[str]], number: int) -> dict[str, list[str]]:
    """Returns `host:port` of each process by role, from its node: its NodeAddr, or its name where Slurm has none.

    Processes that share a host have different ports, and so have jobs, by their numbers.
    """
    names = dict.fromkeys(name for listed in nodes.values() for name in listed)
    try:
        lines = run_scontrol("-o", "show", "node", ",".join(names)).splitlines()
    except OSError:
        lines = []
    known = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]
    hosts = {node["NodeName"]: node["NodeAddr"] for node in known if {"NodeName", "NodeAddr"} <= node.keys()}
    first_port = _FIRST_PORT + number % _SLOTS * _PORTS_PER_SLOT
    used: collections.Counter[str] = collections.Counter()
    found: dict[str, list[str]] = {role: [] for role in nodes}
    for role, name in ((role, name) for role, listed in nodes.items() for name in listed):
        host = hosts.get(name, name)
        found[role].append(f"{host}:{first_port + used[host]}")
        used[host] += 1
    return found
