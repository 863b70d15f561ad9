"""Jobs on Kubernetes: what is rendered, that its schemas take it, what is refused, and the words for kubectl.

No control plane runs here. What one would say of an object is asked of the schemas that its authors publish.
"""

import dataclasses
import functools
import json
import operator

import pytest
import yaml

from official_trainer import config
from official_trainer.config import ConfigError
from official_trainer.errors import ExitCode
from official_trainer.launch.snapshot import Snapshot
from official_trainer.launch.spec import shared_job
from official_trainer.launch.targets.kubernetes import FINAL_CODES, Kubernetes
from official_trainer.launch.targets.rendering import dump_yaml
from tests.support.launch import admission, pod_security
from tests.support.launch.controllers import ALL, ALL_COUNTED, ALONE, FAILED, Controllers
from tests.support.launch.rendered import IMAGE, KUBERNETES, job_for, manifest_of, profile_of

JOB = "spec.replicatedJobs.1.template.spec"
POD = f"{JOB}.template.spec"
SERVERS = f"{IMAGE}\nworkers: 2\nps: 1"


def replicated(manifest):
    return {job["name"]: job["template"]["spec"] for job in manifest["spec"]["replicatedJobs"]}


def container_of(manifest, role="worker"):
    return replicated(manifest)[role]["template"]["spec"]["containers"][0]


def values_of(container):
    return {each["name"]: each.get("value") for each in container["env"]}


def problems_of(text, *words, **changes):
    profile = profile_of(f"{IMAGE}\n{text}")
    return list(Kubernetes(profile).problems(job_for(profile, *words, **changes)))


# What is rendered.


@pytest.mark.parametrize("name", KUBERNETES)
def test_webhooks_would_take_it(name):
    """N20: rules of the API server and of JobSet that no schema has."""
    assert list(admission.problems_of_jobset(manifest_of(KUBERNETES[name]))) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec.successPolicy.targetReplicatedJobs", ["leader"], "leader is no replicated job"),
        ("spec.failurePolicy.rules.0.name", "for-good", "for-good is no name of a rule"),
        (f"{POD}.restartPolicy", "OnFailure", "needs restartPolicy: Never"),
        (f"{JOB}.podFailurePolicy.rules.1.onExitCodes.containerName", "x", "that there is"),
        (f"{POD}.terminationGracePeriodSeconds", 9, "longer than the grace"),
        (f"{POD}.containers.0.volumeMounts", [{"name": "x", "mountPath": "/"}], "is mounted that is not there"),
    ],
)
def test_what_webhooks_would_not_take(path, value, said):
    """The check of the rules can fail."""
    manifest = manifest_of(KUBERNETES["jobset-servers"])
    *before, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    functools.reduce(operator.getitem, before, manifest)[last] = value
    assert any(said in problem for problem in admission.problems_of_jobset(manifest))


@pytest.mark.parametrize("name", KUBERNETES)
def test_a_restricted_namespace_would_take_its_pods(name):
    """N20: Pod Security Standards, level `restricted`, every role."""
    for job in replicated(manifest_of(KUBERNETES[name])).values():
        assert list(pod_security.problems_of_pod(job["template"]["spec"])) == []


OF_POD, OF_CONTAINER = "securityContext", "containers.0.securityContext"


@pytest.mark.parametrize(
    ("path", "value", "control"),
    [
        (f"{OF_POD}.runAsNonRoot", None, "running as non-root"),
        (f"{OF_CONTAINER}.capabilities", None, "capabilities"),
        (f"{OF_CONTAINER}.runAsUser", 0, "running as non-root user"),
        ("volumes", [{"name": "x", "hostPath": {"path": "/"}}], "volume types"),
    ],
)
def test_a_restricted_namespace_needs_each_field(path, value, control):
    """N20: without it, or with another value, the pods would be refused."""
    pod = replicated(manifest_of(KUBERNETES["jobset-servers"]))["worker"]["template"]["spec"]
    *before, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    section = functools.reduce(operator.getitem, before, pod)
    section.pop(last, None)
    if value is not None:
        section[last] = value
    assert control in list(pod_security.problems_of_pod(pod))


WORKERS = f"{IMAGE}\nworkers: 3\nmax_restarts: 2\nevaluator: true"
LED = f"{IMAGE}\nworkers: 2\nchief: true\nmax_restarts: 2"
SERVED = f"{SERVERS}\nmax_restarts: 2\nevaluator: true"
TOGETHER = [(WORKERS, "worker"), (LED, "chief"), (LED, "worker"), (SERVED, "chief"), (SERVED, "ps")]
NOT_COUNTED = [(ExitCode.PREEMPTED, True), (137, True), (ExitCode.PREEMPTED, False), (ExitCode.RETRY, False)]
COUNTED = (134, 137, 139, 127)


@pytest.mark.parametrize(("text", "role"), TOGETHER)
@pytest.mark.parametrize(("code", "is_evicted"), NOT_COUNTED)
def test_an_eviction_and_what_a_restart_mends_use_up_no_restart(text, role, code, is_evicted):
    """N20: a spot node may be taken away any number of times; those that train together restart together."""
    job = Controllers(manifest_of(text))
    assert {job.end((role, code, is_evicted)) for _ in range(50)} == {ALL}
    assert (job.restarts, job.counted) == (50, 0)


@pytest.mark.parametrize(("text", "role"), TOGETHER)
@pytest.mark.parametrize("code", COUNTED)
def test_what_kills_a_process_uses_up_restarts(text, role, code):
    """N20: a process that is out of memory, or crashes, would be again."""
    job = Controllers(manifest_of(text))
    ends = [job.end((role, code, False)), job.end((role, ExitCode.RETRY, False)), job.end((role, code, False))]
    assert [*ends, job.end((role, code, False))] == [ALL_COUNTED, ALL, ALL_COUNTED, FAILED]


@pytest.mark.parametrize(("text", "role"), [*TOGETHER, (SERVED, "worker")])
@pytest.mark.parametrize("code", FINAL_CODES)
def test_a_final_exit_code_ends_a_job_for_good(text, role, code):
    """N20: also beside processes that end because of it, at the same time."""
    manifest = manifest_of(text)
    assert Controllers(manifest).end((role, code, False)) == FAILED
    others = [(other, ExitCode.RETRY, False) for other in replicated(manifest) if other not in (role, "evaluator")]
    assert Controllers(manifest).end(*others, (role, code, False)) == FAILED


@pytest.mark.parametrize("text", [WORKERS, SERVED])
def test_an_evaluator_never_ends_the_training(text):
    """N20: whatever its exit code is; Kubernetes makes another pod, later each time."""
    job = Controllers(manifest_of(text))
    ends = [(code, is_evicted) for code in (*FINAL_CODES, *COUNTED, 75, 143) for is_evicted in (False, True)]
    assert {job.end(("evaluator", *end)) for end in ends * 10} == {ALONE}
    assert job.restarts == 0


def test_a_worker_of_parameter_servers_restarts_alone():
    """N20: the chief goes on without it; once it has used its restarts up, the job has failed."""
    job = Controllers(manifest_of(SERVED))
    assert {job.end(("worker", *end)) for end in NOT_COUNTED * 10} == {ALONE}
    assert [job.end(("worker", 137, False)) for _ in range(3)] == [ALONE, ALONE, FAILED]
    assert job.restarts == 0


def test_the_workers_of_a_sweep_restart_alone():
    """N21: an eviction of one leaves the others alone."""
    profile = profile_of(f"{IMAGE}\nworkers: 3\nmax_restarts: 2")
    job = dataclasses.replace(shared_job(3, ["sweep", "digits_mlp", "--join"], grace_seconds=30), name="x-1")
    (text,) = Kubernetes(profile).render(job).files.values()
    job = Controllers(yaml.safe_load(text))
    assert {job.end(("worker", *end)) for end in NOT_COUNTED * 10} == {ALONE}
    assert [job.end(("worker", 137, False)) for _ in range(3)] == [ALONE, ALONE, FAILED]
    assert Controllers(yaml.safe_load(text)).end(("worker", ExitCode.DATA, False)) == FAILED


def test_what_follows_from_an_eviction_is_no_failure_either():
    """N20: the others end with 75 or 143, in Jobs of their own."""
    job = Controllers(manifest_of(SERVED))
    assert job.end(("ps", 143, True), ("chief", ExitCode.RETRY, False), ("worker", ExitCode.RETRY, False)) == ALL
    assert job.counted == 0


def test_with_other_messages_of_kubernetes_restarts_have_a_limit():
    """The rules read the Job controller's words; without them no exit code may restart a job for ever."""
    for code in (ExitCode.RETRY, ExitCode.CONFIG):
        job = Controllers(manifest_of(WORKERS), matched="that fits")
        assert [job.end(("worker", code, False)) for _ in range(3)] == [ALL_COUNTED, ALL_COUNTED, FAILED]


def test_the_workers_of_a_sweep_are_pods_of_an_indexed_job():
    """N21: each is restarted alone, and in no cluster."""
    profile = profile_of(f"{IMAGE}\nworkers: 3\nmax_restarts: 4\nvolumes: [{{claim: runs, path: /runs}}]")
    job = shared_job(3, ["sweep", "digits_mlp", "--space=/home/me/x.yaml", "--join"], grace_seconds=30)
    job = dataclasses.replace(job, name="x-1", model_dir="/runs/x")
    (problem,) = Kubernetes(profile).problems(job)
    assert problem.startswith("--space=/home/me/x.yaml is a file of this machine")
    (text,) = Kubernetes(profile).render(job).files.values()
    manifest = yaml.safe_load(text)
    assert list(admission.problems_of_jobset(manifest)) == []
    spec = replicated(manifest)["worker"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert spec["backoffLimit"] == 4
    container = container_of(manifest)
    assert container["args"] == ["sweep", "digits_mlp", "--space=/home/me/x.yaml", "--join"]
    assert list(values_of(container)) == ["PYTHONUNBUFFERED"]


def test_resources_are_those_of_the_role():
    """Memory and devices are limits too; cores are not, a process would only wait."""
    manifest = manifest_of(f"{SERVERS}\nresources: {{cpus: 4, memory_gib: 2.5, gpus: 1}}\ngpu_resource: amd.com/gpu")
    found = {"cpu": "4", "memory": "2560Mi", "amd.com/gpu": "1"}
    limits = {name: found[name] for name in ("memory", "amd.com/gpu")}
    assert container_of(manifest)["resources"] == {"requests": found, "limits": limits}
    assert "resources" not in container_of(manifest, "ps")
    assert "volumes" not in replicated(manifest)["worker"]["template"]["spec"]


@pytest.mark.parametrize(("asked", "of_servers"), [("{memory_gib: 1}", None), ("{gpus: 2}", "2")])
def test_servers_request_gpus_only_if_ps_resources_does(asked, of_servers):
    """N20: theirs is memory; those that compute request what `resources` says, with memory to share between GPUs."""
    text = f"{SERVERS}\nevaluator: true\nresources: {{gpus: 4}}\nps_resources: {asked}"
    jobs = replicated(manifest_of(text))
    limits = {name: container_of(manifest_of(text), name)["resources"]["limits"] for name in jobs}
    found = {name: each.get("nvidia.com/gpu") for name, each in limits.items()}
    assert found == {"chief": "4", "worker": "4", "evaluator": "4", "ps": of_servers}
    shares = {name for name, job in jobs.items() if "volumes" in job["template"]["spec"]}
    assert shares == {name for name, count in found.items() if count}


def test_one_claim_at_two_paths_is_one_volume():
    volumes = "[{claim: a, path: /in, read_only: true}, {claim: a, path: /out}, {claim: b.c, path: /b}]"
    spec = replicated(manifest_of(f"{IMAGE}\nvolumes: {volumes}"))["worker"]["template"]["spec"]
    claims = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"]}
    assert claims == {"claim-0": "a", "claim-1": "b.c"}
    mounts = spec["containers"][0]["volumeMounts"]
    assert [(mount["name"], mount["mountPath"], mount.get("readOnly", False)) for mount in mounts] == [
        ("claim-0", "/in", True), ("claim-0", "/out", False), ("claim-1", "/b", False)]  # fmt: skip


def test_dollars_are_no_variables():
    """Kubernetes would put variables in for `$(NAME)`, in words and in values, and make one of two dollars."""
    manifest = manifest_of(f"{IMAGE}\nenviron: {{A: '$(B) $$ $'}}", "--set=task.note=$(A)")
    assert values_of(container_of(manifest))["A"] == "$$(B) $$$$ $$"
    assert "--set=task.note=$$(A)" in container_of(manifest)["args"]


TEXTS = ["y", "N", "yes", "on", "1e3", "1_000", "0o17", "0x1F", "1:30", "2x4", "2001-01-01", "~", "null", "-1", ".5"]
SIGNS = ["", "'", '"', "%", "@x", "!x", "&x", "{x", "=", "<<", " x", "a: b", "#x", "- x", "a\nb", "a\n b\n", "\t", "é"]


@pytest.mark.parametrize("text", [*TEXTS, *SIGNS])
def test_texts_stay_texts_for_every_parser(text):
    """Also for those of YAML 1.1, to which `y` is true and `1e3` a number."""
    written = dump_yaml({"key": text, "list": [text]})
    assert yaml.safe_load(written) == {"key": text, "list": [text]}
    line = written.splitlines()[0].removeprefix("key: ")
    assert line[0] in "'\"|" or (text[0].isalpha() and text not in "yYnN")


# What is refused.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("image: ''", r"image.*is not set; build one with launch/Dockerfile, push it, and name it, such as"),
        ("image: a b", r"image.*'a b' is not a valid image"),
        ("namespace: a.b", r"namespace.*is not a valid namespace; use at most 63"),
        ("secrets: {a-b: {secret: s, key: k}}", r"secrets.*'a-b' is not a valid variable name"),
        ("secrets: {A: {key: k}}", r"secrets\.A\.secret.*is not set"),
        ("secrets: {A: {secret: s, key: a/b}}", r"secrets\.A\.key.*is not a valid key of a Secret"),
        ("{secrets: {A: {secret: s, key: k}}, environ: {A: b}}", r"secrets.*A is in environ too; keep one"),
        (
            "environ: {OFFICIAL_TRAINER_CLUSTER: worker=1}",
            r"environ.*CLUSTER is set for each pod automatically; leave it out",
        ),
        ("volumes: [{claim: a, path: runs}]", r"path.*is not a valid mount path; expected an absolute path"),
        ("volumes: [{claim: A, path: /a}]", r"claim.*'A' is not a valid object name"),
        (
            "volumes: [{claim: a, path: /a}, {claim: b, path: /a/}]",
            r"volumes.*two volumes have the path /a; give each its own path",
        ),
        ("gpu_resource: gpu", r"gpu_resource.*'gpu' is not the name of a device; use a domain and a name, such as nv"),
        ("queue: a", r"queue: this field was removed; write job: {metadata: {labels: {kueue.x-k8s.io/queue-name: NA"),
        ("tolerations: []", r"tolerations: this field was removed; write pod: {spec: {tolerations: \[…\]}}"),
        ("kind: tfjob", r"kind: this field was removed; every job is a JobSet, so leave it out"),
        (
            "tpu: {topology: 2x4}",
            r"tpu: this field was removed; write environ: {TPU_NAME: local}, and pod: {spec: {node",
        ),
    ],
)
def test_a_profile_that_no_cluster_would_take(text, said):
    """N20: rules of the API server that a type cannot say, each with its fix."""
    with pytest.raises(ConfigError, match=said):
        config.resolve(profile_of(IMAGE), params_overrides=[text])


def test_names_that_would_be_too_long_for_pods():
    """N20: the webhook counts the name of the last pod, with what is added to it."""
    name = "a" * 46
    assert problems_of("workers: 10", name=name) == []
    (problem,) = problems_of("workers: 11", name=name)
    assert "worker-0-10-abcde, of 64 characters, and 63 are allowed; set a shorter `name`" in problem


@pytest.mark.parametrize("name", ["", "Digits", "1digits", "digits-", "a.b", "a" * 64])
def test_names_that_are_none(name):
    problems = problems_of("workers: 2", name=name)
    assert "becomes part of host names: use at most 63 lower-case letters" in problems[0]


@pytest.mark.parametrize("model_dir", ["/home/me/runs/digits", "runs/digits", "/runsx/digits", "/runs/../x"])
def test_a_run_directory_that_pods_would_not_share(model_dir):
    """N20: a path of this machine is refused with the two ways that there are."""
    (problem,) = problems_of("volumes: [{claim: runs, path: /runs}]", model_dir=model_dir)
    assert f"--model_dir={model_dir} is in no volume" in problem
    assert "use a URL such as gs://BUCKET/RUN, or a path below a volume: volumes: [{claim: NAME" in problem


def test_a_run_directory_that_pods_share():
    for model_dir in ("/runs", "/runs/digits"):
        assert problems_of("volumes: [{claim: runs, path: /runs/}]", model_dir=model_dir) == []
    assert problems_of("workers: 2", model_dir="s3://bucket/digits") == []
    assert problems_of("workers: 2", model_dir="gs://bucket/digits") == []
    (problem,) = problems_of("volumes: [{claim: runs, path: /, read_only: true}]", model_dir="/runs/digits")
    assert "is in volume /, which is read_only; set that to false" in problem


@pytest.mark.parametrize("scheme", ["ram", "gcs", "file"])
def test_a_url_that_pods_do_not_share(scheme):
    """N20: with what they do share."""
    (problem,) = problems_of("workers: 2", model_dir=f"{scheme}://digits")
    assert problem == (
        f"--model_dir={scheme}://digits: pods do not share {scheme}://; use gs://BUCKET/RUN, s3://BUCKET/RUN, "
        "or a path below a volume"
    )


def test_files_of_this_machine_that_pods_would_look_for():
    (problem,) = problems_of("workers: 2", "--config_file=/home/me/x.yaml", "--config_file=configs/x.yaml")
    assert problem.startswith(
        "--config_file=/home/me/x.yaml is a file of this machine; use its path relative to the image's"
    )
    assert problems_of("volumes: [{claim: a, path: /home}]", "--gin_file=/home/me/x.gin") == []
    assert len(problems_of("workers: 2", "--gin_file=/a", "--params_override=/b.yaml", "--params_override=a.b=/c")) == 2


SOURCE = ("task.train_data.source.files", "/mnt/elsewhere/x.parquet")


def warnings_of(text, *paths):
    job = job_for(profile_of(f"{IMAGE}\n{text}"))
    return list(Kubernetes(profile_of(f"{IMAGE}\n{text}")).warnings(dataclasses.replace(job, paths=paths)))


def test_data_that_pods_would_not_find_is_a_warning():
    """N20: with field, path and what to do; the image may hold it, so it is no error."""
    relative = [("task.train_data.input_path", f"data/part-{n}.tfrecord") for n in range(5)]
    absolute, several = warnings_of("volumes: [{claim: a, path: /mnt/data}]", SOURCE, *relative)
    do = "so pods have it only if the image holds it; put it on a volume and set the field to the path"
    assert absolute == f"{SOURCE[0]}={SOURCE[1]} is in no volume, {do} there, or copy it into the image"
    first = ", ".join(path for _, path in relative[:3])
    assert several.startswith(f"task.train_data.input_path={first} and 2 more are in no volume, so pods have them only")


@pytest.mark.parametrize(
    ("field", "is_data"),
    [
        ("task.init_checkpoint", True),
        ("task.validation_data.source.folder", True),
        ("task.train_data.source.npy.files.images", True),
        ("task.train_data.tfds_data_dir", True),
        ("task.tasks.glue.train_data.vocab_file", True),
        ("task.train_data.source.index_folder", False),
        ("task.model.hub_name", False),
        ("trainer.best_checkpoint_export_subdir", False),
        ("trainer.trackers.path", False),
    ],
)
def test_fields_that_name_data(field, is_data):
    assert bool(warnings_of("workers: 2", (field, "/a/b"))) == is_data


def test_data_that_pods_find_is_no_warning():
    """N20: on a volume, on a mount of a fragment; in a snapshot the copy is checked."""
    mount = "pod: {spec: {containers: [{name: trainer, volumeMounts: [{name: x, mountPath: /mnt}]}]}}"
    assert warnings_of("volumes: [{claim: a, path: /mnt/elsewhere}]", SOURCE) == []
    assert warnings_of(mount, SOURCE) == []
    assert warnings_of("source: snapshot", ("task.train_data.input_path", "data/x.tfrecord")) == []
    assert len(warnings_of("source: snapshot", SOURCE)) == 1


# The words for kubectl.


def target_for(text):
    return Kubernetes(profile_of(f"{IMAGE}\n{text}"))


def test_a_job_is_created_not_applied():
    """`apply` would say that all is well of a job that ended long ago, and start nothing."""
    profile = profile_of(f"{IMAGE}\ncontext: lab\nnamespace: team")
    done = Kubernetes(profile).render(job_for(profile))
    assert done.submit == (("kubectl", "--context=lab", "--namespace=team", "create", "--filename=jobset.yaml"),)
    assert set(done.files) == {"jobset.yaml"}


def test_words_for_a_job_that_runs():
    target = target_for("namespace: team\nworkers: 3\nps: 4")
    status = target.status("digits")
    assert status[:4] == ("kubectl", "--namespace=team", "get", "jobsets.jobset.x-k8s.io,pods")
    assert status[-1] == "--selector=app.kubernetes.io/instance=digits"
    logs = target.logs("digits", follow=True)
    assert logs[:3] == ("kubectl", "--namespace=team", "logs")
    assert set(logs[3:]) == {
        "--all-containers",
        "--prefix",
        "--tail=-1",
        "--max-log-requests=1000",
        "--follow",
        status[-1],
    }
    assert "--follow" not in target.logs("digits", follow=False)
    (cancel,) = target.cancel("digits")
    assert cancel[2:] == ("delete", "jobsets.jobset.x-k8s.io", "digits", "--cascade=foreground", "--ignore-not-found")


def event(name, reason, message="", *, type="Warning", **times):
    times = times or {"lastTimestamp": "2026-01-01T00:00:00Z"}
    return {
        "involvedObject": {"name": name},
        "type": type,
        "reason": reason,
        "message": message,
        "metadata": {},
        **times,
    }


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (
            [event("jobset-digits-1f", "Pending", "b"), event("digits-0", "C", "c"), event("digits2", "A")],
            ["jobset-digits-1f: Pending: b", "digits-0: C: c"],
        ),
        ([event("digits-0", "FailedScheduling"), event("digits-0", "Started", type="Normal")], []),
        (
            [
                event("digits-0", "Failed", "Failed to pull image: not found"),
                event("digits-0", "Failed", "Error: ErrImagePull"),
                event("digits-0", "BackOff", "Back-off pulling image", type="Normal"),
            ],
            ["digits-0: Failed: Failed to pull image: not found"],
        ),
        (
            [
                event(
                    "digits-0", "New", "n", metadata={"creationTimestamp": "2026-01-01T00:00:02Z"}, lastTimestamp=None
                ),
                event("digits-0", "Old", "o", lastTimestamp="2026-01-01T00:00:01Z"),
            ],
            ["digits-0: New: n"],
        ),
    ],
)
def test_why_a_job_does_not_go_on(events, said):
    """N20: the last warning about each object of it; what has started since is not waited for."""
    target = target_for("namespace: team")
    assert target.ask_why("digits") == ("kubectl", "--namespace=team", "get", "events", "--output=json")
    assert list(target.reasons("digits", json.dumps({"items": events}))) == said


@pytest.mark.parametrize("answer", ["", "No resources found", "[]", "{}", "null"])
def test_an_answer_that_is_no_list_of_events_says_nothing(answer):
    assert list(target_for("").reasons("digits", answer)) == []


def test_a_job_that_has_ended_is_deleted_before_it_starts_again():
    target = target_for("")
    done = target.render(job_for(target.profile, name="digits"))
    assert target.resume("digits", done.submit) == (*target.cancel("digits"), *done.submit)


# The code of a job.


def test_pods_fetch_the_code_that_was_submitted():
    """N33: where the run directory is in a bucket; else it is that of the image."""
    path = "/ws/launches/digits/code-0123456789ab"
    code = Snapshot(path=path, workspace="/ws", made_at=path, sums={"experiments/a.py": "sum"})
    target = Kubernetes(profile_of(SERVERS))
    assert (target.code_as("gs://b/run"), target.code_as("/runs/run")) == ("archive", None)
    rendered = target.render(dataclasses.replace(job_for(target.profile, model_dir="gs://b/run"), code=code))
    url = "gs://b/run/.launch/code-0123456789ab.tar.gz"
    assert rendered.submit[0] == ("gcloud", "storage", "cp", "code-0123456789ab.tar.gz", url)
    for spec in replicated(yaml.safe_load(rendered.files["jobset.yaml"])).values():
        (container,) = spec["template"]["spec"]["containers"]
        words = ["python", "-m", "official_trainer.launch.fetch", url, "python", "-m", "official_trainer"]
        assert container["command"] == words
    of_image = Kubernetes(profile_of(f"{SERVERS}\nsource: image"))
    assert of_image.code_as("gs://b/run") is None
    assert container_of(manifest_of(SERVERS))["command"] == ["python", "-m", "official_trainer"]


def test_a_snapshot_needs_a_bucket():
    (said,) = problems_of("source: snapshot\nvolumes: [{claim: runs, path: /}]", model_dir="/runs/a")
    assert said == (
        "source: the pods get a snapshot from the run directory, and --model_dir=/runs/a is in no bucket; use a gs:// "
        "URL, or source: image, and an image with the workspace"
    )
