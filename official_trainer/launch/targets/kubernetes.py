"""Jobs on Kubernetes: a JobSet, handed over with kubectl.

Owns: jobs that the cluster would refuse or not run as intended; the object: what is restarted, what ends the job, which
pods get SIGTERM when, and the environment of a pod, `TF_CONFIG` among it; the commands of kubectl.
Does not own: the profile and its checks (`kubernetes_profile.py`), what a process makes of `TF_CONFIG`
(`distributed/environment.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from official_trainer import files
from official_trainer.distributed.cluster import CHIEF, EVALUATOR, PS, WORKER
from official_trainer.errors import START_AGAIN, ExitCode
from official_trainer.launch.profile import Resources
from official_trainer.launch.spec import JobSpec, files_of_this_machine, is_in
from official_trainer.launch.target import Argv, Commands, Rendered, Target
from official_trainer.launch.targets.kubernetes_profile import INDEX, KubernetesProfile
from official_trainer.launch.targets.rendering import dump_yaml, filled, merged
from official_trainer.processes.job import Role

INSTANCE_LABEL = "app.kubernetes.io/instance"
"""The label that the job and all of its pods have."""

FINAL_CODES = tuple(code for code in ExitCode if code and code not in START_AGAIN)
"""Exit codes that end a job for good; a pod that a signal has killed is started again."""

_FILE = "jobset.yaml"
CONTAINER = "trainer"
_GROUP = 1000  # of the user in launch/Dockerfile
_EVICTED = "DisruptionTarget"  # the condition of a pod that the cluster ends: a drained node, preemption, a spot node
_NO_LIMIT = 2**31 - 1  # of restarts; Kubernetes waits longer after each, up to ten minutes
_AFTER_HOOK_SECONDS = 10  # the grace period includes the time of a hook
_MOST_LOGS = 1000  # kubectl refuses to read more pods; failed pods that were replaced count too
_PORT = 2222
_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
_RESOURCE = "jobsets.jobset.x-k8s.io"


class Kubernetes(Target[KubernetesProfile]):
    """Kubernetes, through kubectl and JobSet."""

    name = "kubernetes"
    profile_class = KubernetesProfile
    needs = "kubectl, with a context for the cluster"
    runs_sweeps = True

    def problems(self, job: JobSpec) -> Iterator[str]:
        yield from _unseen_files(job, self.profile)

    def render(self, job: JobSpec) -> Rendered:
        jobset = merged(_rendered_jobset(job, self.profile), self.profile.job)
        # Not `apply`: it leaves an existing job of this name as it is, even one that has ended, and reports success.
        return Rendered(files={_FILE: dump_yaml(jobset)}, submit=self._kubectl("create", f"--filename={_FILE}"))

    def commands(self, job: JobSpec, job_id: str, folder: str) -> Commands:
        selector = f"--selector={INSTANCE_LABEL}={job_id}"
        words = ("--all-containers", "--prefix", "--tail=-1", f"--max-log-requests={_MOST_LOGS}")
        ending = ("--cascade=foreground", "--ignore-not-found")  # it returns when the pods have saved and ended
        return Commands(
            status=self._kubectl("get", f"{_RESOURCE},pods", "--output=wide", selector),
            logs=self._kubectl("logs", *words, selector),
            cancel=self._kubectl("delete", _RESOURCE, job_id, *ending),
        )

    def _kubectl(self, verb: str, *words: str) -> Argv:
        """Returns a command of kubectl in the cluster and namespace of the profile."""
        where = (("context", self.profile.context), ("namespace", self.profile.namespace))
        return ("kubectl", *(f"--{name}={value}" for name, value in where if value), verb, *words)


def _unseen_files(job: JobSpec, profile: KubernetesProfile) -> Iterator[str]:
    """Yields paths of this machine that pods would not find, or would lose."""
    if not files.is_url(job.model_dir):
        volume = next((claim for claim in profile.volumes if is_in(job.model_dir, claim.path)), None)
        if volume is None:
            yield (
                f"--model_dir={job.model_dir} is in no volume, so each pod would have its own, and lose it at its "
                "end; use a URL such as gs://BUCKET/RUN, or a path below a volume: "
                "volumes: [{claim: NAME, path: /runs}] and --model_dir=/runs/RUN"
            )
        elif volume.read_only:
            yield f"--model_dir={job.model_dir} is in volume {volume.path}, which is read_only; set that to false"
    elif not job.model_dir.startswith(("gs://", "s3://")):
        what = f"--model_dir={job.model_dir}: pods do not share {job.model_dir.partition('://')[0]}://"
        yield f"{what}; use gs://BUCKET/RUN, s3://BUCKET/RUN, or a path below a volume"
    for word, path in files_of_this_machine(job).items():
        if not any(is_in(path, volume.path) for volume in profile.volumes):
            what = f"{word} is a file of this machine; use its path relative to the image's working directory"
            yield f"{what}, which has a copy of the workspace, or put it on a volume"


def _rendered_jobset(job: JobSpec, profile: KubernetesProfile) -> dict[str, Any]:
    """Returns the JobSet: restarted as a whole, except those that restart alone (`_restarts_alone`)."""
    waited_for = [role.name for role in job.roles if role.name in (CHIEF, EVALUATOR)]
    # Workers and servers end after the chief, and only its success counts.
    success = {"operator": "All", "targetReplicatedJobs": waited_for} if job.has_servers else None
    failure = {
        "maxRestarts": profile.max_restarts,
        "restartStrategy": "BlockingRecreate",  # else new processes could meet old ones that are still saving
        "rules": _rules_of_jobset(job),
    }
    jobs = []
    for role in job.roles:
        alone = _NO_LIMIT if role.name == EVALUATOR else profile.max_restarts
        of_role = {
            "completionMode": "Indexed",
            "completions": role.count,
            "parallelism": role.count,
            "backoffLimit": alone if _restarts_alone(job, role) else 0,
            "podFailurePolicy": {"rules": _rules_of_pods(job, role)},
            "template": merged(_rendered_template(job, role, profile), profile.pod),
        }
        jobs.append({"name": role.name, "replicas": 1, "template": {"spec": of_role}})
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": job.name},
        "successPolicy": success,
        "failurePolicy": failure,
        "replicatedJobs": jobs,
    }
    metadata = filled({"name": job.name, "namespace": profile.namespace, "labels": {INSTANCE_LABEL: job.name}})
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": filled(spec)}


def _restarts_alone(job: JobSpec, role: Role) -> bool:
    """Returns whether the others go on without a pod of this role, and with the one that takes its place."""
    return job.is_sweep or role.name == EVALUATOR or (role.name == WORKER and job.has_servers)


def _rules_of_pods(job: JobSpec, role: Role) -> list[dict[str, Any]]:
    """Returns which ends of a pod do not count, and which fail its Job; all others count up to `backoffLimit`.

    A Job fails also for what does not count if all restart together: `_rules_of_jobset` reads why in its message.
    """
    action = "Ignore" if _restarts_alone(job, role) else "FailJob"
    rules: list[dict[str, Any]] = [
        {"action": action, "onPodConditions": [{"type": _EVICTED, "status": "True"}]},
        {"action": action, "onExitCodes": _exits(START_AGAIN)},
        {"action": "FailJob", "onExitCodes": _exits(FINAL_CODES)},
    ]
    return rules[:2] if role.name == EVALUATOR else rules  # no failure of a JobSet's Job leaves the other Jobs alone


def _exits(codes: Iterable[ExitCode]) -> dict[str, Any]:
    return {"containerName": CONTAINER, "operator": "In", "values": sorted(map(int, codes))}


def _rules_of_jobset(job: JobSpec) -> list[dict[str, Any]]:
    """Returns what follows from the failure of a Job; without a rule all restart, which counts.

    Each rule of pods fails a Job for the same reason, so the message of Kubernetes' Job controller tells them apart.
    If a later version writes another one, no rule applies.
    """
    alone = [role.name for role in job.roles if _restarts_alone(job, role) and role.name != EVALUATOR]
    by_pods = {"onJobFailureReasons": ["PodFailurePolicy"]}
    again = {"onJobFailureMessagePatterns": [f" has condition {_EVICTED} matching ", _exited(START_AGAIN)]}
    used_up = {"onJobFailureReasons": ["BackoffLimitExceeded"], "targetReplicatedJobs": alone}
    rules = [
        {"name": "final", "action": "FailJobSet", **by_pods, "onJobFailureMessagePatterns": [_exited(FINAL_CODES)]},
        {"name": "used_up", "action": "FailJobSet", **used_up},
        {"name": "again", "action": "RestartJobSetAndIgnoreMaxRestarts", **by_pods, **again},
    ]
    return [rule for rule in rules if alone or rule["name"] != "used_up"]


def _exited(codes: Iterable[ExitCode]) -> str:
    return f" failed with exit code ({'|'.join(str(int(code)) for code in codes)}) matching "


def _rendered_template(job: JobSpec, role: Role, profile: KubernetesProfile) -> dict[str, Any]:
    """Returns the template for pods of a role."""
    serves = job.has_servers and role.name in (WORKER, PS)
    grace_seconds = math.ceil(job.grace_seconds)
    # SIGTERM reaches those that serve only after the chief has had time to save their values.
    hook = {"preStop": {"sleep": {"seconds": grace_seconds}}} if serves else None
    # The files of a volume get this group once, and not at every start, which takes long for many. NFS ignores it.
    group = {"fsGroup": _GROUP, "fsGroupChangePolicy": "OnRootMismatch"} if profile.volumes else {}
    mounts, volumes = _storage(profile, shares_memory=profile.resources_of(role.name).gpus > 1)
    variables: list[dict[str, Any]] = []
    if not job.is_sweep:  # `$(INDEX)` is filled in for each pod
        index = {"fieldRef": {"fieldPath": f"metadata.annotations['{_INDEX_LABEL}']"}}
        variables = [{"name": INDEX, "valueFrom": index}, {"name": "TF_CONFIG", "value": _tf_config(job, role)}]
    values = {"PYTHONUNBUFFERED": "1", **role.environ}
    variables += [{"name": name, "value": _literal(value)} for name, value in {**values, **profile.environ}.items()]
    variables += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret.secret, "key": secret.key}}}
        for name, secret in profile.secrets.items()
    ]
    module, *words = role.argv
    container = {
        "name": CONTAINER,
        "image": profile.image,
        "command": ["python", "-m", module],
        "args": [_literal(word) for word in words],
        "env": variables,
        "resources": _resources(profile.resources_of(role.name), profile.gpu_resource),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "lifecycle": hook,
        "volumeMounts": mounts,
    }
    spec = {
        "restartPolicy": "Never",
        # With the rights of its container these are the level `restricted` of Kubernetes.
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, **group},
        "terminationGracePeriodSeconds": grace_seconds + (_AFTER_HOOK_SECONDS if serves else 0),
        "volumes": volumes,
        "containers": [filled(container)],
    }
    return {"metadata": {"labels": {INSTANCE_LABEL: job.name}}, "spec": filled(spec)}


def _tf_config(job: JobSpec, role: Role) -> str:
    """Returns the value of `TF_CONFIG` for pods of a role, whose names are those that JobSet gives."""
    cluster = {
        other.name: [f"{job.name}-{other.name}-0-{index}.{job.name}:{_PORT}" for index in range(other.count)]
        for other in job.in_cluster
    }
    text = json.dumps({"cluster": cluster, "task": {"type": role.name, "index": INDEX}})
    return text.replace(f'"{INDEX}"', f"$({INDEX})")


def _literal(text: str) -> str:
    """Returns a text with `$` escaped: Kubernetes replaces `$(NAME)`, and reads `$$` as `$`."""
    return text.replace("$", "$$")


def _resources(wanted: Resources, gpu_resource: str) -> dict[str, Any]:
    memory = None
    if wanted.memory_gib is not None:
        is_whole_gib = wanted.memory_gib == int(wanted.memory_gib)
        memory = f"{int(wanted.memory_gib)}Gi" if is_whole_gib else f"{round(wanted.memory_gib * 1024)}Mi"
    limits = filled({"memory": memory, gpu_resource: str(wanted.gpus or "")})
    requests = filled({"cpu": str(wanted.cpus or "")}) | limits  # a limit on cores would only slow a process down
    return filled({"requests": requests, "limits": limits})


def _storage(profile: KubernetesProfile, *, shares_memory: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the mounts of a container and the volumes of its pod; a claim with several paths is one volume."""
    claims = dict.fromkeys(volume.claim for volume in profile.volumes)
    names = {claim: f"claim-{number}" for number, claim in enumerate(claims)}
    mounts = [
        filled({"name": names[volume.claim], "mountPath": volume.path, "readOnly": volume.read_only or None})
        for volume in profile.volumes
    ]
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for claim, name in names.items()]
    if shares_memory:  # NCCL needs more shared memory between GPUs than the 64 MiB that a container has
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})
        volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
    return mounts, volumes
