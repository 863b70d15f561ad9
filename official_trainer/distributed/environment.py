"""The cluster of this process, read from `TF_CONFIG`, or from the config.

Owns: reading `TF_CONFIG` and `runtime.worker_hosts`, and that they agree. Does not own: the description and its checks
(`cluster.py`), who writes `TF_CONFIG` (`processes/`, `launch/targets/`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from official_trainer.distributed.cluster import (
    EVALUATOR,
    ROLES,
    WORKER,
    Cluster,
    ClusterError,
    check_role,
    checked_cluster,
)
from official_trainer.shown import shorten

SIGNALLED_TOGETHER = "OFFICIAL_TRAINER_SIGNALLED_TOGETHER"
"""Our own variable: set where a scheduler sends SIGTERM to all processes of a job at the same time, as Slurm does."""


def cluster_env(environ: Mapping[str, str], runtime: Any = None) -> Cluster | None:
    """Returns the cluster that this process was started in, or None for a process alone.

    Args:
      environ: the environment of this process.
      runtime: section `runtime` of the config: `worker_hosts`, `host:port` of all workers with commas between, and
        `task_index`, the number of this process in the list.

    Raises:
      ClusterError: a value is malformed, or the environment and the config differ.
    """
    cluster = _tf_config(environ)
    configured = None
    if runtime is not None and runtime.worker_hosts is not None and runtime.task_index is not None:
        hosts = [host.strip() for host in runtime.worker_hosts.split(",")]
        configured = checked_cluster({WORKER: hosts}, WORKER, runtime.task_index, "runtime.worker_hosts")
    if cluster is not None and cluster.role == EVALUATOR:
        return cluster
    if cluster is not None and configured is not None and cluster.tf_config() != configured.tf_config():
        raise ClusterError(
            f"{cluster.source} and runtime.worker_hosts differ: by {cluster.source} this is {_in_words(cluster)}, "
            f"by runtime.worker_hosts and runtime.task_index {_in_words(configured)}; "
            "remove the two fields: the environment is enough"
        )
    cluster = cluster or configured
    if cluster is None or sum(len(cluster.addresses[role]) for role in cluster.addresses if role != EVALUATOR) == 1:
        return None
    return cluster


def _in_words(cluster: Cluster) -> str:
    """Returns a process and its cluster for messages."""
    addresses = [address for role in cluster.addresses for address in cluster.addresses[role]]
    return f"{cluster.name} of {shorten(','.join(addresses))}"


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
