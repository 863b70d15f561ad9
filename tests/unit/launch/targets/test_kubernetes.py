"""Jobs on Kubernetes: what is rendered, what follows from the ends of pods, what is refused, the words for kubectl.

No control plane runs here. `tests/system/launch` asks the schemas of Kubernetes and JobSet, and kubectl.
"""

import copy
import dataclasses
import functools
import itertools
import re

import pytest
import yaml

from official_trainer.errors import ExitCode
from official_trainer.launch.spec import shared_job
from official_trainer.launch.targets.kubernetes import FINAL_CODES, Kubernetes
from official_trainer.launch.targets.rendering import dump_yaml, merged
from tests.support import golden
from tests.support.launch import rendered
from tests.support.launch.rendered import IMAGE, job_for, profile_of

manifest_of = functools.cache(rendered.manifest_of)
SERVERS = f"{IMAGE}\nworkers: 2\nps: 1"


def replicated(manifest):
    return {job["name"]: job["template"]["spec"] for job in manifest["spec"]["replicatedJobs"]}


def container_of(manifest, role="worker"):
    return replicated(manifest)[role]["template"]["spec"]["containers"][0]


def values_of(container):
    return {variable["name"]: variable.get("value") for variable in container["env"]}


def problems_of(text, *words, **changes):
    profile = profile_of(f"{IMAGE}\n{text}")
    return list(Kubernetes(profile).problems(job_for(profile, *words, **changes)))


# What is rendered.


ALONE, ALL, ALL_COUNTED, FAILED = "another pod", "all again", "all again, which counts", "the job has failed"


class Controllers:
    """What two controllers make of pods that have ended: Kubernetes' own for each Job, then JobSet's for all of them.

    Written after their sources, `pkg/controller/job/pod_failure_policy.go` of Kubernetes 1.34 and
    `pkg/controllers/failure_policy.go` of JobSet 0.12, with their messages. `restarts` says how often all have been
    restarted; `counted` of them count.
    """

    def __init__(self, manifest, matched="matching"):
        """Takes the object, and a word of the Job controller's message, which another version could change."""
        self._name, self._policy = manifest["metadata"]["name"], manifest["spec"]["failurePolicy"]
        self._jobs = {job["name"]: job["template"]["spec"] for job in manifest["spec"]["replicatedJobs"]}
        self._matched = matched
        self._failures = dict.fromkeys(self._jobs, 0)
        self.restarts = self.counted = 0

    def end(self, *ends):
        """Returns what follows from pods that end at the same time: role, exit code, and whether it was evicted."""
        failed = {}
        for role, code, is_evicted in ends:
            found = self._of_job(role, code, is_evicted)
            if found and role not in failed:
                failed[role] = found
        return self._of_jobset(failed) if failed else ALONE

    def _of_job(self, role, code, is_evicted):
        """Returns the reason and message with which a Job fails; None if it makes another pod."""
        job, pod = self._jobs[role], f"default/{self._name}-{role}-0-0-abcde"
        for index, rule in enumerate(job["podFailurePolicy"]["rules"]):
            how = self._matches(rule, pod, code, is_evicted)
            if how and rule["action"] == "Ignore":
                return None
            if how and rule["action"] == "FailJob":
                return "PodFailurePolicy", f"{how} {self._matched} FailJob rule at index {index}"
        self._failures[role] += 1
        if self._failures[role] > job["backoffLimit"]:
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        return None

    def _matches(self, rule, pod, code, is_evicted):
        codes = rule.get("onExitCodes")
        if codes and code in codes["values"]:
            return f"Container {codes['containerName']} for pod {pod} failed with exit code {code}"
        for condition in rule.get("onPodConditions", ()):
            if is_evicted and (condition["type"], condition["status"]) == ("DisruptionTarget", "True"):
                return f"Pod {pod} has condition DisruptionTarget"
        return None

    def _of_jobset(self, failed):
        actions = (
            rule["action"] for rule in self._policy["rules"] if any(_applies(rule, *each) for each in failed.items())
        )
        action = next(actions, "RestartJobSet")
        counts = action == "RestartJobSet"
        if action == "FailJobSet" or (counts and self.counted >= self._policy["maxRestarts"]):
            return FAILED
        assert counts or action == "RestartJobSetAndIgnoreMaxRestarts", action
        self.restarts += 1
        self.counted += counts
        self._failures = dict.fromkeys(self._jobs, 0)  # every Job is made anew
        return ALL_COUNTED if counts else ALL


def _applies(rule, role, failure):
    reason, message = failure
    patterns, targets = rule.get("onJobFailureMessagePatterns", ()), rule.get("targetReplicatedJobs", ())
    return (
        reason in rule.get("onJobFailureReasons", (reason,))
        and (not patterns or any(re.search(pattern, message) for pattern in patterns))
        and (not targets or role in targets)
    )


WORKERS = f"{IMAGE}\nworkers: 3\nmax_restarts: 2\nevaluator: true"
LED = f"{IMAGE}\nworkers: 2\nchief: true\nmax_restarts: 2"
SERVED = f"{SERVERS}\nmax_restarts: 2\nevaluator: true"
TOGETHER = [(WORKERS, "worker"), (LED, "chief"), (LED, "worker"), (SERVED, "chief"), (SERVED, "ps")]
NOT_COUNTED = [(ExitCode.PREEMPTED, True), (137, True), (ExitCode.PREEMPTED, False), (ExitCode.RETRY, False)]
COUNTED = (134, 137, 139, 127)


def test_what_uses_up_restarts():
    """N20: those that train together restart together; out of memory or a crash counts, a lost spot node does not."""
    for (text, role), (code, is_evicted) in itertools.product(TOGETHER, NOT_COUNTED):
        job = Controllers(manifest_of(text))
        assert {job.end((role, code, is_evicted)) for _ in range(50)} == {ALL}, (role, code)
        assert (job.restarts, job.counted) == (50, 0)
    for (text, role), code in itertools.product(TOGETHER, COUNTED):
        job = Controllers(manifest_of(text))
        ends = [job.end((role, code, False)), job.end((role, ExitCode.RETRY, False)), job.end((role, code, False))]
        assert [*ends, job.end((role, code, False))] == [ALL_COUNTED, ALL, ALL_COUNTED, FAILED], (role, code)
    job = Controllers(manifest_of(SERVED))  # what follows from an eviction is no failure either
    assert job.end(("ps", 143, True), ("chief", ExitCode.RETRY, False), ("worker", ExitCode.RETRY, False)) == ALL
    assert job.counted == 0


def test_a_final_exit_code_ends_a_job_for_good():
    """N20: also beside processes that end because of it, at the same time."""
    for (text, role), code in itertools.product([*TOGETHER, (SERVED, "worker")], FINAL_CODES):
        manifest = manifest_of(text)
        assert Controllers(manifest).end((role, code, False)) == FAILED, (role, code)
        others = [(other, ExitCode.RETRY, False) for other in replicated(manifest) if other not in (role, "evaluator")]
        assert Controllers(manifest).end(*others, (role, code, False)) == FAILED, (role, code)


def test_who_restarts_alone():
    """N20, N21: an evaluator, always; a worker of parameter servers or of a sweep, until its restarts are used up."""
    for text in (WORKERS, SERVED):
        job = Controllers(manifest_of(text))
        for end in itertools.product((*FINAL_CODES, *COUNTED, 75, 143), (False, True)):
            assert {job.end(("evaluator", *end)) for _ in range(10)} == {ALONE}
    profile = profile_of(f"{IMAGE}\nworkers: 3\nmax_restarts: 2")
    sweep = dataclasses.replace(shared_job(3, ["sweep", "digits_mlp", "--join"], grace_seconds=30), name="x-1")
    (text,) = Kubernetes(profile).render(sweep).files.values()
    for manifest in (manifest_of(SERVED), yaml.safe_load(text)):
        job = Controllers(manifest)
        assert {job.end(("worker", *end)) for end in NOT_COUNTED * 10} == {ALONE}
        assert [job.end(("worker", 137, False)) for _ in range(3)] == [ALONE, ALONE, FAILED]
        assert job.restarts == 0
        assert Controllers(manifest).end(("worker", ExitCode.DATA, False)) == FAILED


def test_with_other_messages_of_kubernetes_restarts_have_a_limit():
    """The rules read the Job controller's words; without them no exit code may restart a job for ever."""
    for code in (ExitCode.RETRY, ExitCode.CONFIG):
        job = Controllers(manifest_of(WORKERS), matched="that fits")
        assert [job.end(("worker", code, False)) for _ in range(3)] == [ALL_COUNTED, ALL_COUNTED, FAILED]


def test_the_workers_of_a_sweep_are_pods_of_an_indexed_job():
    """N21: each is in no cluster."""
    profile = profile_of(f"{IMAGE}\nworkers: 3\nmax_restarts: 4\nvolumes: [{{claim: runs, path: /runs}}]")
    job = shared_job(3, ["sweep", "digits_mlp", "--space=/home/me/x.yaml", "--join"], grace_seconds=30)
    job = dataclasses.replace(job, name="x-1", model_dir="/runs/x")
    (problem,) = Kubernetes(profile).problems(job)
    assert problem.startswith("--space=/home/me/x.yaml is a file of this machine")
    (text,) = Kubernetes(profile).render(job).files.values()
    manifest = yaml.safe_load(text)
    spec = replicated(manifest)["worker"]
    assert (spec["completionMode"], spec["completions"], spec["backoffLimit"]) == ("Indexed", 3, 4)
    assert list(values_of(container_of(manifest))) == ["PYTHONUNBUFFERED"]


def test_resources_are_those_of_the_role():
    """Memory and devices are limits too; cores are not, a process would only wait."""
    manifest = manifest_of(f"{SERVERS}\nresources: {{cpus: 4, memory_gib: 2.5, gpus: 1}}\ngpu_resource: amd.com/gpu")
    requests = {"cpu": "4", "memory": "2560Mi", "amd.com/gpu": "1"}
    limits = {name: requests[name] for name in ("memory", "amd.com/gpu")}
    assert container_of(manifest)["resources"] == {"requests": requests, "limits": limits}
    assert "resources" not in container_of(manifest, "ps")
    assert "volumes" not in replicated(manifest)["worker"]["template"]["spec"]


@pytest.mark.parametrize(("asked", "of_servers"), [("{memory_gib: 1}", None), ("{gpus: 2}", "2")])
def test_servers_request_gpus_only_if_ps_resources_does(asked, of_servers):
    """N20: theirs is memory; those that compute request what `resources` says, with memory to share between GPUs."""
    text = f"{SERVERS}\nevaluator: true\nresources: {{gpus: 4}}\nps_resources: {asked}"
    jobs = replicated(manifest_of(text))
    limits = {name: container_of(manifest_of(text), name)["resources"]["limits"] for name in jobs}
    gpus = {name: limit.get("nvidia.com/gpu") for name, limit in limits.items()}
    assert gpus == {"chief": "4", "worker": "4", "evaluator": "4", "ps": of_servers}
    shares = {name for name, job in jobs.items() if "volumes" in job["template"]["spec"]}
    assert shares == {name for name, count in gpus.items() if count}


def test_dollars_are_no_variables():
    """Kubernetes would put variables in for `$(NAME)`, in words and in values, and make one of two dollars."""
    manifest = manifest_of(f"{IMAGE}\nenviron: {{A: '$(B) $$ $'}}", "--set=task.note=$(A)")
    assert values_of(container_of(manifest))["A"] == "$$(B) $$$$ $$"
    assert "--set=task.note=$$(A)" in container_of(manifest)["args"]


TEXTS = ["y", "N", "yes", "1e3", "1_000", "0o17", "0x1F", "1:30", "2001-01-01", "~", "null", "-1", ".5", "", "'", "%"]
SIGNS = ["@x", "!x", "&x", "{x", "=", "<<", " x", "a: b", "#x", "- x", "a\nb", "a\n b\n", "\t", "é"]


def test_texts_stay_texts_for_every_parser():
    """Also for those of YAML 1.1, to which `y` is true and `1e3` a number."""
    for text in (*TEXTS, *SIGNS):
        written = dump_yaml({"key": text, "list": [text]})
        assert yaml.safe_load(written) == {"key": text, "list": [text]}
        line = written.splitlines()[0].removeprefix("key: ")
        assert line[0] in "'\"|" or (text[0].isalpha() and text not in "yYnN")


# What is refused.


def test_a_profile_that_no_cluster_would_take(request):
    """N20: rules of the API server that a type cannot say, each with its fix."""
    golden.check_profiles("profiles of Kubernetes", request, profile_of(IMAGE))


def test_a_run_directory_has_to_be_shared_by_pods():
    """N20: a URL that they share, or a path below a volume; else it is refused with these two ways."""
    volume = "volumes: [{claim: runs, path: /runs/}]"
    for model_dir in ("/runs", "/runs/digits", "s3://bucket/digits", "gs://bucket/digits"):
        assert problems_of(volume, model_dir=model_dir) == []
    for model_dir in ("/home/me/runs/digits", "runs/digits", "/runsx/digits", "/runs/../x"):
        (problem,) = problems_of(volume, model_dir=model_dir)
        assert f"--model_dir={model_dir} is in no volume" in problem
        assert "use a URL such as gs://BUCKET/RUN, or a path below a volume: volumes: [{claim: NAME" in problem
    (problem,) = problems_of("volumes: [{claim: runs, path: /, read_only: true}]", model_dir="/runs/digits")
    assert "is in volume /, which is read_only; set that to false" in problem
    (problem,) = problems_of("workers: 2", model_dir="ram://digits")
    assert problem == (
        "--model_dir=ram://digits: pods do not share ram://; use gs://BUCKET/RUN, s3://BUCKET/RUN, or a path below a "
        "volume"
    )


def test_files_of_this_machine_that_pods_would_look_for():
    (problem,) = problems_of("workers: 2", "--config_file=/home/me/x.yaml", "--config_file=configs/x.yaml")
    assert problem.startswith(
        "--config_file=/home/me/x.yaml is a file of this machine; use its path relative to the image's"
    )
    assert problems_of("volumes: [{claim: a, path: /home}]", "--gin_file=/home/me/x.gin") == []
    assert len(problems_of("workers: 2", "--gin_file=/a", "--params_override=/b.yaml", "--params_override=a.b=/c")) == 2


def test_the_commands_of_kubectl():
    """N20: lists of words, in the cluster of the profile."""
    target = Kubernetes(profile_of(f"{IMAGE}\ncontext: lab\nnamespace: team"))
    job, kubectl = job_for(target.profile), ("kubectl", "--context=lab", "--namespace=team")
    assert target.render(job).submit == (*kubectl, "create", "--filename=jobset.yaml")
    commands = target.commands(job, "digits", "/folder")
    selector = "--selector=app.kubernetes.io/instance=digits"
    assert commands.status == (*kubectl, "get", "jobsets.jobset.x-k8s.io,pods", "--output=wide", selector)
    assert commands.logs[3:5] == ("logs", "--all-containers") and commands.logs[-1] == selector
    assert commands.cancel[3:6] == ("delete", "jobsets.jobset.x-k8s.io", "digits")
    assert Kubernetes(profile_of(IMAGE)).render(job).submit == ("kubectl", "create", "--filename=jobset.yaml")


# What a profile says in Kubernetes' own words.


MERGED = (
    ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "d": {"e": 4}}}, {"a": {"b": 3, "c": 2, "d": {"e": 4}}}),
    (
        [{"name": "a", "x": 1}],
        [{"name": "b"}, {"name": "a", "y": 2}],
        [{"name": "a", "x": 1, "y": 2}, {"name": "b"}],
    ),
    (
        [{"name": "v", "mountPath": "/a"}],
        [{"name": "v", "mountPath": "/b"}, {"name": "w", "mountPath": "/a"}],
        [{"name": "w", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}],
    ),
    ([{"key": "a"}], [{"key": "a"}], [{"key": "a"}, {"key": "a"}]),
    (["a"], ["b"], ["a", "b"]),
    ({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": None}, "d": None, "e": {"f": None}}, {"a": {"c": 2}, "e": {}}),
    ({"a": 1}, {"a": {"b": (1, 2)}}, {"a": {"b": [1, 2]}}),
)


def test_how_a_fragment_is_merged():
    """N20: mappings key by key, named items by name, mounts by path, others appended, null removes."""
    for section, fragment, result in MERGED:
        before = copy.deepcopy((section, fragment))
        assert merged(section, fragment) == result
        assert (section, fragment) == before
