"""Jobs on Kubernetes: a JobSet or a TFJob, handed over with kubectl.

Owns: jobs that the cluster would refuse or not run as intended; the commands of kubectl.
Does not own: the object (`kubernetes_objects.py`), the profile and its checks (`kubernetes_profile.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from official_trainer import files
from official_trainer.distributed.cluster import EVALUATOR
from official_trainer.launch.spec import JobSpec, files_of_this_machine, idle_tpu, is_in
from official_trainer.launch.target import Argv, Rendered, Submitted, Target
from official_trainer.launch.targets import kubernetes_objects
from official_trainer.launch.targets.kubernetes_profile import LONGEST_LABEL, KubernetesProfile, is_label
from official_trainer.launch.targets.rendering import dump_yaml

_STATE = {"jobset": ".status.terminalState", "tfjob": ".status.conditions[-1:].type"}
_RESOURCE = {"jobset": "jobsets.jobset.x-k8s.io", "tfjob": "tfjobs.kubeflow.org"}
_MOST_LOGS = 1000  # kubectl refuses to follow more pods; failed pods that were replaced count too
_ENDED = {"Completed", "Succeeded", "Failed"}


class Kubernetes(Target[KubernetesProfile]):
    """A JobSet, or a TFJob."""

    name = "kubernetes"
    profile = KubernetesProfile
    needs = "kubectl, with a context for the cluster"

    def problems(self, job: JobSpec, profile: KubernetesProfile) -> Iterator[str]:
        if not is_label(job.name):
            yield (
                f"name: {job.name!r} becomes part of host names: use at most {LONGEST_LABEL} lower-case letters, "
                "digits and dashes, starting with a letter; set `name` in the profile"
            )
        longest = max(kubernetes_objects.pod_names(job, profile), key=len)
        if len(longest) > LONGEST_LABEL:
            yield (
                f"name: a pod would have the name {longest}, of {len(longest)} characters, and {LONGEST_LABEL} are "
                "allowed; set a shorter `name` in the profile"
            )
        yield from _unseen_files(job, profile)
        if profile.kind == "tfjob" and any(role.name == EVALUATOR for role in job.roles):
            yield (
                "evaluator: a TFJob ends it together with training, before it has evaluated the last checkpoint; "
                "use kind: jobset, or leave the evaluator out"
            )
        if profile.tpu is not None:
            yield from idle_tpu(job)

    def render(self, job: JobSpec, profile: KubernetesProfile) -> Rendered:
        built = (kubernetes_objects.jobset if profile.kind == "jobset" else kubernetes_objects.tfjob)(job, profile)
        file = f"{profile.kind}.yaml"
        # Not `apply`: it leaves an existing job of this name as it is, even one that has ended, and reports success.
        return Rendered(files={file: dump_yaml(built)}, submit=(_kubectl(profile, "create", f"--filename={file}"),))

    def status(self, job: Submitted[KubernetesProfile]) -> Argv:
        kind = job.profile.kind
        columns = ("KIND:.kind", "NAME:.metadata.name", f"STATE:{_STATE[kind]}", "POD:.status.phase",
                   "NODE:.spec.nodeName", "STARTED:.metadata.creationTimestamp")  # fmt: skip
        return self._kubectl(job, "get", f"{_RESOURCE[kind]},pods", f"--output=custom-columns={','.join(columns)}")

    def is_running(self, code: int, output: str) -> bool:
        rows = [line.split() for line in output.splitlines()]
        states = [row[2] for row in rows if row[0] in ("JobSet", "TFJob")]
        return code == 0 and any(state not in _ENDED for state in states)

    def logs(self, job: Submitted[KubernetesProfile], *, follow: bool) -> Argv:
        words = ("--all-containers", "--prefix", "--tail=-1", f"--max-log-requests={_MOST_LOGS}")
        return self._kubectl(job, "logs", *words, *(["--follow"] if follow else []))

    def cancel(self, job: Submitted[KubernetesProfile]) -> tuple[Argv, ...]:
        profile = job.profile
        words = ("--cascade=foreground", "--ignore-not-found")  # it returns when the pods have saved and ended
        return (_kubectl(profile, "delete", _RESOURCE[profile.kind], job.name, *words),)

    def resume(self, job: Submitted[KubernetesProfile]) -> tuple[Argv, ...]:
        return (*self.cancel(job), *job.submit)  # an ended object never starts again

    def _kubectl(self, job: Submitted[KubernetesProfile], verb: str, *words: str) -> Argv:
        """Returns a command about a job and its pods."""
        selector = f"--selector={kubernetes_objects.INSTANCE_LABEL}={job.name}"
        return _kubectl(job.profile, verb, *words, selector)


def _kubectl(profile: KubernetesProfile, verb: str, *words: str) -> Argv:
    places = (("context", profile.context), ("namespace", profile.namespace))
    return ("kubectl", *(f"--{name}={value}" for name, value in places if value), verb, *words)


def _unseen_files(job: JobSpec, profile: KubernetesProfile) -> Iterator[str]:
    """Yields paths of this machine that pods would not find, or would lose."""
    if not files.is_url(job.model_dir):
        volume = next((each for each in profile.volumes if is_in(job.model_dir, each.path)), None)
        if volume is None:
            yield (
                f"--model_dir={job.model_dir} is in no volume, so each pod would have its own, and lose it at its "
                "end; use a URL such as gs://BUCKET/RUN, or a path below a volume: "
                "volumes: [{claim: NAME, path: /runs}] and --model_dir=/runs/RUN"
            )
        elif volume.read_only:
            yield f"--model_dir={job.model_dir} is in volume {volume.path}, which is read_only; set that to false"
    for word, path in files_of_this_machine(job).items():
        if not any(is_in(path, volume.path) for volume in profile.volumes):
            yield (
                f"{word} is a file of this machine; use its path relative to the image's working directory, "
                "which has a copy of the workspace, or put it on a volume"
            )
