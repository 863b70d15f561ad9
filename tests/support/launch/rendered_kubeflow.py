"""Jobs on Kubeflow Trainer as plain values: the two objects, and the JobSet that the controller makes of them.

Written after the controller's sources, `pkg/runtime/core/trainingruntime.go` and `pkg/runtime/framework/plugins/` of
Kubeflow Trainer 2.3.
"""

import copy

import yaml

from official_trainer.launch.targets.kubeflow import Kubeflow
from tests.support.launch.rendered import job_for, profile_of


def objects_of(text, *words, **changes):
    """Returns the runtime and the job that kubectl gets for a profile."""
    profile = profile_of(text)
    files = Kubeflow(profile).render(job_for(profile, *words, **changes)).files
    return tuple(map(yaml.safe_load, files.values()))


def jobset_of(runtime, environ=None):
    """Returns the JobSet of a runtime; containers of the first role with the label get `environ`."""
    template = copy.deepcopy(runtime["spec"]["template"])
    metadata = {"name": runtime["metadata"]["name"], **template["metadata"]}
    variables = [{"name": name, "value": value} for name, value in (environ or {}).items()]
    steps = [job["template"].get("metadata", {}).get("labels", {}) for job in template["spec"]["replicatedJobs"]]
    if variables:
        number = next(n for n, labels in enumerate(steps) if "trainer.kubeflow.org/trainjob-ancestor-step" in labels)
        for container in template["spec"]["replicatedJobs"][number]["template"]["spec"]["template"]["spec"][
            "containers"
        ]:
            container["env"] += variables
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": template["spec"],
    }
