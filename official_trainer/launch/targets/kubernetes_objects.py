"""A job as an object of Kubernetes: a JobSet, or a TFJob of Kubeflow's training operator.

Owns: what is restarted, what ends the job, which pods get SIGTERM when, and the environment of a pod. Pure.
Does not own: what is refused (`kubernetes_profile.py`, `kubernetes.py`), how a process reads its environment
(`distributed/cluster.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from official_trainer.distributed.cluster import CHIEF, EVALUATOR, LAYOUT, PS, WORKER
from official_trainer.distributed.tpu import LOCAL
from official_trainer.errors import START_AGAIN, ExitCode
from official_trainer.launch.profile import Resources
from official_trainer.launch.spec import JobSpec, Role, literal
from official_trainer.launch.targets.kubernetes_profile import KubernetesProfile

INSTANCE_LABEL = "app.kubernetes.io/instance"
"""The label that the job and all of its pods have."""

FINAL_CODES = tuple(code for code in ExitCode if code and code not in START_AGAIN)
"""Exit codes that end a job for good; a pod that a signal has killed is started again."""

_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_TFJOB_ROLES = {CHIEF: "Chief", WORKER: "Worker", PS: "PS"}
_PORT = 2222  # of `distributed/cluster.py`, and the default of the training operator
_AFTER_HOOK_SECONDS = 10  # the grace period includes the time of a hook


def jobset(job: JobSpec, profile: KubernetesProfile) -> dict[str, Any]:
    """Returns the JobSet: restarted as a whole, except workers of parameter servers and the evaluator."""
    waited_for = [role.name for role in job.roles if role.name in (CHIEF, EVALUATOR)]
    spec: dict[str, Any] = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": job.name}
    }
    if job.has_servers:  # workers and servers end after the chief, and only its success counts
        spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": waited_for}
    spec["failurePolicy"] = {
        "maxRestarts": profile.max_restarts,
        "restartStrategy": "BlockingRecreate",  # else new processes could meet old ones that are still saving
        "rules": [{"name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
    }
    if profile.ttl_seconds is not None:
        spec["ttlSecondsAfterFinished"] = profile.ttl_seconds
    spec["replicatedJobs"] = [_replicated_job(job, role, profile) for role in job.roles]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(job, profile),
        "spec": spec,
    }


def tfjob(job: JobSpec, profile: KubernetesProfile) -> dict[str, Any]:
    """Returns the TFJob. Its operator writes `TF_CONFIG`, and restarts pods that end with 128 or more."""
    policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": profile.max_restarts}
    if profile.ttl_seconds is not None:
        policy["ttlSecondsAfterFinished"] = profile.ttl_seconds
    spec: dict[str, Any] = {"runPolicy": policy}
    if all(role.name != CHIEF for role in job.roles):
        spec["successPolicy"] = "AllWorkers"  # else the end of worker 0 kills the others
    spec["tfReplicaSpecs"] = {
        _TFJOB_ROLES[role.name]: {
            "replicas": role.count,
            "restartPolicy": "ExitCode",
            "template": _template(job, role, profile),
        }
        for role in job.roles
    }
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": _metadata(job, profile), "spec": spec}


def pod_names(job: JobSpec, profile: KubernetesProfile) -> tuple[str, ...]:
    """Returns the longest pod name of each role."""
    middle, end = ("-0-", "-abcde") if profile.kind == "jobset" else ("-", "")
    return tuple(f"{job.name}-{role.name}{middle}{role.count - 1}{end}" for role in job.roles)


def _metadata(job: JobSpec, profile: KubernetesProfile) -> dict[str, Any]:
    labels = _labels(job, profile) | ({_QUEUE_LABEL: profile.queue} if profile.queue else {})
    namespace = {"namespace": profile.namespace} if profile.namespace else {}
    return {"name": job.name, **namespace, "labels": labels}


def _labels(job: JobSpec, profile: KubernetesProfile) -> dict[str, str]:
    return {**profile.labels, INSTANCE_LABEL: job.name}


def _replicated_job(job: JobSpec, role: Role, profile: KubernetesProfile) -> dict[str, Any]:
    is_single = role.name == EVALUATOR or (role.name == WORKER and job.has_servers)
    container = "trainer"
    spec = {
        "completionMode": "Indexed",
        "completions": role.count,
        "parallelism": role.count,
        "backoffLimit": profile.max_restarts if is_single else 0,
        "podFailurePolicy": {"rules": _rules(container)},
        "template": _template(job, role, profile, container=container),
    }
    return {"name": role.name, "replicas": 1, "template": {"spec": spec}}


def _rules(container: str) -> list[dict[str, Any]]:
    """Returns which ends of a pod are ignored, and which end the job for good; all others count as a failure."""
    codes = list(map(int, FINAL_CODES))
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"containerName": container, "operator": "In", "values": codes}},
    ]


def _template(job: JobSpec, role: Role, profile: KubernetesProfile, *, container: str | None = None) -> dict[str, Any]:
    """Returns the template for pods of a role; without the name of a container, that of a TFJob."""
    serves = job.has_servers and role.name in (WORKER, PS)
    grace_seconds = math.ceil(job.grace_seconds)
    spec: dict[str, Any] = {} if container is None else {"restartPolicy": "Never"}
    spec["terminationGracePeriodSeconds"] = grace_seconds + (_AFTER_HOOK_SECONDS if serves else 0)
    if profile.service_account:
        spec["serviceAccountName"] = profile.service_account
    if profile.priority_class:
        spec["priorityClassName"] = profile.priority_class
    if profile.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in profile.image_pull_secrets]
    if selector := {**profile.node_selector, **_tpu_nodes(profile)}:
        spec["nodeSelector"] = selector
    if profile.tolerations:
        filled = [toleration.as_dict() for toleration in profile.tolerations]
        spec["tolerations"] = [{key: value for key, value in each.items() if value} for each in filled]
    main = _container(job, role, profile, container)
    if serves:  # SIGTERM reaches those that serve only after the chief has had time to save their values
        main["lifecycle"] = {"preStop": {"sleep": {"seconds": grace_seconds}}}
    shares_memory = profile.resources_of(role.name).gpus > 1
    if mounts := _mounts(profile, shares_memory):
        main["volumeMounts"] = mounts
        spec["volumes"] = _volumes(profile, shares_memory)
    return {"metadata": {"labels": _labels(job, profile)}, "spec": {**spec, "containers": [main]}}


def _container(job: JobSpec, role: Role, profile: KubernetesProfile, name: str | None) -> dict[str, Any]:
    module, *words = role.argv
    main: dict[str, Any] = {
        "name": name or "tensorflow",  # the training operator looks for this name, and for this port
        "image": profile.image,
        "command": ["python", "-m", module],
        "args": [literal(word) for word in words],
        "env": _environ(job, role, profile, in_jobset=name is not None),
    }
    if name is None:
        main["ports"] = [{"name": "tfjob-port", "containerPort": _PORT}]
    if resources := _resources(profile.resources_of(role.name), profile):
        main["resources"] = resources
    return main


def _environ(job: JobSpec, role: Role, profile: KubernetesProfile, *, in_jobset: bool) -> list[dict[str, Any]]:
    variables: list[dict[str, Any]] = []
    if in_jobset:
        layout = ",".join(f"{other.name}={other.count}" for other in job.in_cluster)
        variables = [{"name": LAYOUT, "value": layout}] + [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['jobset.sigs.k8s.io/{label}']"}}}
            for name, label in (
                ("JOBSET_NAME", "jobset-name"),
                ("REPLICATED_JOB_NAME", "replicatedjob-name"),
                ("JOB_INDEX", "job-index"),
            )
        ]
    values = {"PYTHONUNBUFFERED": "1", **({"TPU_NAME": LOCAL} if profile.tpu else {}), **role.environ}
    variables += [{"name": name, "value": literal(value)} for name, value in {**values, **profile.environ}.items()]
    return variables + [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret.secret, "key": secret.key}}}
        for name, secret in profile.secrets.items()
    ]


def _resources(wanted: Resources, profile: KubernetesProfile) -> dict[str, Any]:
    memory: Mapping[str, str] = {}
    if wanted.memory_gib is not None:
        whole = wanted.memory_gib == int(wanted.memory_gib)
        amount = f"{int(wanted.memory_gib)}Gi" if whole else f"{round(wanted.memory_gib * 1024)}Mi"
        memory = {"memory": amount}
    devices = {profile.gpu_resource: str(wanted.gpus)} if wanted.gpus else {}
    if profile.tpu is not None:
        devices["google.com/tpu"] = str(profile.tpu.chips)
    requests = {**({"cpu": str(wanted.cpus)} if wanted.cpus is not None else {}), **memory, **devices}
    limits = {**memory, **devices}  # a limit on cores would only slow a process down
    return {name: found for name, found in (("requests", requests), ("limits", limits)) if found}


def _tpu_nodes(profile: KubernetesProfile) -> dict[str, str]:
    if profile.tpu is None:
        return {}
    spot = {"cloud.google.com/gke-spot": "true"} if profile.tpu.spot else {}
    return {
        "cloud.google.com/gke-tpu-accelerator": profile.tpu.accelerator,
        "cloud.google.com/gke-tpu-topology": profile.tpu.topology,
        **spot,
    }


def _volume_names(profile: KubernetesProfile) -> dict[str, str]:
    """Returns a volume name for each claim."""
    claims = dict.fromkeys(volume.claim for volume in profile.volumes)
    return {claim: f"claim-{number}" for number, claim in enumerate(claims)}


def _mounts(profile: KubernetesProfile, shares_memory: bool) -> list[dict[str, Any]]:
    names = _volume_names(profile)
    mounts = [
        {"name": names[volume.claim], "mountPath": volume.path, **({"readOnly": True} if volume.read_only else {})}
        for volume in profile.volumes
    ]
    return mounts + ([{"name": "shared-memory", "mountPath": "/dev/shm"}] if shares_memory else [])


def _volumes(profile: KubernetesProfile, shares_memory: bool) -> list[dict[str, Any]]:
    claims = [
        {"name": name, "persistentVolumeClaim": {"claimName": claim}} for claim, name in _volume_names(profile).items()
    ]  # NCCL needs more shared memory between GPUs than the 64 MiB that a container has
    return claims + ([{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}] if shares_memory else [])
