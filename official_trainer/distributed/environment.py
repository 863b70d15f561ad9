"""The cluster of this process, read from the variables that schedulers set, or from the config.

Owns: reading `TF_CONFIG`, the pods of a job on Kubernetes, the nodes of a task of SkyPilot, a step of Slurm's srun and
`runtime.worker_hosts`; which of them applies; the ports of a Slurm job. Does not own: the description and its checks
(`cluster.py`), the script that starts a job's steps (`launch/targets/slurm.py`).
"""

from __future__ import annotations

import collections
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.distributed.cluster import (
    EVALUATOR,
    LAYOUT,
    ROLES,
    SKYPILOT_GPUS,
    WORKER,
    Cluster,
    ClusterError,
    check_role,
    checked_cluster,
)
from official_trainer.shown import shorten

ROLE = "OFFICIAL_TRAINER_ROLE"
"""Our own variable: the role of the tasks of this step, where each role has a step of its own."""

HOSTS = "OFFICIAL_TRAINER_HOSTS"
"""Our own variable: the node of every process of such a job, such as `chief=n1;worker=n1,n2;ps=n2`."""

SLURM = "Slurm"
"""The source of a cluster that was read from a step of Slurm."""

PORT = 2222
"""Of each pod or machine that has one process."""
_FIRST_PORT, _SLOTS, _PORTS_PER_SLOT = 12000, 320, 64  # ends below 32768: no port of a client's
_SRUN = "srun sets it; start this with srun, or set TF_CONFIG"
_SKYPILOT_IPS, _SKYPILOT_RANK, _SKYPILOT_NODES = "SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"
_SKY = "SkyPilot sets it for `run` of a task; start this there, or set TF_CONFIG"


def cluster_env(environ: Mapping[str, str], runtime: Any = None) -> Cluster | None:
    """Returns the cluster that this process was started in, or None for a process alone.

    The first of these that is set counts: `TF_CONFIG`, a job on Kubernetes, a task of SkyPilot, a step of Slurm's srun,
    then the config. SkyPilot comes before Slurm, on which it may run its tasks, but a job of `launch slurm` before it.

    Args:
      environ: the environment of this process.
      runtime: section `runtime` of the config: `worker_hosts`, `host:port` of all workers with commas between, and
        `task_index`, the number of this process in the list.

    Raises:
      ClusterError: a value is malformed, or the environment and the config differ.
    """
    found = _tf_config(environ) or _kubernetes(environ) or _skypilot(environ) or _slurm(environ)
    configured = None
    if runtime is not None and runtime.worker_hosts is not None and runtime.task_index is not None:
        hosts = [host.strip() for host in runtime.worker_hosts.split(",")]
        configured = checked_cluster({WORKER: hosts}, WORKER, runtime.task_index, "runtime.worker_hosts")
    if found is not None and found.role == EVALUATOR:
        return found
    if found is not None and configured is not None and found.tf_config() != configured.tf_config():
        raise ClusterError(
            f"{found.source} and runtime.worker_hosts differ: by {found.source} this is {_place(found)}, "
            f"by runtime.worker_hosts and runtime.task_index {_place(configured)}; "
            "remove the two fields: the environment is enough"
        )
    found = found or configured
    if found is None or sum(len(found.addresses[role]) for role in found.addresses if role != EVALUATOR) == 1:
        return None
    return found


def _place(cluster: Cluster) -> str:
    """Returns a process and its cluster for messages."""
    addresses = [address for role in cluster.addresses for address in cluster.addresses[role]]
    return f"{cluster.name} of {shorten(','.join(addresses))}"


def _required(environ: Mapping[str, str], name: str, fix: str) -> str:
    """Returns a variable of the environment that has to be set; `fix` is how."""
    if not environ.get(name):
        raise ClusterError(f"{name} is not set, so the processes of the run are not known; {fix}")
    return environ[name]


def _number(environ: Mapping[str, str], name: str, fix: str) -> int:
    """Returns a variable of the environment that has to be a number from 0; `fix` is how to set it."""
    text = _required(environ, name, fix)
    if not (text.isascii() and text.isdecimal()):
        raise ClusterError(f"{name}={text!r}: expected a number from 0; {fix}")
    return int(text)


# TF_CONFIG: set by Vertex AI, TFJob, `launch`, or by hand.


def _tf_config(environ: Mapping[str, str]) -> Cluster | None:
    text = environ.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ClusterError(
            f"TF_CONFIG is {shorten(text)!r}, which is not JSON ({error}); "
            f"expected {_TF_CONFIG_EXAMPLE}, or unset it to train in one process"
        ) from None
    config = _section(config, "", ())
    if not config.get("cluster") and not config.get("task"):
        return None
    cluster = _section(config.get("cluster") or {}, ".cluster", ROLES)
    for role, addresses in cluster.items():
        if not isinstance(addresses, list):
            what = shorten(json.dumps(addresses))
            raise ClusterError(f"TF_CONFIG: cluster.{role} is {what}; expected a list of host:port")
    if not config.get("task"):
        raise ClusterError(f"TF_CONFIG does not name this process: task is missing; expected {_TF_CONFIG_EXAMPLE}")
    task = _section(config["task"], ".task", ())
    role, index = check_role(task.get("type"), "TF_CONFIG: task.type"), task.get("index", 0)
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise ClusterError(f"TF_CONFIG: task.index is {shorten(json.dumps(index))}; expected a number from 0, unquoted")
    return checked_cluster(cluster, role, index, "TF_CONFIG")


def _section(value: object, path: str, names: Sequence[str]) -> dict[str, Any]:
    """Returns a part of `TF_CONFIG` that has to be an object, whose keys are roles if `names` are given."""
    if not isinstance(value, dict):
        what = shorten(json.dumps(value))
        raise ClusterError(f"TF_CONFIG{path} is {what}; expected an object, as in {_TF_CONFIG_EXAMPLE}")
    for key in value if names else ():
        check_role(key, f"TF_CONFIG: a role in {path.lstrip('.')}")
    return value


_TF_CONFIG_EXAMPLE = '{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}'


# Kubernetes: JobSet, or one Indexed Job.


def _kubernetes(environ: Mapping[str, str]) -> Cluster | None:
    """Reads the cluster of a pod.

    A pod is called `<jobset>-<replicated job>-<job>-<pod>.<jobset>`, in a plain Indexed Job `<job>-<pod>.<job>`. A
    replicated job has the name of its role. No controller sets the number of pods of each role, so `LAYOUT` does;
    without it the pods do not form a cluster.
    """
    if not environ.get(LAYOUT):
        return None
    layout = _read_layout(environ[LAYOUT])
    pod = _number(environ, "JOB_COMPLETION_INDEX", "Kubernetes sets it where the Job has completionMode: Indexed")
    if "JOBSET_NAME" not in environ:
        name = _required(environ, "JOB_NAME", "set it to the name of the Job, which its headless Service has too")
        if set(layout) != {WORKER}:
            raise ClusterError(f"{LAYOUT}={environ[LAYOUT]}: a Job without a JobSet has workers only; use a JobSet")
        hosts = [f"{name}-{index}.{name}:{PORT}" for index in range(layout[WORKER][0] * layout[WORKER][1])]
        return checked_cluster({WORKER: hosts}, WORKER, pod, LAYOUT)
    name = environ["JOBSET_NAME"]
    role = check_role(_required(environ, "REPLICATED_JOB_NAME", "take it from the pod's label"), "REPLICATED_JOB_NAME")
    job = _number(environ, "JOB_INDEX", "take it from the pod's label") if "JOB_INDEX" in environ else 0
    addresses = {
        role: [f"{name}-{role}-{job}-{pod}.{name}:{PORT}" for job in range(jobs) for pod in range(pods_per_job)]
        for role, (jobs, pods_per_job) in layout.items()
    }
    pods_per_job = layout.get(role, (1, 1))[1]
    if pod >= pods_per_job:
        raise ClusterError(f"JOB_COMPLETION_INDEX={pod}, but by {LAYOUT}={environ[LAYOUT]} a job of {role} has "
                           f"{pods_per_job}; make {LAYOUT} agree with the JobSet")  # fmt: skip
    return checked_cluster(addresses, role, job * pods_per_job + pod, LAYOUT)


def _read_layout(text: str) -> dict[str, tuple[int, int]]:
    """Returns (jobs, pods of each) by role: `worker=4` is one job of four pods, `worker=2x4` is two jobs of four."""
    layout: dict[str, tuple[int, int]] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)=(?:(\d+)x)?(\d+)\s*", part)
        if not match:
            raise ClusterError(f"{LAYOUT}={text}: cannot read {part!r}; expected such as chief=1,worker=4,ps=2")
        role = check_role(match[1], f"{LAYOUT}={text}: a role")
        if role in layout:
            raise ClusterError(f"{LAYOUT}={text}: {role} is there twice; keep one")
        layout[role] = (int(match[2] or 1), int(match[3]))
    return layout


# SkyPilot: a node of a task.


def _skypilot(environ: Mapping[str, str]) -> Cluster | None:
    """Reads the cluster of a node, of which each has one worker; None outside of the `run` commands of a task."""
    if not {_SKYPILOT_IPS, _SKYPILOT_RANK} & set(environ) or environ.get(HOSTS):
        return None
    hosts, rank = _required(environ, _SKYPILOT_IPS, _SKY).split(), _number(environ, _SKYPILOT_RANK, _SKY)
    if SKYPILOT_GPUS in environ:
        _number(environ, SKYPILOT_GPUS, _SKY)
    if _SKYPILOT_NODES in environ and (count := _number(environ, _SKYPILOT_NODES, _SKY)) != len(hosts):
        listed = f"{_SKYPILOT_IPS} has {len(hosts)}: {shorten(','.join(hosts))}"
        raise ClusterError(f"SkyPilot: {_SKYPILOT_NODES}={count}, but {listed}; {_SKY}")
    addresses = [f"[{host}]:{PORT}" if ":" in host else f"{host}:{PORT}" for host in hosts]
    return checked_cluster({WORKER: addresses}, WORKER, rank, "SkyPilot")


# Slurm: a task that srun has started.


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


def _slurm(environ: Mapping[str, str]) -> Cluster | None:
    """Reads the cluster of a task of srun; None in the shell of a batch job, which has most of the variables too."""
    if "SLURM_PROCID" not in environ or not ({"SLURM_STEP_ID", "SLURM_STEPID"} & set(environ)):
        return None
    if not environ.get(HOSTS):
        return _step_of_workers(environ)
    # A job of `launch slurm` that has a step for each role.
    nodes: dict[str, list[str]] = {}
    for part in environ[HOSTS].split(";"):
        role, _, names = part.partition("=")
        if not role or not all(names.split(",")):
            example = "chief=n1;worker=n1,n2;ps=n2"
            raise ClusterError(f"{HOSTS}={environ[HOSTS]}: cannot read {part!r}; expected such as {example}")
        nodes[role] = names.split(",")
    rank, job = (_number(environ, name, _SRUN) for name in ("SLURM_PROCID", "SLURM_JOB_ID"))
    role = check_role(_required(environ, ROLE, _SRUN), ROLE)
    here, there = environ.get("SLURMD_NODENAME"), nodes.get(role, [])[rank : rank + 1]
    if here and there and here != there[0]:
        raise ClusterError(
            f"{HOSTS}={environ[HOSTS]}: {role} {rank} belongs on {there[0]}, and srun started it on {here}; "
            "`launch slurm` sets both, so let it start the steps"
        )
    return checked_cluster(_addresses(nodes, job), role, rank, SLURM)


def _step_of_workers(environ: Mapping[str, str]) -> Cluster | None:
    """Reads a step of several tasks, all of them workers, in the order of their ranks."""
    count_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    count = _number(environ, count_name, _SRUN) if count_name in environ else 1
    if count < 2:
        return None
    rank, job = (_number(environ, name, _SRUN) for name in ("SLURM_PROCID", "SLURM_JOB_ID"))
    list_name = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in environ else "SLURM_JOB_NODELIST"
    nodes = _required(environ, list_name, _SRUN)
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
    return checked_cluster(_addresses(nodes_of_tasks, slot), WORKER, rank, SLURM)


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
