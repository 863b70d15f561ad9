"""Jobs on Kubernetes from the command line: the real kubectl, asking an API server on loopback that runs nothing."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from official_trainer import cli
from official_trainer.errors import ExitCode
from tests.support.launch.api_server import ApiServer
from tests.support.workspace import copy_workspace

PROFILE = """\
image: registry.example.com/trainer:1
context: lab
namespace: team
source: image
workers: 2
"""


@pytest.fixture
def api(tmp_path, monkeypatch):
    if shutil.which("kubectl") is None:
        pytest.skip("NO JOB IS HANDED TO KUBECTL: it is not on the PATH")
    copy_workspace(tmp_path, "experiments")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("HOME", str(tmp_path))  # kubectl keeps there what it finds out
    with ApiServer() as server:
        server.write_config(tmp_path / "kubeconfig")
        yield server


def launch(text, *words):
    Path("cluster.yaml").write_text(text)
    arguments = ["--profile=cluster.yaml", *words, "--", "digits_mlp", "--model_dir=gs://bucket/digits"]
    return cli.main(["launch", "kubernetes", *arguments])


def submit(capfd, text=PROFILE):
    """Submits a job and returns its name."""
    code = launch(text, "--submit")
    out, err = capfd.readouterr()
    assert code == 0, err
    (name,) = [line.split()[0] for line in out.splitlines() if "was submitted" in line]
    return name


def job(*words):
    return cli.main(["job", *words])


def test_a_job_is_handed_over_seen_to_and_taken_back(api, capfd):
    """N20: created, asked for with its pods, read, deleted once its pods have ended, created again."""
    name = submit(capfd)
    written = yaml.safe_load(Path("launches", name, "jobset.yaml").read_text())
    assert api.objects["jobsets", name] == written

    api.add_pod(f"{name}-worker-0-0-abcde", name)
    api.add_pod("somebody-elses", "other")
    assert job("status", name) == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert [written["kind"], name, "<none>", "<none>"] in [row[:4] for row in rows]
    assert ["Pod", f"{name}-worker-0-0-abcde", "<none>", "Running", "n1"] in [row[:5] for row in rows]
    assert "somebody-elses" not in str(rows)

    assert job("logs", name) == 0
    line = f"[pod/{name}-worker-0-0-abcde/trainer] step 2"
    assert line in capfd.readouterr().out.splitlines()
    assert job("logs", name, "--follow") == 0  # until the last pod has ended; these have
    assert line in capfd.readouterr().out.splitlines()

    assert job("resume", name) == ExitCode.CONFIG
    assert "has not ended (running), so there is nothing to resume" in capfd.readouterr().err
    assert job("cancel", name) == 0
    assert ("jobsets", name) not in api.objects
    (deleted,) = [body for method, _, body in api.requests if method == "DELETE"]
    assert deleted == {"propagationPolicy": "Foreground"}
    assert job("cancel", name) == 0  # nothing is left, which is what was wanted
    assert f"\nkubernetes no longer has {name}, so it has ended; nothing was cancelled\n" in capfd.readouterr().out

    assert job("resume", name) == 0
    assert api.objects["jobsets", name] == written


def test_why_pods_do_not_come(api, capfd):
    """N20: the last warning about each object of the job, one line for all with the same; nothing without the right."""
    name = submit(capfd)
    for index in range(2):
        api.add_event(
            f"{name}-worker-0-{index}-abcde", "FailedScheduling", "0/3 nodes are available: 3 Insufficient\nGPU."
        )
    api.add_event(f"{name}-worker-0", "FailedCreate", "exceeded quota: team", kind="Job")
    api.add_event(f"{name}x-worker-0-0-abcde", "Failed", "of another job")
    assert job("status", name) == 0
    said = capfd.readouterr().out
    assert said.endswith(
        f"{name}-worker-0-0-abcde, {name}-worker-0-1-abcde: FailedScheduling: 0/3 nodes are available: "
        f"3 Insufficient\\nGPU.\n{name}-worker-0: FailedCreate: exceeded quota: team\n"
    )
    assert "another job" not in said
    api.forbidden = {"events"}
    assert job("status", name) == 0
    out, err = capfd.readouterr()
    assert "FailedScheduling" not in out and not err


def test_a_job_that_has_ended_is_submitted_again(api, capfd):
    """N20: the object that has ended goes first; one of another namespace is not touched."""
    name = submit(capfd)
    assert launch(PROFILE, "--submit") == ExitCode.CONFIG
    api.objects["jobsets", name]["status"] = {"terminalState": "Failed"}
    assert submit(capfd) == name
    assert "status" not in api.objects["jobsets", name]
    assert changes(api) == ["POST", "DELETE", "POST"]
    assert job("cancel", name) == job("resume", name) == 0
    assert changes(api) == ["POST", "DELETE", "POST", "DELETE", "DELETE", "POST"]
    api.objects["jobsets", name]["status"] = {"terminalState": "Failed"}
    assert launch(PROFILE.replace("team", "other"), "--submit") == ExitCode.FAILED  # this server has one namespace
    assert changes(api)[6:] == ["POST"]


def test_a_job_stays_in_the_place_to_which_it_was_submitted(api, capfd, tmp_path):
    """N20: kubectl's current context and its namespace may change; the job is asked for and ended where it is."""
    places = json.loads((tmp_path / "kubeconfig").read_text())
    (here,) = places["contexts"]
    elsewhere = {"name": "elsewhere", "context": {**here["context"], "cluster": "there", "namespace": "other"}}
    places["contexts"].append(elsewhere)
    places["clusters"].append({"name": "there", "cluster": {"server": "http://127.0.0.1:1"}})
    text = "image: a/b:1\nsource: image\n"
    for current, code in (("lab", ExitCode.DONE), ("elsewhere", ExitCode.CONFIG)):
        (tmp_path / "kubeconfig").write_text(json.dumps({**places, "current-context": current}))
        assert launch(text, "--submit") == code
    out, err = capfd.readouterr()
    name = re.search(r"^(\S+) was submitted", out, flags=re.MULTILINE)[1]
    assert f"{name} was submitted to kubernetes as {name} at " in err and "and has not ended (running)" in err
    (made,) = [path for method, path, _ in api.requests if method == "POST"]
    assert "/namespaces/default/" in made and api.objects["jobsets", name]["metadata"]["namespace"] == "default"
    assert job("cancel", name) == 0 and ("jobsets", name) not in api.objects


def test_a_cluster_of_which_kubectl_has_no_context(api, capfd, tmp_path):
    """N20: as in a pod, where there is one cluster; the commands name no context."""
    (tmp_path / "kubeconfig").unlink()
    assert launch("image: a/b:1\nsource: image\n", "--submit") == ExitCode.FAILED
    assert "error: kubectl create --filename=jobset.yaml ended with exit code 1" in capfd.readouterr().err


def changes(api):
    """Returns what was asked of the server that changes something."""
    return [method for method, *_ in api.requests if method != "GET"]


def test_a_user_who_may_not_see_jobs(api, capfd):
    """N20: nothing is deleted or created, because it is not known whether the job has ended."""
    name = submit(capfd)
    api.forbidden = {"jobsets"}
    why = f'Error from server (Forbidden): jobsets.jobset.x-k8s.io "{name}" is forbidden: User "me" cannot get resource'
    for command in (lambda: job("resume", name), lambda: launch(PROFILE, "--submit")):
        assert command() == ExitCode.FAILED
        said = capfd.readouterr().err
        assert f"it is not known whether it has ended, so nothing was started: {why}" in said
        assert f"check: kubectl --context=lab --namespace=team get jobsets.jobset.x-k8s.io {name} " in said
    assert changes(api) == ["POST"]
    assert job("list") == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[1].split()[3] == "unknown" and f"the state of {name} is unknown: {why}" in err


def test_jobs_of_a_namespace_are_asked_for_at_once(api, capfd):
    """N20: also those that are gone, and those that Kueue keeps waiting."""
    names = []
    for number in range(3):
        Path("cluster.yaml").write_text(PROFILE)
        words = ["--profile=cluster.yaml", "--submit", "--", "digits_mlp", f"--model_dir=gs://bucket/{number}"]
        assert cli.main(["launch", "kubernetes", *words]) == 0
        names += [line.split()[0] for line in capfd.readouterr().out.splitlines() if "was submitted" in line]
    del api.objects["jobsets", names[0]]
    api.objects["jobsets", names[1]]["spec"]["suspend"] = True
    api.objects["jobsets", names[2]]["status"] = {"terminalState": "Failed"}
    assert job("list") == 0
    out, err = capfd.readouterr()
    states = {row[0]: row[3] for row in map(str.split, out.splitlines()[1:])}
    assert states == dict(zip(names, ("ended", "suspended", "failed"), strict=True))
    assert not err
    assert job("watch", names[2]) == ExitCode.FAILED
    assert capfd.readouterr().out.endswith(" failed\n")


def test_a_job_of_this_name_that_somebody_else_submitted(api, capfd):
    """N20: it is left alone, and the command fails."""
    name = submit(capfd)
    shutil.rmtree("launches")
    before = dict(api.objects["jobsets", name])
    assert launch(PROFILE, "--submit") == ExitCode.FAILED
    assert "already exists" in capfd.readouterr().err
    assert api.objects["jobsets", name] == before
