"""A custom job on Vertex AI: its profile, the job as YAML, and gcloud's commands for it.

Owns: those, and the names of the API's fields: gcloud passes unknown fields on, and the API drops them silently.
Does not own: how a process there finds the others: Vertex AI sets `TF_CONFIG`, and `distributed/cluster.py` reads it.

This has never run on Vertex AI. gcloud itself has run, against a server that answers as the API does.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from subprocess import CompletedProcess
from typing import Any, ClassVar, Literal

from official_trainer.config import FrozenDict, Positive
from official_trainer.distributed.cluster import CHIEF, EVALUATOR, PS, WORKER
from official_trainer.launch import fetch, rerun
from official_trainer.launch.profile import SNAPSHOT, Profile, Resources
from official_trainer.launch.spec import JobSpec, literal
from official_trainer.launch.target import Argv, JobState, Rendered, Target
from official_trainer.launch.targets.rendering import dump_yaml, filled
from official_trainer.launch.targets.tpu_profile import (
    NEEDS,
    SECRETS_GO,
    missing_fields,
    read_states,
    unseen_files,
)
from official_trainer.nearest import did_you_mean
from official_trainer.processes.job import DATA_ROLES, Role

JOB = "job.yaml"

FIELDS = {
    "": (
        "baseOutputDirectory", "enableDashboardAccess", "enableWebAccess", "experiment", "experimentRun", "models",
        "network", "persistentResourceId", "protectedArtifactLocationId", "reservedIpRanges", "scheduling",
        "serviceAccount", "tensorboard", "workerPoolSpecs",
    ),
    "baseOutputDirectory": ("outputUriPrefix",),
    "scheduling": ("disableRetries", "maxWaitDuration", "restartJobOnWorkerRestart", "strategy", "timeout"),
}  # fmt: skip
"""The names of the fields of the API's CustomJobSpec, and of those in its sections."""

_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_ACCELERATOR = re.compile(r"(?:NVIDIA|TPU)(?:_[A-Z0-9]+)+")
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VertexProfile(Profile):
    """The profile of a custom job on Vertex AI. `resources.gpus` is the number of GPUs of a machine.

    Attributes:
      project: Google Cloud project.
      region: such as us-central1.
      image_uri: container image with the package.
      source: the code: `snapshot` for what is in the workspace when the job is submitted, or `image` for what is in the
        working directory of the image.
      machine_type: of all processes except parameter servers, such as n1-standard-8.
      ps_machine_type: of parameter servers; empty for the same type.
      accelerator_type: the API's name of the GPU, such as NVIDIA_TESLA_T4.
      boot_disk_gb: size of the machines' disks; null leaves it to Vertex AI.
      labels: of the job.
      spec: further fields of the API's CustomJobSpec, such as `serviceAccount` or `scheduling: {strategy: SPOT}`.
    """

    project: str = ""
    region: str = ""
    image_uri: str = ""
    source: Literal["snapshot", "image"] = SNAPSHOT
    machine_type: str = ""
    ps_machine_type: str = ""
    accelerator_type: str = ""
    boot_disk_gb: Positive | None = None
    labels: dict[str, str] = FrozenDict()
    spec: dict[str, Any] = FrozenDict()

    REMOVED: ClassVar[Mapping[str, str]] = {
        "strategy": "write spec: {scheduling: {strategy: SPOT}}",
        "restart_job_on_worker_restart": "write spec: {scheduling: {restartJobOnWorkerRestart: true}}",
        "timeout_hours": "write spec: {scheduling: {timeout: 3600s}}",
        "network": "write spec: {network: NAME}",
        "service_account": "write spec: {serviceAccount: NAME}",
        "base_output_directory": "write spec: {baseOutputDirectory: {outputUriPrefix: 'gs://BUCKET/FOLDER'}}",
    }
    secrets_go = SECRETS_GO

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.region and not _REGION.fullmatch(self.region):
            yield "region", f"{self.region!r} is not a valid region; a region ends with a digit, such as us-central1"
        if bool(self.accelerator_type) != bool(self.resources.gpus):
            yield "accelerator_type", "and resources.gpus belong together: set both, or neither"
        if self.accelerator_type and not _ACCELERATOR.fullmatch(self.accelerator_type):
            what = f"{self.accelerator_type!r} is not the API's name of an accelerator"
            yield "accelerator_type", f"{what}; use one such as NVIDIA_TESLA_T4, NVIDIA_L4 or NVIDIA_TESLA_A100"
        for section, resources in (("resources", self.resources), ("ps_resources", self.ps_resources)):
            if resources != Resources(gpus=self.resources.gpus if section == "resources" else 0):
                only = "cpus and memory_gib" if section == "resources" else "cpus, memory_gib and gpus"
                yield section, f"machine_type and ps_machine_type determine the resources; leave {only} out"
        if "workerPoolSpecs" in self.spec:
            yield "spec", "workerPoolSpecs is set from other fields of the profile; set those"
        for place, known in FIELDS.items():
            part = self.spec.get(place, {}) if place else self.spec
            if not isinstance(part, Mapping):
                yield "spec", f"{place} is {part!r}, not a section; its fields are {', '.join(known)}"
                continue
            for key in part.keys() - set(known):
                yield "spec", f"{key} is not a field of {place or 'CustomJobSpec'}{did_you_mean(key, known)}"


class VertexTarget(Target[VertexProfile]):
    """Vertex AI, by gcloud."""

    name = "vertex"
    profile_class = VertexProfile
    needs = NEEDS
    gets_code_as = "archive"

    def problems(self, job: JobSpec) -> Iterator[str]:
        yield from missing_fields(self.profile, _NEEDED)
        for role in job.roles:
            if role.name in DATA_ROLES:
                yield f"{role.name}: Vertex AI runs chief, worker, ps and evaluator; start a tf.data service elsewhere"
        counts = {role.name: role.count for role in job.roles}
        if EVALUATOR in counts and PS not in counts:
            what = "evaluator: gcloud refuses a job in which only the pool of parameter servers is empty"
            yield f"{what}; leave it out, and evaluate with --mode=train_and_eval"
        if job.predicts and sum(counts.values()) > 1:
            yield "workers: Vertex AI ends a job with its first process, while others still predict; set workers to 1"
        if not job.model_dir.startswith(("gs://", "/gcs/")):
            yield f"--model_dir={job.model_dir}: the machines cannot see it; use a gs:// URL"
        yield from unseen_files(job)

    def render(self, job: JobSpec) -> Rendered:
        labels = ",".join(f"{key}={value}" for key, value in self.profile.labels.items())
        words = (f"--display-name={job.name}", f"--config={JOB}", *((f"--labels={labels}",) if labels else ()))
        spec = self.profile.as_dict()["spec"]
        retries = {"disableRetries": True} if self.profile.max_restarts == 0 else {}
        scheduling = {**spec.get("scheduling", {}), **retries}
        # The machines of each role in the API's order; the first pool is one process, which leads the others. Without a
        # chief, that is worker 0, which Vertex AI calls chief.
        roles = {role.name: role for role in job.roles}
        leader = roles.get(CHIEF) or roles[WORKER]
        pools = [_pool(job, leader, 1, self.profile)]
        for role in map(roles.get, (WORKER, PS, EVALUATOR)):
            count = role.count - (role is leader) if role else 0
            pools.append(_pool(job, role, count, self.profile) if role and count else {})
        while not pools[-1]:
            pools.pop()
        fields = {"workerPoolSpecs": pools, **spec, "scheduling": scheduling}
        return Rendered(
            files={JOB: dump_yaml(filled(fields))},
            submit=(*fetch.uploads(job), self._gcloud("create", *words, "--format=value(name)")),
        )

    def id_of(self, name: str, output: str) -> str:
        del name
        return (output.split() or [""])[-1]

    def status(self, job_id: str) -> Argv:
        return self._gcloud("describe", job_id, "--format=json(state,createTime,startTime,endTime,error)")

    def query(self, job_ids: Sequence[str]) -> Argv:
        if len(job_ids) == 1:
            return self.status(*job_ids)
        numbers = "|".join(job_id.rpartition("/")[2] for job_id in job_ids)
        words = (f'--filter=name~"/({numbers})$"', f"--limit={len(job_ids)}")  # it reads no further once it has all
        return self._gcloud("list", *(words if job_ids else ()), "--format=json(name,state)")

    def states(self, job_ids: Sequence[str], ran: CompletedProcess[str]) -> Iterator[JobState]:
        return read_states(job_ids, ran, lambda described: described["state"].removeprefix("JOB_STATE_"), _ENDED)

    def logs(self, job_id: str, *, follow: bool) -> Argv:
        if follow:
            return self._gcloud("stream-logs", job_id)
        number = job_id.rpartition("/")[2]
        found = f'resource.type="ml_job" AND resource.labels.job_id="{number}"'
        shown = "--format=value(timestamp,resource.labels.task_name,jsonPayload.message,textPayload)"
        where = f"--project={self.profile.project}"
        return ("gcloud", "logging", "read", found, where, "--freshness=30d", "--order=asc", shown)

    def cancel(self, job_id: str) -> tuple[Argv, ...]:
        return (self._gcloud("cancel", job_id),)

    def _gcloud(self, verb: str, *words: str) -> Argv:
        place = (f"--project={self.profile.project}", f"--region={self.profile.region}")
        return ("gcloud", "ai", "custom-jobs", verb, *words, *place)


_NEEDED = {
    "project": "my-project",
    "region": "us-central1",
    "image_uri": "us-docker.pkg.dev/my-project/images/trainer:1",
    "machine_type": "n1-standard-8",
}


def _pool(job: JobSpec, role: Role, count: int, vertex: VertexProfile) -> dict[str, Any]:
    is_server = role.name == PS
    gpus = 0 if is_server else vertex.resources.gpus
    machine = {
        "machineType": (is_server and vertex.ps_machine_type) or vertex.machine_type,
        "acceleratorType": vertex.accelerator_type if gpus else None,
        "acceleratorCount": gpus or None,
    }
    environ = {"PYTHONUNBUFFERED": "1", "TF_USE_LEGACY_KERAS": "1", **role.environ, **vertex.environ}
    container = {
        "imageUri": vertex.image_uri,
        "command": [*fetch.before(job), "python", *rerun.words(vertex.max_restarts), "python", "-m"],
        "args": list(role.argv),
        "env": [{"name": name, "value": literal(value)} for name, value in environ.items()],
    }
    disk = filled({"bootDiskSizeGb": vertex.boot_disk_gb})
    return filled({"machineSpec": filled(machine), "replicaCount": count, "diskSpec": disk, "containerSpec": container})
