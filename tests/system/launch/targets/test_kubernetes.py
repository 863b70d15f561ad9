"""What the schemas of Kubernetes and JobSet, and kubectl, say of the jobs that are rendered."""

import copy
import functools
import itertools
import operator
import shutil
import subprocess

import kubernetes_validate
import pytest

from official_trainer.launch.targets.kubernetes import Kubernetes
from tests.support.launch.rendered import KUBERNETES, NAME, job_for, manifest_of, profile_of

RELEASES = ("1.34", "1.37")


def schema_problems(manifest):
    """Returns what the published schemas say of an object; a field that they do not know is a problem."""
    if _of_jobset(manifest) != manifest:
        return ["JobSet"]
    jobs = manifest["spec"]["replicatedJobs"]
    inner = [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **job["template"]} for job in jobs]
    problems = []
    for each, release in itertools.product(inner, RELEASES):
        try:
            kubernetes_validate.validate(each, release, strict=True)
        except kubernetes_validate.ValidationError as error:
            problems.append(f"{release}: {error.message}")
    return problems


def _of_jobset(manifest):
    """Returns what a JobSet is to its API; an error of the model's own is a difference too."""
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet  # here, as it takes a second in each process of pytest

    try:
        return JobsetV1alpha2JobSet.from_dict(manifest).to_dict()
    except ValueError as error:
        return error


@pytest.mark.parametrize("name", KUBERNETES)
def test_schemas_take_every_kind(name):
    """N20: of Kubernetes, strictly, and of JobSet."""
    assert schema_problems(manifest_of(KUBERNETES[name])) == []


def test_a_misspelt_field_is_noticed():
    """The check of the schemas can fail: in the part of JobSet, and in that of Kubernetes."""
    for path in (("spec", "failurePolicy"), ("spec", "replicatedJobs", 0, "template", "spec", "podFailurePolicy")):
        broken = copy.deepcopy(manifest_of(KUBERNETES["jobset-servers"]))
        around = functools.reduce(operator.getitem, path[:-1], broken)
        around[f"{path[-1]}x"] = around.pop(path[-1])
        assert schema_problems(broken), path


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="KUBECTL IS NOT ASKED: it is not on the PATH")
def test_kubectl_takes_the_words(tmp_path, monkeypatch):
    """N20: it looks for the cluster after it has read them; it refuses a word that it does not know."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    target = Kubernetes(profile_of(f"{KUBERNETES['jobset-servers']}"))
    job = job_for(target.profile)
    (tmp_path / "jobset.yaml").write_text(target.render(job).files["jobset.yaml"])
    commands = target.commands(job, NAME, str(tmp_path))
    for argv in (target.render(job).submit, commands.status, commands.logs, commands.cancel):
        for words, is_known in ((argv, True), ((*argv, "--no-such-flag"), False)):
            done = subprocess.run(
                (*words, "--server=http://127.0.0.1:1"), cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode and ("unknown flag" not in done.stderr) == is_known, done.stderr
            assert ("127.0.0.1:1" in done.stderr) == is_known, done.stderr
