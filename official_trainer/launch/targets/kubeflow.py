"""Jobs on Kubeflow Trainer: a TrainJob beside a TrainingRuntime of its own, handed over with kubectl.

Owns: what of a JobSet goes into which of the two objects, `TF_CONFIG` of each role, and the commands that differ.
Does not own: the JobSet itself (`kubernetes.py`).

A runtime of the cluster has one role, so each job brings a runtime with its roles. The controller makes the JobSet of
the runtime as it is, and gives the first role, where the chief is, the address to which it posts its progress.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from official_trainer.distributed.cluster import LAYOUT
from official_trainer.distributed.environment import PORT
from official_trainer.launch import fetch
from official_trainer.launch.spec import JobSpec
from official_trainer.launch.target import Argv, Rendered
from official_trainer.launch.targets import kubernetes_fragments as fragments
from official_trainer.launch.targets.kubernetes import CONTAINER, INSTANCE_LABEL, Kubernetes, selector
from official_trainer.launch.targets.rendering import dump_yaml, filled

GROUP = "trainer.kubeflow.org"
_API = f"{GROUP}/v1alpha1"
_RUNTIME_FILE, _JOB_FILE = "runtime.yaml", "trainjob.yaml"
_NODE = "node"  # the name that the controller wants for the container of the first role
_OF_TRAINJOB = ("suspend", "managedBy", "activeDeadlineSeconds")
_OF_A_JOBSET = (LAYOUT, "JOBSET_NAME", "REPLICATED_JOB_NAME", "JOB_INDEX")
_INDEX, _INDEX_ANNOTATION = "JOB_COMPLETION_INDEX", "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_UID_LABEL = "metadata.labels['jobset.sigs.k8s.io/jobset-uid']"


class Kubeflow(Kubernetes):
    """Kubeflow Trainer 2.3 or later, through kubectl."""

    name = "kubeflow"
    resource = f"trainjobs.{GROUP}"
    state_path = '.status.conditions[?(@.status=="True")].type'

    def render(self, job: JobSpec) -> Rendered:
        jobset = self.jobset(job)
        metadata, spec = jobset["metadata"], jobset["spec"]
        of_trainjob = {key: spec.pop(key) for key in _OF_TRAINJOB if key in spec}
        for replicated in spec["replicatedJobs"]:
            _rename_container(
                replicated["template"]["spec"], [] if job.is_sweep else _tf_config(job, replicated["name"])
            )
        first = spec["replicatedJobs"][0]
        nodes = first["template"]["spec"]["completions"]
        if not job.is_sweep:  # whose workers have no progress in common
            uid = {"name": "JOBSET_UID", "valueFrom": {"fieldRef": {"fieldPath": _UID_LABEL}}}
            pod = {"spec": {"containers": [{"name": _NODE, "env": [uid]}]}}
            step = {"labels": {f"{GROUP}/trainjob-ancestor-step": "trainer"}}
            first["template"] = fragments.merged(first["template"], {"metadata": step, "spec": {"template": pod}})
        labels = {INSTANCE_LABEL: job.name}
        template = filled({"labels": labels, "annotations": metadata.get("annotations")})
        runtime = {
            # Kubeflow's own client does not list a runtime without its framework.
            "metadata": {**metadata, "labels": {**labels, f"{GROUP}/framework": "tensorflow"}},
            "spec": {"mlPolicy": {"numNodes": nodes}, "template": {"metadata": template, "spec": spec}},
        }
        reference = {"apiGroup": GROUP, "kind": "TrainingRuntime", "name": job.name}
        trainjob = {
            "metadata": metadata,
            "spec": {"runtimeRef": reference, "trainer": {"numNodes": nodes}, **of_trainjob},
        }
        files = {_RUNTIME_FILE: _text("TrainingRuntime", runtime), _JOB_FILE: _text("TrainJob", trainjob)}
        # Two commands, as the webhook for a TrainJob needs a moment to see a runtime. A job keeps a copy of its
        # runtime, so `apply` may replace that of an earlier job; a TrainJob is created, for the reason of a JobSet.
        apply = self.kubectl("apply", f"--filename={_RUNTIME_FILE}")
        create = self.kubectl("create", f"--filename={_JOB_FILE}")
        return Rendered(files=files, submit=(*fetch.uploads(job), apply, create))

    def status(self, job_id: str) -> Argv:
        columns = ("KIND:.kind", "NAME:.metadata.name", 'COMPLETE:.status.conditions[?(@.type=="Complete")].status',
                   'FAILED:.status.conditions[?(@.type=="Failed")].status',
                   "PERCENT:.status.trainerStatus.progressPercentage",
                   "SECONDS_LEFT:.status.trainerStatus.estimatedRemainingSeconds", "POD:.status.phase",
                   "NODE:.spec.nodeName", "STARTED:.metadata.creationTimestamp")  # fmt: skip
        words = (f"{self.resource},pods", f"--output=custom-columns={','.join(columns)}")
        return self.kubectl("get", *words, selector(job_id))

    def cancel(self, job_id: str) -> tuple[Argv, ...]:
        runtime = self.kubectl("delete", f"trainingruntimes.{GROUP}", job_id, "--ignore-not-found")
        return (*super().cancel(job_id), runtime)


def _tf_config(job: JobSpec, role: str) -> list[dict[str, Any]]:
    """Returns the variables from which a process of a role, and code that expects a TFJob, know the others."""
    hosts = {
        other.name: [f"{job.name}-{other.name}-0-{index}.{job.name}:{PORT}" for index in range(other.count)]
        for other in job.in_cluster
    }
    task = f'{{"type": "{role}", "index": $({_INDEX})}}'  # Kubernetes puts it in; so the index is listed first
    return [
        {"name": _INDEX, "valueFrom": {"fieldRef": {"fieldPath": _INDEX_ANNOTATION}}},
        {"name": "TF_CONFIG", "value": f'{{"cluster": {json.dumps(hosts)}, "task": {task}}}'},
    ]


def _rename_container(job: dict[str, Any], tf_config: list[dict[str, Any]]) -> None:
    """Gives the container of a Job the name that Kubeflow wants, and `TF_CONFIG` for what a JobSet's pods read."""
    for container in job["template"]["spec"]["containers"]:
        if container["name"] == CONTAINER:
            container["name"] = _NODE
            container["env"] = [*tf_config, *(each for each in container["env"] if each["name"] not in _OF_A_JOBSET)]
    for rule in job["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            rule["onExitCodes"]["containerName"] = _NODE


def _text(kind: str, value: Mapping[str, Any]) -> str:
    return dump_yaml({"apiVersion": _API, "kind": kind, **value})
