"""Jobs on Kubeflow Trainer, as its published models take them, as the real kubectl hands them over, and as pods train.

No control plane runs: what the controller makes of the two objects is `rendered_kubeflow.py`.
"""

import json
from pathlib import Path

import pytest
import yaml

from official_trainer import cli
from tests import ROOT
from tests.support.cases import full
from tests.support.launch import pods
from tests.support.launch.rendered import IMAGE, KUBERNETES
from tests.support.launch.rendered_kubeflow import jobset_of, objects_of
from tests.system.launch.targets.test_kubectl import PROFILE, api, job  # noqa: F401
from tests.system.launch.targets.test_kubernetes import misspelt, schema_problems

MODELS = {"TrainingRuntime": "TrainerV1alpha1TrainingRuntime", "TrainJob": "TrainerV1alpha1TrainJob"}


def problems_of(manifest):
    """Returns what the models and schemas say of an object; a field that they do not know is a problem."""
    from kubeflow_trainer_api import models  # here, as it takes a second in each process of pytest

    try:
        known = getattr(models, MODELS[manifest["kind"]]).from_dict(manifest).to_dict()
    except (ValueError, KeyError, AttributeError) as error:
        return [error]
    if known != manifest:
        return [known]
    return schema_problems(jobset_of(manifest)) if manifest["kind"] == "TrainingRuntime" else []


@pytest.mark.parametrize("name", KUBERNETES)
def test_models_take_every_kind(name):
    """N50: of Kubeflow Trainer and JobSet, and Kubernetes' schemas, strictly."""
    for manifest in objects_of(KUBERNETES[name]):
        assert problems_of(manifest) == []


def test_a_misspelt_field_is_found_wherever_it_is():
    """The check can fail: each field of both objects, one at a time."""
    for manifest in objects_of(KUBERNETES["jobset-servers"]):
        for path, broken in misspelt(manifest, at_least=5):
            assert problems_of(broken), path


def submit(capfd):
    Path("cluster.yaml").write_text(PROFILE)
    words = ["--profile=cluster.yaml", "--submit", "--", "digits_mlp", "--model_dir=gs://bucket/digits"]
    code = cli.main(["launch", "kubeflow", *words])
    out, err = capfd.readouterr()
    assert code == 0, err
    (name,) = [line.split()[0] for line in out.splitlines() if "was submitted" in line]
    return name


def test_a_job_is_handed_over_seen_to_and_taken_back(api, capfd):  # noqa: F811
    """N50: by the real kubectl: created, shown with its progress, read, listed, stopped, started again."""
    name = submit(capfd)
    written = [yaml.safe_load(Path("launches", name, file).read_text()) for file in ("runtime.yaml", "trainjob.yaml")]
    made = api.objects["trainingruntimes", name], api.objects["trainjobs", name]
    made[0]["metadata"].pop("annotations")  # kubectl's note of what it has applied
    assert list(made) == written

    api.add_pod(f"{name}-worker-0-0-abcde", name)
    progress = {"progressPercentage": 42, "estimatedRemainingSeconds": 60}
    made[1]["status"] = {"trainerStatus": progress, "conditions": [{"type": "Suspended", "status": "False"}]}
    assert job("status", name) == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert ["TrainJob", name, "<none>", "<none>", "42", "60"] in [row[:6] for row in rows]
    assert ["Pod", f"{name}-worker-0-0-abcde", *["<none>"] * 4, "Running", "n1"] in [row[:8] for row in rows]
    assert job("logs", name, "--follow") == 0
    assert f"[pod/{name}-worker-0-0-abcde/trainer] step 2" in capfd.readouterr().out.splitlines()
    assert job("list") == 0
    assert "running" in capfd.readouterr().out

    made[1]["status"]["conditions"].append({"type": "Complete", "status": "True"})
    assert job("list") == 0
    assert "complete" in capfd.readouterr().out
    assert submit(capfd) == name  # the old ones go first
    assert "status" not in api.objects["trainjobs", name]
    assert job("cancel", name) == 0
    assert not {("trainjobs", name), ("trainingruntimes", name)} & api.objects.keys()
    assert job("resume", name) == 0
    assert {("trainjobs", name), ("trainingruntimes", name)} <= api.objects.keys()


@pytest.mark.parametrize(
    ("counts", "leader", "said"),
    [
        ("workers: 1", "worker", " on 1 CPU, "),
        full(("workers: 2", "worker", " of 2 workers, mirrored,")),
        full(("workers: 2\nps: 1\nevaluator: true", "chief", " on 2 workers and 1 ps")),
    ],
)
def test_the_pods_of_a_trainjob_train(tmp_path, counts, leader, said):
    """N50: each role finds its place from the runtime and what the platform adds."""
    if reason := pods.why_not():
        pytest.skip(f"PODS ARE NOT RUN: {reason}")
    text = f"{IMAGE}\nvolumes: [{{claim: runs, path: {tmp_path}}}]\n{counts}"
    runtime, _ = objects_of(text, "--config_file=configs/smoke/digits_mlp.yaml", model_dir=f"{tmp_path}/run")
    found = pods.pods_of_jobset(jobset_of(runtime, {}))
    with pods.Nodes(found, tmp_path / "out", ROOT) as nodes:
        assert set(nodes.start_all().wait_all().values()) == {0}, nodes.outputs()
        assert said in nodes.out(leader, 0)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "done"
