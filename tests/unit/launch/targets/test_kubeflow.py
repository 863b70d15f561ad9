"""Jobs on Kubeflow Trainer: what is rendered beside `launch kubernetes`, and the words for kubectl."""

import copy
import json

import pytest
import yaml

from official_trainer.distributed.environment import cluster_env
from official_trainer.launch.spec import shared_job
from official_trainer.launch.targets.kubeflow import Kubeflow
from tests.support.launch import admission, pod_security, pods
from tests.support.launch.controllers import ALL, FAILED, Controllers
from tests.support.launch.rendered import IMAGE, KUBERNETES, job_for, manifest_of, profile_of
from tests.support.launch.rendered_kubeflow import jobset_of, objects_of

OF_A_JOBSET = {"OFFICIAL_TRAINER_CLUSTER", "JOBSET_NAME", "REPLICATED_JOB_NAME", "JOB_INDEX"}
STEP = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def first_of(jobset):
    return jobset["spec"]["replicatedJobs"][0]["template"]


@pytest.mark.parametrize("name", KUBERNETES)
def test_the_job_is_that_of_launch_kubernetes(name):
    """N50: every field of a profile goes where it goes there; but for the names that the platform gives."""
    runtime, trainjob = objects_of(KUBERNETES[name])
    jobset, expected = copy.deepcopy(jobset_of(runtime)), manifest_of(KUBERNETES[name])
    for job in jobset["spec"]["replicatedJobs"]:
        (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        assert container["name"] == "node"
        container["name"] = "trainer"
        for rule in job["template"]["spec"]["podFailurePolicy"]["rules"]:
            if "onExitCodes" in rule:
                assert rule["onExitCodes"].pop("containerName") == "node"
                rule["onExitCodes"]["containerName"] = "trainer"
    first = first_of(jobset)
    assert first.pop("metadata") == {"labels": STEP}
    variable = first["spec"]["template"]["spec"]["containers"][0]["env"].pop()
    assert (variable["name"], "jobset-uid" in str(variable)) == ("JOBSET_UID", True)
    for spec, own in ((jobset["spec"], {"JOB_COMPLETION_INDEX", "TF_CONFIG"}), (expected["spec"], OF_A_JOBSET)):
        for job in spec["replicatedJobs"]:
            (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
            assert own <= {each["name"] for each in container["env"]}
            container["env"] = [each for each in container["env"] if each["name"] not in own]
    assert jobset["spec"] == expected["spec"]
    assert trainjob["metadata"] == expected["metadata"]
    instance = {"app.kubernetes.io/instance": expected["metadata"]["name"]}
    assert jobset["metadata"]["labels"] == instance, "the labels of a queue are on the TrainJob alone"
    assert jobset["metadata"].get("annotations") == expected["metadata"].get("annotations")


@pytest.mark.parametrize("name", KUBERNETES)
def test_webhooks_would_take_it(name):
    """N50: the rules of Kubernetes, JobSet and Kubeflow that no schema has."""
    runtime, trainjob = objects_of(KUBERNETES[name])
    jobset = jobset_of(runtime)
    assert list(admission.problems_of_jobset(jobset)) == []
    for job in jobset["spec"]["replicatedJobs"]:
        assert list(pod_security.problems_of_pod(job["template"]["spec"]["template"]["spec"])) == []
    labelled = [job for job in jobset["spec"]["replicatedJobs"] if "metadata" in job["template"]]
    assert [job["replicas"] for job in labelled] == [1], "one role posts progress, and has one Job"
    nodes = labelled[0]["template"]["spec"]["completions"]
    assert runtime["spec"]["mlPolicy"] == trainjob["spec"]["trainer"] == {"numNodes": nodes}
    assert trainjob["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"] == trainjob["metadata"]["name"]
    assert trainjob["metadata"].get("namespace") == runtime["metadata"].get("namespace")
    assert runtime["metadata"]["labels"]["trainer.kubeflow.org/framework"] == "tensorflow"


@pytest.mark.parametrize(
    ("counts", "roles"),
    [
        ("workers: 3", ["worker"]),
        ("workers: 2\nchief: true\nevaluator: true", ["chief", "worker", "evaluator"]),
        ("workers: 2\nps: 1", ["chief", "worker", "ps"]),
    ],
)
def test_the_first_role_has_the_chief(counts, roles):
    """N50: so the pod that posts progress has the variables of the platform."""
    runtime, _ = objects_of(f"{IMAGE}\n{counts}")
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert [job["name"] for job in jobs] == roles
    assert [job["name"] for job in jobs if "metadata" in job["template"]] == roles[:1]


@pytest.mark.parametrize("counts", ["workers: 2", "workers: 2\nps: 2\nevaluator: true", "workers: 2\nchief: true"])
def test_each_pod_has_its_tf_config(counts):
    """N50: as a TFJob's had it, and the cluster is that of `launch kubernetes`."""
    runtime, _ = objects_of(f"{IMAGE}\n{counts}")
    found = pods.pods_of_jobset(jobset_of(runtime))
    others = pods.pods_of_jobset(manifest_of(f"{IMAGE}\n{counts}"))
    assert found.keys() == others.keys()
    for (role, index), pod in found.items():
        told = json.loads(pod.environ["TF_CONFIG"])
        assert told["task"] == {"type": role, "index": index}
        read = cluster_env({**pod.environ})
        assert read.source == "TF_CONFIG"
        assert read.tf_config() == cluster_env(others[role, index].environ).tf_config()
        if role != "evaluator":
            assert read.addresses[role][index] == f"{pod.host}:2222"


def test_the_exit_codes_of_a_container_mean_what_they_did():
    """N50: evicted pods start again without end; a final exit code ends the job."""
    runtime, _ = objects_of(f"{IMAGE}\nworkers: 2\nmax_restarts: 1")
    job = Controllers(jobset_of(runtime))
    assert {job.end(("worker", 75, False)) for _ in range(9)} == {ALL}
    assert job.end(("worker", 2, False)) == FAILED


def test_what_of_a_job_belongs_to_the_trainjob():
    """N50: the controller overwrites `suspend` of the JobSet; the labels of a Job that a profile adds stay."""
    job = "suspend: true, managedBy: kueue.x-k8s.io/multikueue, activeDeadlineSeconds: 60, ttlSecondsAfterFinished: 9"
    mine = "replicatedJobs: [{name: worker, template: {metadata: {labels: {team: a}}}}]"
    runtime, trainjob = objects_of(f"{IMAGE}\njob: {{spec: {{{job}, {mine}}}}}")
    moved = {key: trainjob["spec"][key] for key in ("suspend", "managedBy", "activeDeadlineSeconds")}
    assert moved == {"suspend": True, "managedBy": "kueue.x-k8s.io/multikueue", "activeDeadlineSeconds": 60}
    spec = runtime["spec"]["template"]["spec"]
    assert (spec["ttlSecondsAfterFinished"], spec.keys() & moved.keys()) == (9, set())
    assert first_of({"spec": spec})["metadata"] == {"labels": {"team": "a", **STEP}}


def test_a_sweep_has_no_progress_of_its_own():
    """N50: its workers train different trials, so none gets the address of the platform."""
    profile = profile_of(f"{IMAGE}\nworkers: 2")
    rendered = Kubeflow(profile, is_sweep=True).render(shared_job(2, ["sweep", "--join"], grace_seconds=35.0))
    assert "ancestor-step" not in rendered.files["runtime.yaml"]


def test_the_words_for_kubectl():
    """N50: the runtime is there before the job that names it; both go."""
    target = Kubeflow(profile_of(f"{IMAGE}\ncontext: lab\nnamespace: team\nsource: image"))
    rendered = target.render(job_for(target.profile))
    assert list(rendered.files) == ["runtime.yaml", "trainjob.yaml"]
    place = ("kubectl", "--context=lab", "--namespace=team")
    assert rendered.submit == (
        (*place, "apply", "--filename=runtime.yaml"),
        (*place, "create", "--filename=trainjob.yaml"),
    )
    job, runtime = target.cancel("digits")
    assert job[3:6] == ("delete", "trainjobs.trainer.kubeflow.org", "digits")
    assert runtime[3:] == ("delete", "trainingruntimes.trainer.kubeflow.org", "digits", "--ignore-not-found")
    assert target.resume("digits", rendered.submit) == (job, runtime, *rendered.submit)
    assert target.query(["a", "b"])[3:7] == ("get", "trainjobs.trainer.kubeflow.org", "a", "b")
    assert target.query(()) != Kubeflow(profile_of(f"{IMAGE}\ncontext: lab")).query(())


def test_a_variable_that_is_set_for_each_pod():
    """N50: it tells a job from an earlier one with the same name."""
    with pytest.raises(ValueError, match="JOBSET_UID is set for each pod automatically; leave it out"):
        profile_of(f"{IMAGE}\nenviron: {{JOBSET_UID: x}}")


def test_the_files_are_plain_yaml():
    """N50: each holds one object."""
    profile = profile_of(KUBERNETES["jobset-servers"])
    files = Kubeflow(profile).render(job_for(profile)).files
    assert [yaml.safe_load(text)["kind"] for text in files.values()] == ["TrainingRuntime", "TrainJob"]
