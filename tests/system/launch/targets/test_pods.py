"""The processes of a job on Kubernetes, run as its controllers would: from the manifest and nothing else.

Each pod is a network namespace with an address of its own, port 2222 and an `/etc/hosts`; see `pods.py`.
"""

import json

import pytest

from tests import ROOT
from tests.support.cases import full
from tests.support.launch import pods
from tests.support.launch.rendered import IMAGE, manifest_of


@pytest.fixture(autouse=True)
def _namespaces():
    if reason := pods.why_not():
        pytest.skip(f"PODS ARE NOT RUN: {reason}")


def manifest(tmp_path, counts, *words):
    """Returns a job whose run directory is on a volume; what pods see of it is the same folder here."""
    text = f"{IMAGE}\nvolumes: [{{claim: runs, path: {tmp_path}}}]\n{counts}"
    run = ("--config_file=configs/smoke/digits_mlp.yaml", *words)
    return manifest_of(text, *run, model_dir=f"{tmp_path}/run")


def recorded(tmp_path):
    return json.loads((tmp_path / "run" / "run.json").read_text())


@pytest.mark.parametrize(
    ("counts", "leader", "said"),
    [
        ("workers: 2", "worker", " of 2 workers, mirrored,"),
        full(("workers: 2\nps: 1", "chief", " on 2 workers and 1 ps")),  # what JobSet waits for is the chief
    ],
)
def test_the_pods_of_a_jobset_train(tmp_path, counts, leader, said):
    """N20: they find each other by name, train and finish, with nothing in their environment but the manifest."""
    found = pods.pods_of_jobset(manifest(tmp_path, counts))
    codes, output = pods.run(found, tmp_path, ROOT)
    assert set(codes.values()) == {0}, output
    assert said in output[leader, 0]
    assert recorded(tmp_path)["status"] == "done"
