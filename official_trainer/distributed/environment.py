"""The cluster of this process, read from the variables that schedulers set, or from the config.

Owns: reading `TF_CONFIG`, the pods of a job on Kubernetes, and `runtime.worker_hosts`, and which of them applies.
Does not own: the description and its checks (`cluster.py`), reading a step of Slurm (`slurm.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.distributed import slurm
from official_trainer.distributed.cluster import (
    EVALUATOR,
    LAYOUT,
    ROLES,
    WORKER,
    Cluster,
    ClusterError,
    check_role,
    checked_cluster,
    number_variable,
    required_variable,
)
from official_trainer.errors import shorten

_KUBERNETES_PORT = 2222


def cluster_env(environ: Mapping[str, str], runtime: Any = None) -> Cluster | None:
    """Returns the cluster that this process was started in, or None for a process alone.

    The first of these that is set counts: `TF_CONFIG`, a job on Kubernetes, a step of Slurm's srun, then the config.

    Args:
      environ: the environment of this process.
      runtime: section `runtime` of the config: `worker_hosts`, `host:port` of all workers with commas between, and
        `task_index`, the number of this process in the list.

    Raises:
      ClusterError: a value is malformed, or the environment and the config differ.
    """
    found = _tf_config(environ) or _kubernetes(environ) or slurm.read(environ)
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
    pod = number_variable(
        environ, "JOB_COMPLETION_INDEX", "Kubernetes sets it where the Job has completionMode: Indexed"
    )
    if "JOBSET_NAME" not in environ:
        name = required_variable(
            environ, "JOB_NAME", "set it to the name of the Job, which its headless Service has too"
        )
        if set(layout) != {WORKER}:
            raise ClusterError(f"{LAYOUT}={environ[LAYOUT]}: a Job without a JobSet has workers only; use a JobSet")
        hosts = [f"{name}-{index}.{name}:{_KUBERNETES_PORT}" for index in range(layout[WORKER][0] * layout[WORKER][1])]
        return checked_cluster({WORKER: hosts}, WORKER, pod, LAYOUT)
    name = environ["JOBSET_NAME"]
    role = check_role(
        required_variable(environ, "REPLICATED_JOB_NAME", "take it from the pod's label"), "REPLICATED_JOB_NAME"
    )
    job = number_variable(environ, "JOB_INDEX", "take it from the pod's label") if "JOB_INDEX" in environ else 0
    addresses = {
        role: [
            f"{name}-{role}-{job}-{pod}.{name}:{_KUBERNETES_PORT}" for job in range(jobs) for pod in range(pods_per_job)
        ]
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
