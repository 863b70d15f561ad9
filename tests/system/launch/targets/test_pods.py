"""The processes of a job on Kubernetes, run as its controllers would: from the manifest and nothing else.

Each pod is a network namespace with an address of its own, port 2222 and an `/etc/hosts`; see `pods.py`.
"""

import json
import time

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


def wait_for(condition, nodes):
    end = time.monotonic() + pods.TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < end, nodes.outputs()
        time.sleep(0.05)


def test_what_a_pod_is_told(tmp_path):
    """Fields of the downward API are labels that the controller sets; dollars are what they were."""
    found = pods.pods_of_jobset(manifest(tmp_path, "workers: 2\nps: 1\nenviron: {A: $(B)$$}", "--set=x=$(JOB_INDEX)"))
    assert list(found) == [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)]
    worker = found["worker", 1]
    assert worker.host == "digits-1a2b3c4d-worker-0-1.digits-1a2b3c4d"
    assert worker.environ == {
        "OFFICIAL_TRAINER_CLUSTER": "chief=1,worker=2,ps=1",
        "JOBSET_NAME": "digits-1a2b3c4d",
        "REPLICATED_JOB_NAME": "worker",
        "JOB_INDEX": "0",
        "JOB_COMPLETION_INDEX": "1",
        "PYTHONUNBUFFERED": "1",
        "A": "$(B)$$",
    }
    assert "--set=x=$(JOB_INDEX)" in worker.argv


@pytest.mark.parametrize(
    ("counts", "leader", "said"),
    [
        ("workers: 2", "worker", " of 2 workers, mirrored,"),
        full(("workers: 2\nps: 1", "chief", " on 2 workers and 1 ps")),  # what JobSet waits for is the chief
    ],
)
def test_the_pods_of_a_jobset_train(tmp_path, counts, leader, said):
    """N20: they find each other by name, train and finish."""
    found = pods.pods_of_jobset(manifest(tmp_path, counts))
    with pods.Nodes(found, tmp_path / "out", ROOT) as nodes:
        assert set(nodes.start_all().wait_all().values()) == {0}, nodes.outputs()
        assert said in nodes.out(leader, 0)
    assert recorded(tmp_path)["status"] == "done"


@pytest.mark.full
def test_a_pod_that_comes_alone_waits_for_the_restart_of_all(tmp_path):
    """N20: the others end with 75, for which a JobSet starts all again; a pod that comes before that does no harm."""
    words = ("--set=trainer.train_steps=1500", "--set=trainer.summary_interval=50")
    found = pods.pods_of_jobset(manifest(tmp_path, "workers: 2", *words))
    with pods.Nodes(found, tmp_path / "out", ROOT, spare=1) as nodes:
        nodes.start_all()
        wait_for(lambda: "\nstep 50/1500" in nodes.out("worker", 0), nodes)
        nodes.kill("worker", 1)
        nodes.move(("worker", 1), 0)
        nodes.start("worker", 1)
        assert nodes.wait("worker", 0) == 75
        wait_for(lambda: "waiting for worker 0" in nodes.err("worker", 1), nodes)
        assert nodes.is_alive("worker", 1)
        nodes.terminate("worker", 1)
        assert nodes.wait("worker", 1) == 143
        assert set(nodes.start_all().wait_all().values()) == {0}, nodes.outputs()
        assert "continuing from step" in nodes.out("worker", 0)
    assert recorded(tmp_path)["status"] == "done"


@pytest.mark.full
def test_a_worker_comes_back_on_another_node(tmp_path):
    """N20: a new pod has the name of the old one and another address; the chief finds it."""
    words = ("--set=trainer.train_steps=6000", "--set=trainer.summary_interval=50")
    found = pods.pods_of_jobset(manifest(tmp_path, "workers: 2\nps: 1", *words))
    with pods.Nodes(found, tmp_path / "out", ROOT, spare=1) as nodes:
        nodes.start_all()
        wait_for(lambda: "\nstep 50/6000" in nodes.out("chief", 0), nodes)
        nodes.kill("worker", 1)
        wait_for(lambda: "lost worker 1" in nodes.err("chief", 0), nodes)
        nodes.move(("worker", 1), 0)
        nodes.start("worker", 1)
        wait_for(lambda: "\nworker 1 is back\n" in nodes.err("chief", 0), nodes)
        nodes.terminate("chief", 0)
        assert set(nodes.wait_all().values()) == {143}, nodes.outputs()


@pytest.mark.full
def test_servers_outlive_the_chief_that_saves(tmp_path):
    """N20: a job that is deleted: its chief hears SIGTERM first, saves, and the others end by themselves meanwhile."""
    words = (
        "--set=trainer.train_steps=6000",
        "--set=trainer.summary_interval=50",
        "--set=trainer.checkpoint_interval=6000",
    )
    found = pods.pods_of_jobset(manifest(tmp_path, "workers: 2\nps: 1", *words))
    with pods.Nodes(found, tmp_path / "out", ROOT) as nodes:
        nodes.start_all()
        wait_for(lambda: "\nstep 50/6000" in nodes.out("chief", 0), nodes)
        for name, pod in found.items():
            if "lifecycle" not in pod.container:
                nodes.terminate(*name)
        assert set(nodes.wait_all().values()) == {143}, nodes.outputs()
    assert list((tmp_path / "run").glob("ckpt-*.manifest.json"))


@pytest.mark.full
def test_nothing_but_the_manifest_is_in_the_environment(tmp_path):
    """N20: as `test_the_pods_of_a_jobset_train`, in new processes that have imported nothing."""
    found = pods.pods_of_jobset(manifest(tmp_path, "workers: 2"))
    with pods.Nodes(found, tmp_path / "out", ROOT) as nodes:
        codes, said = nodes.run_anew()
    assert set(codes.values()) == {0}, said
    assert " of 2 workers, mirrored," in said["worker", 0]
    assert recorded(tmp_path)["status"] == "done"
