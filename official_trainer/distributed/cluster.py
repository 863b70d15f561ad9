"""Who takes part in a run: its processes by role, and which of them this one is.

Owns: the description of a cluster, and reading it from what schedulers leave in the environment.
Does not own: connecting to anybody, starting processes (`launch/`). Imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from official_trainer.distributed import slurm
from official_trainer.errors import ExitCode, UserError, nearest, shorten

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"
ROLES = (CHIEF, WORKER, PS, EVALUATOR)

LAYOUT = "OFFICIAL_TRAINER_CLUSTER"
"""Our own variable: how many pods of each role a job on Kubernetes has, such as `chief=1,worker=4,ps=2`."""

GIVEN_GPUS = "OFFICIAL_TRAINER_GPUS"
"""Our own variable: how many GPUs an engine was asked to give the process; one that sees fewer does not train."""

_KUBERNETES_PORT = 2222


class ClusterError(UserError, ValueError):
    """What the environment says about the processes of a run cannot be."""

    exit_code = ExitCode.CONFIG


class WorkerHosts(Protocol):
    """What Model Garden's config says about the processes of a run."""

    @property
    def worker_hosts(self) -> str | None:
        """`host:port` of all workers, with commas between."""

    @property
    def task_index(self) -> int | None:
        """Which of them this process is."""


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


def cluster_env(
    environ: Mapping[str, str],
    runtime: WorkerHosts | None = None,
    *,
    scontrol: Callable[..., str] = slurm.run_scontrol,
) -> Cluster | None:
    """Returns the cluster that this process was started in, or None for a process alone.

    The first that says something counts: `TF_CONFIG`, a job on Kubernetes, a step of Slurm's srun, then the config.

    Args:
      environ: the environment of this process.
      runtime: section `runtime` of the config.
      scontrol: runs Slurm's `scontrol` with these words; an OSError says that it cannot.

    Raises:
      ClusterError: something there is malformed, or the environment and the config differ.
    """
    said = _tf_config(environ) or _kubernetes(environ) or _slurm(environ, scontrol)
    configured = _worker_hosts(runtime) if runtime is not None else None
    if said is not None and said.role == EVALUATOR:
        return said
    if said is not None and configured is not None and said.tf_config() != configured.tf_config():
        raise ClusterError(
            f"{said.source} and runtime.worker_hosts differ: by {said.source} this is {_place(said)}, "
            f"by runtime.worker_hosts and runtime.task_index {_place(configured)}; "
            "remove the two fields: the environment is enough"
        )
    found = said or configured
    if found is None or sum(len(found.addresses[role]) for role in found.addresses if role != EVALUATOR) == 1:
        return None
    return found


def _place(cluster: Cluster) -> str:
    """Returns a process and its cluster in words."""
    addresses = [address for role in cluster.addresses for address in cluster.addresses[role]]
    return f"{cluster.name} of {shorten(','.join(addresses))}"


def _checked(addresses: Mapping[str, Sequence[str]], role: str, index: int, source: str) -> Cluster:
    """Returns a cluster of which everything is known to be possible.

    Args:
      addresses: of every process, by role.
      role: of this process.
      index: of this process.
      source: the variable that says so, for messages.
    """
    found = {name: tuple(addresses[name]) for name in ROLES if addresses.get(name)}
    seen: dict[str, str] = {}
    for name, number, address in ((n, i, a) for n in found for i, a in enumerate(found[n])):
        _check_address(address, f"{source}: {name}[{number}]")
        if address in seen:
            raise ClusterError(
                f"{source}: {address} is the address of both {seen[address]} and {process_name(name, number)}; "
                "each process needs its own"
            )
        seen[address] = process_name(name, number)
    for problem in _impossible(found):
        raise ClusterError(f"{source}: {problem}")
    count = len(found.get(role, ()))
    if role == EVALUATOR and not count:
        count = 1  # Vertex AI and TFJob do not name it among the processes that train
    if index >= count:
        there = f"0 to {count - 1}" if count > 1 else "0 only" if count else f"no {role} at all"
        raise ClusterError(
            f"{source}: the index of this {role} is {index}, but there is {there}; "
            f"expected one of the processes in {', '.join(found) or 'the cluster'}"
        )
    return Cluster(addresses=found, role=role, index=index, source=source)


def _impossible(found: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Yields what cannot be, whichever process this is."""
    if len(found.get(CHIEF, ())) > 1:
        yield f"there are {len(found[CHIEF])} chiefs: {', '.join(found[CHIEF])}; keep one, the others are workers"
    if PS in found and CHIEF not in found:
        yield "there are parameter servers (ps), but no chief that coordinates them; add one to the cluster"
    if PS in found and WORKER not in found:
        yield "there are parameter servers (ps), but no workers that compute; add at least one"


def _check_address(address: object, place: str) -> None:
    expected = "expected host:port, such as 10.0.0.1:2222 or [fd00::1]:2222"
    if not isinstance(address, str):
        raise ClusterError(f"{place} is {shorten(json.dumps(address))}; {expected}")
    host, colon, port = address.rpartition(":")
    if not colon or not host or (":" in host and not re.fullmatch(r"\[[\w:.%]+\]", host)):
        raise ClusterError(f"{place} is {address!r}, which has no port; {expected}")
    if re.search(r"[\s/,]", host):
        raise ClusterError(f"{place} is {address!r}, of which {host!r} is no host name; {expected}")
    if not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise ClusterError(f"{place} is {address!r}, of which {port!r} is no port from 1 to 65535; {expected}")


def _check_role(role: object, place: str) -> str:
    if role in ROLES:
        return str(role)
    near = [CHIEF] if role == "master" else nearest(str(role), ROLES)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ClusterError(f"{place} is {shorten(json.dumps(role))}; expected one of {', '.join(ROLES)}{hint}")


# TF_CONFIG: Vertex AI, TFJob, `launch`, and whoever sets it by hand.


def _tf_config(environ: Mapping[str, str]) -> Cluster | None:
    text = environ.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ClusterError(
            f"TF_CONFIG is {shorten(text)!r}, which is no JSON ({error}); "
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
        raise ClusterError(f"TF_CONFIG says nothing of this process: task is missing; expected {_TF_CONFIG_EXAMPLE}")
    task = _section(config["task"], ".task", ())
    role, index = _check_role(task.get("type"), "TF_CONFIG: task.type"), task.get("index", 0)
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise ClusterError(f"TF_CONFIG: task.index is {shorten(json.dumps(index))}; expected a number from 0, unquoted")
    return _checked(cluster, role, index, "TF_CONFIG")


def _section(value: object, path: str, names: Sequence[str]) -> dict[str, Any]:
    """Returns a part of `TF_CONFIG` that has to be an object, whose keys are among `names` if there are any."""
    if not isinstance(value, dict):
        what = shorten(json.dumps(value))
        raise ClusterError(f"TF_CONFIG{path} is {what}; expected an object, as in {_TF_CONFIG_EXAMPLE}")
    for key in value if names else ():
        _check_role(key, f"TF_CONFIG: a role in {path.lstrip('.')}")
    return value


_TF_CONFIG_EXAMPLE = '{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}'


# Kubernetes: JobSet, or one Indexed Job.


def _kubernetes(environ: Mapping[str, str]) -> Cluster | None:
    """Reads the cluster of a pod.

    A pod is called `<jobset>-<replicated job>-<job>-<pod>.<jobset>`, in a plain Indexed Job `<job>-<pod>.<job>`. A
    replicated job has the name of its role. How many there are, no controller says, so `LAYOUT` does; without it
    the pods have nothing to do with each other.
    """
    if not environ.get(LAYOUT):
        return None
    layout = _read_layout(environ[LAYOUT])
    pod = _number(environ, "JOB_COMPLETION_INDEX", "Kubernetes sets it where the Job has completionMode: Indexed")
    if "JOBSET_NAME" not in environ:
        name = _needed(environ, "JOB_NAME", "set it to the name of the Job, which its headless Service has too")
        if set(layout) != {WORKER}:
            raise ClusterError(f"{LAYOUT}={environ[LAYOUT]}: a Job without a JobSet has workers only; use a JobSet")
        hosts = [f"{name}-{index}.{name}:{_KUBERNETES_PORT}" for index in range(layout[WORKER][0] * layout[WORKER][1])]
        return _checked({WORKER: hosts}, WORKER, pod, LAYOUT)
    name = environ["JOBSET_NAME"]
    role = _check_role(_needed(environ, "REPLICATED_JOB_NAME", "take it from the pod's label"), "REPLICATED_JOB_NAME")
    job = _number(environ, "JOB_INDEX", "take it from the pod's label") if "JOB_INDEX" in environ else 0
    addresses = {
        role: [
            f"{name}-{role}-{job}-{pod}.{name}:{_KUBERNETES_PORT}" for job in range(jobs) for pod in range(pods_per_job)
        ]
        for role, (jobs, pods_per_job) in layout.items()
    }
    pods_per_job = layout.get(role, (1, 1))[1]
    if pod >= pods_per_job:
        raise ClusterError(f"JOB_COMPLETION_INDEX={pod}, but by {LAYOUT}={environ[LAYOUT]} a job of {role} has "
                           f"{pods_per_job}; make {LAYOUT} what the JobSet says")  # fmt: skip
    return _checked(addresses, role, job * pods_per_job + pod, LAYOUT)


def _read_layout(text: str) -> dict[str, tuple[int, int]]:
    """Returns (jobs, pods of each) by role: `worker=4` is one job of four pods, `worker=2x4` is two jobs of four."""
    layout: dict[str, tuple[int, int]] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)=(?:(\d+)x)?(\d+)\s*", part)
        if not match:
            raise ClusterError(f"{LAYOUT}={text}: cannot read {part!r}; expected such as chief=1,worker=4,ps=2")
        role = _check_role(match[1], f"{LAYOUT}={text}: a role")
        if role in layout:
            raise ClusterError(f"{LAYOUT}={text}: {role} is there twice; keep one")
        layout[role] = (int(match[2] or 1), int(match[3]))
    return layout


# Slurm: a step of srun.


def _slurm(environ: Mapping[str, str], scontrol: Callable[..., str]) -> Cluster | None:
    try:
        step = slurm.read(environ, scontrol)
    except slurm.StepError as error:
        raise ClusterError(str(error)) from error
    if step is None:
        return None
    role = _check_role(step.role, slurm.ROLE)
    return _checked(step.addresses, role, step.index, slurm.SOURCE)


# The config.


def _worker_hosts(runtime: WorkerHosts) -> Cluster | None:
    if runtime.worker_hosts is None or runtime.task_index is None:
        return None
    hosts = [host.strip() for host in runtime.worker_hosts.split(",")]
    return _checked({WORKER: hosts}, WORKER, runtime.task_index, "runtime.worker_hosts")


def _needed(environ: Mapping[str, str], name: str, fix: str) -> str:
    if not environ.get(name):
        raise ClusterError(f"{name} is not set, so who takes part in the run is not known; {fix}")
    return environ[name]


def _number(environ: Mapping[str, str], name: str, fix: str) -> int:
    text = _needed(environ, name, fix)
    if not (text.isascii() and text.isdecimal()):
        raise ClusterError(f"{name}={text!r}: expected a number from 0; {fix}")
    return int(text)
