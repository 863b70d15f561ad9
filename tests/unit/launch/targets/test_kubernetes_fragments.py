"""What a profile for Kubernetes adds in Kubernetes' own words: how it is merged, and what it cannot change."""

import copy

import pytest

from official_trainer import config
from official_trainer.config import ConfigError
from official_trainer.launch.targets.kubernetes import Kubernetes
from official_trainer.launch.targets.kubernetes_fragments import merged
from tests.support.launch import admission, pod_security
from tests.support.launch.rendered import IMAGE, KUBERNETES, job_for, manifest_of, profile_of

SERVERS = f"{IMAGE}\nworkers: 2\nps: 1"


def problems_of(text):
    profile = profile_of(f"{SERVERS}\n{text}")
    return list(Kubernetes(profile).problems(job_for(profile)))


def templates(manifest):
    return {job["name"]: job["template"]["spec"]["template"] for job in manifest["spec"]["replicatedJobs"]}


@pytest.mark.parametrize(
    ("rendered", "fragment", "result"),
    [
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
    ],
)
def test_how_a_fragment_is_merged(rendered, fragment, result):
    """N20: mappings key by key, named items by name, mounts by path, others appended, null removes."""
    before = copy.deepcopy((rendered, fragment))
    assert merged(rendered, fragment) == result
    assert (rendered, fragment) == before


def test_fragments_are_in_the_object():
    """N20: `pod` in every pod of every role, `job` in the JobSet; and all checks of the object hold."""
    manifest = manifest_of(KUBERNETES["jobset-fragments"])
    assert list(admission.problems_of_jobset(manifest)) == []
    assert set(templates(manifest)) == {"worker", "evaluator"}
    for template in templates(manifest).values():
        spec = template["spec"]
        (container,) = spec["containers"]
        assert list(pod_security.problems_of_pod(spec)) == []
        assert template["metadata"]["annotations"] == {"gke-gcsfuse/volumes": "true"}
        assert [volume["name"] for volume in spec["volumes"]] == ["claim-0", "scratch"]
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/data", "/scratch"]
        assert container["envFrom"] == [{"configMapRef": {"name": "proxy"}}] and container["env"]
        assert spec["securityContext"]["runAsUser"] == 4711 and spec["securityContext"]["runAsNonRoot"] is True
    exclusive = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    assert manifest["metadata"]["annotations"] == {exclusive: "cloud.google.com/gke-nodepool"}
    worker, evaluator = manifest["spec"]["replicatedJobs"]
    assert worker["template"]["spec"]["activeDeadlineSeconds"] == 86400
    assert "activeDeadlineSeconds" not in evaluator["template"]["spec"]
    assert [rule["name"] for rule in manifest["spec"]["failurePolicy"]["rules"]] == ["final", "again", "late"]


RELIES = "on which the job relies, and the fragment"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pod: {spec: {containers: {a: b}}}", "pod.spec.containers[trainer] is {"),
        (
            "pod: {spec: {containers: [{name: trainer, command: [bash]}]}}",
            f"pod.spec.containers[trainer].command is ['python', '-m', 'official_trainer'], {RELIES} makes",
        ),
        (
            "pod: {metadata: {labels: {app.kubernetes.io/instance: null}}}",
            f"pod.metadata.labels.app.kubernetes.io/instance is 'digits-1a2b3c4d', {RELIES} removes it; leave that out",
        ),
        (
            "pod: {spec: {containers: [{name: trainer, env: [{name: A, value: b}]}]}}",
            "env[A].value cannot be added: variables",
        ),
        ("pod: {spec: {hostname: a}}", "pod.spec.hostname cannot be added: processes find each other by names that Jo"),
        ("job: {metadata: {namespace: a}}", "job.metadata.namespace cannot be added: the profile has name and"),
        (
            "job: {spec: {successPolicy: {operator: Any}}}",
            f"job.spec.successPolicy.operator is 'All', {RELIES} makes it",
        ),
        ("job: {spec: {replicatedJobs: [{name: extra}]}}", "job.spec.replicatedJobs[extra] cannot be added: each"),
        (
            "job: {spec: {replicatedJobs: [{name: ps, template: {spec: {backoffLimitPerIndex: 9}}}]}}",
            "template.spec.backoffLimitPerIndex cannot be added: what ends the job follows from its roles and max_re",
        ),
        (
            "job: {spec: {replicatedJobs: [{name: ps, template: {spec: {template: {spec: "
            "{activeDeadlineSeconds: 9}}}}}]}}",
            "template.spec.template.spec.activeDeadlineSeconds cannot be added: a pod that it ends starts again",
        ),
    ],
)
def test_what_a_fragment_cannot_change(text, said):
    """N20: the path, the value that the job relies on, and what the fragment makes of it; said once for all roles."""
    found = [problem for problem in problems_of(text) if said in problem]
    assert len(set(found)) == len(found) > 0
    assert found[0].endswith(("; leave that out", "; leave it out"))


def test_without_servers_no_fragment_decides_what_is_waited_for():
    profile = profile_of(f"{IMAGE}\njob: {{spec: {{successPolicy: {{operator: Any}}}}}}")
    (problem,) = Kubernetes(profile).problems(job_for(profile))
    assert problem.startswith("job.spec.successPolicy cannot be added: what ends the job follows from its roles")


@pytest.mark.parametrize(
    "text",
    [
        "pod: {spec: {securityContext: {fsGroup: null}, nodeSelector: {disk: hdd}, tolerations: [{operator: Exists}]}}",
        "pod: {spec: {containers: [{name: trainer, resources: {limits: {memory: 3Gi}}}, {name: other, image: b}]}}",
        "pod: {spec: {volumes: [{name: a, ephemeral: {volumeClaimTemplate: {metadata: {name: a}}}}]}}",
        "pod: {metadata: {labels: {team: vision}}}",
        "job: {metadata: {labels: {team: vision}}, spec: {suspend: true}}",
        "job: {spec: {replicatedJobs: [{name: ps, template: {spec: {template: {spec: {nodeSelector: {a: b}}}}}}]}}",
    ],
)
def test_what_a_fragment_may_change(text):
    """Rights, resources and nodes, and what is added beside what is rendered; also of the pods of one role."""
    assert problems_of(f"resources: {{memory_gib: 2}}\n{text}") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pod: {nodeSelector: {a: b}}", "pod: nodeSelector is no part of it; allowed: metadata, spec; write pod:"),
        ("job: {kind: Job}", r"job: kind is no part of it; allowed: metadata, spec; write job: {spec: {kind: …}}"),
    ],
)
def test_a_fragment_that_begins_in_the_wrong_place(text, said):
    with pytest.raises(ConfigError, match=said):
        config.resolve(profile_of(IMAGE), params_overrides=[text])
