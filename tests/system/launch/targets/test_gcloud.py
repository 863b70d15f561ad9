"""gcloud itself, with Google's APIs on loopback: what it makes of the commands, and what it asks for.

The shape of requests is proven here. No TPU was used, and nothing has run on Vertex AI.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from official_trainer import cli
from official_trainer.errors import ExitCode
from official_trainer.launch import schedulers, targets
from official_trainer.launch.target import GONE
from official_trainer.launch.targets import tpu_supervise
from official_trainer.launch.verbs import job as verb
from tests.support.launch import fake_google
from tests.support.launch.rendered_google import FIELDS, NAME, PROFILES, TPU, VERTEX, profile_of, rendered
from tests.support.workspace import copy_workspace

GCLOUD = shutil.which("gcloud")

pytestmark = pytest.mark.skipif(GCLOUD is None, reason="gcloud is not installed, so nothing here was proven")


@pytest.fixture
def google(tmp_path, monkeypatch):
    """Google's APIs, and gcloud set up to ask them."""
    apis = fake_google.Google()
    with fake_google.serving(apis) as address:
        for name, value in fake_google.environ(tmp_path, address).items():
            monkeypatch.setenv(name, value)
        yield apis


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    folder = tmp_path / "work space"
    copy_workspace(folder, "experiments")
    monkeypatch.chdir(folder)
    return folder


def run(argv, folder):
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Watching:
    """Stands for the signals of a terminal: at each wait, the next thing happens."""

    def __init__(self, *steps):
        self.steps, self.waits = list(steps), []

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        pass

    def wait(self, seconds):
        self.waits.append(seconds)
        self.steps.pop(0)()
        return False


def test_a_slice_from_its_request_to_its_end(google, workspace, monkeypatch, capfd):
    """N20: submitted, preempted, deleted, made anew, ended, deleted: by `launch tpu` and `job supervise`."""
    (workspace / "tpu.yaml").write_text(
        f"{TPU}name: digits\ngcloud: [--spot, --valid-until-duration=6h, --labels=team=vision]\n"
    )
    words = ["--profile=tpu.yaml", "--submit", "--", "digits_mlp", "--model_dir=gs://my-bucket/run"]
    assert cli.main(["launch", "tpu", *words]) == 0
    said = capfd.readouterr().out
    (line,) = [line for line in said.splitlines() if "was submitted" in line]
    assert f"it is deleted once the job has ended:\n  official-trainer job supervise {line.partition(' ')[0]}\n" in said
    name = line.partition(" ")[0]
    ((method, path, body),) = google.asked
    assert (method, path.partition("?")[0]) == (
        "POST",
        "/v2/projects/my-project/locations/us-central2-b/queuedResources",
    )
    assert f"queuedResourceId={name}" in path
    (node,) = body["tpu"]["nodeSpec"]
    assert node["nodeId"] == name
    assert (node["node"]["acceleratorType"], node["node"]["runtimeVersion"]) == ("v4-8", "tpu-ubuntu2204-base")
    assert node["node"]["labels"] == {"team": "vision"}
    assert node["node"]["metadata"] == {"startup-script": (workspace / "launches" / name / "startup.sh").read_text()}
    assert body["spot"] == {} and body["queueingPolicy"] == {"validUntilDuration": "21600s"}

    key = f"queuedResources/{name}"

    def is_lost():
        google.objects["my-bucket/run/status.json"] = b'{"last_checkpoint_step": 100}'
        google.set_state(key, "SUSPENDED", stateInitiator="SERVICE")

    def ends():
        google.set_state(key, "ACTIVE")
        ended = {"exit_code": 3, "ended": "2026-01-01T09:00:00Z"}
        google.objects["my-bucket/run/.launch/exit.json"] = json.dumps(ended).encode()

    watching = Watching(is_lost, lambda: None, ends)
    monkeypatch.setattr(verb, "Signals", lambda: watching)
    assert cli.main(["job", "supervise", name]) == ExitCode.DATA
    out, err = capfd.readouterr()
    assert google.made()[1:] == [("DELETE", key), ("POST", key), ("DELETE", key)]
    assert google.asked[2][2] == body and "force=True" in google.asked[1][1]
    assert watching.waits == [30.0, 30.0, 30.0]
    said = [line.partition(" ")[2] for line in out.splitlines()]
    assert said == [
        "the slice is WAITING_FOR_RESOURCES",
        "the slice is SUSPENDED",
        "SUSPENDED: slice 2, from step 100, in 30 s",
        "the slice is ACTIVE",
        "training has ended with exit code 3; its log is gs://my-bucket/run/.launch/train.log",
        "slice deleted",
    ]
    assert "training has ended with exit code 3" in err


def test_the_states_of_jobs(google, workspace, monkeypatch, capfd):
    """N20: each place is asked once; a user who may not see a job starts no second one."""
    monkeypatch.setattr(verb, "_LIST_SECONDS", 120)
    names, words = {}, {}
    for engine, text in (("tpu", TPU), ("vertex", VERTEX)):
        (workspace / f"{engine}.yaml").write_text(text)
        for number in range(2):
            run_directory = f"--model_dir=gs://my-bucket/{engine}{number}"
            words[engine] = ["launch", engine, f"--profile={engine}.yaml", "--submit", "digits_mlp", run_directory]
            assert cli.main(words[engine]) == 0
            names[engine, number] = capfd.readouterr().out.partition(" ")[0]
    google.set_state(f"queuedResources/{names['tpu', 0]}", "SUSPENDED")
    del google.slices[f"queuedResources/{names['tpu', 1]}"], google.jobs["1"]
    google.jobs["2"]["state"] = "JOB_STATE_RUNNING"
    assert cli.main(["job", "list"]) == 0
    out, err = capfd.readouterr()
    states = {row[0]: row[3] for row in map(str.split, out.splitlines()[1:])}
    expected = {("tpu", 0): "suspended", ("tpu", 1): "ended", ("vertex", 0): "ended", ("vertex", 1): "running"}
    assert states == {names[key]: state for key, state in expected.items()} and not err
    google.jobs["2"]["state"] = "JOB_STATE_SUCCEEDED"
    ended = {
        ("vertex", 0): f"vertex no longer has {names['vertex', 0]}, so it has ended; nothing was cancelled\n",
        ("vertex", 1): f"{names['vertex', 1]} has ended already (succeeded); nothing was cancelled\n",
        ("tpu", 0): f"{names['tpu', 0]} was deleted; it was suspended before\n",
        ("tpu", 1): f"tpu no longer has {names['tpu', 1]}, so it has ended; nothing was cancelled\n",
    }
    for key, said in ended.items():
        assert cli.main(["job", "cancel", names[key]]) == 0
        assert said in capfd.readouterr().out
    assert google.made()[4:] == [("DELETE", f"queuedResources/{names['tpu', 0]}")]
    google.jobs["2"]["state"] = "JOB_STATE_RUNNING"
    google.is_denied, before = True, list(google.asked)
    for engine in ("tpu", "vertex"):  # of which one has ended, and one has not
        assert cli.main(words[engine]) == ExitCode.FAILED
        said = capfd.readouterr().err
        assert re.search(r"so nothing was started: ERROR: \(gcloud\..*describe\) PERMISSION_DENIED: Permission", said)
    assert cli.main(["job", "list"]) == 0
    out, err = capfd.readouterr()
    assert {row.split()[3] for row in out.splitlines()[1:]} == {"unknown"}
    assert err.count("PERMISSION_DENIED") == 2
    assert google.asked == before


def test_a_flag_that_there_is_not(google, tmp_path):
    """N20: gcloud refuses it, so the flags that are rendered are flags."""
    (argv,) = rendered("tpu", TPU).submit
    (tmp_path / "startup.sh").write_text("")
    done = subprocess.run([*argv, "--spott"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "--spott" in done.stderr
    assert not google.asked


@pytest.mark.full
def test_a_slice_of_several_hosts(google, tmp_path):
    """N20: with every field of the profile, and flags of the user's; made anew, and gone once it is deleted."""
    text = PROFILES["tpu-pod"][1]
    target, files = targets.get("tpu")(profile_of("tpu", text)), rendered("tpu", text)
    for name, content in files.files.items():
        (tmp_path / name).write_text(content)
    for _ in range(2):  # at first there is nothing to clear away
        for argv in target.resume(NAME, files.submit):
            run(argv, tmp_path)
    body = google.asked[0][2]["tpu"]["nodeSpec"][0]["node"]
    assert body["acceleratorType"] == "v4-32" and body["runtimeVersion"] == "tpu-vm-tf-2.18.0-pod-pjrt"
    assert body["networkConfig"] == {"network": "train", "subnetwork": "train-b", "enableExternalIps": False}
    assert body["labels"] == {"team": "vision", "cost": "a1"} and body["tags"] == ["train"]
    assert body["serviceAccount"]["email"] == "trainer@my-project.iam.gserviceaccount.com"
    assert body["serviceAccount"]["scope"] == ["https://www.googleapis.com/auth/cloud-platform"]
    assert body["metadata"]["startup-script"] == files.files["startup.sh"]
    run(*target.cancel(NAME), tmp_path)
    kind = f"queuedResources/{NAME}"
    assert google.made() == [("POST", kind), ("DELETE", kind), ("POST", kind), ("DELETE", kind)]
    (state,) = target.states([NAME], schedulers.run_detached(target, target.query([NAME]), str(tmp_path)))
    assert state is GONE


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh is not installed")
@pytest.mark.parametrize(("text", "host"), [("", "192.0.2.1"), ("gcloud: [--internal-ips]\n", "10.0.0.2")])
def test_the_log_of_a_machine(google, tmp_path, monkeypatch, text, host):
    """N20: by ssh to worker 0, at the address that it has; gcloud says what it would run."""
    monkeypatch.setenv("HOME", str(tmp_path))  # where gcloud makes a key
    text = f"{TPU}{text}"
    target, files = targets.get("tpu")(profile_of("tpu", text)), rendered("tpu", text)
    (tmp_path / "startup.sh").write_text("")
    run(*files.submit, tmp_path)
    google.slices[f"nodes/{NAME}"] = google.slices[f"queuedResources/{NAME}"]
    google.set_state(f"nodes/{NAME}", "READY")
    for follow, command in ((False, "sudo cat "), (True, "sudo tail --lines=+1 --follow=name --retry ")):
        out = run((*target.logs(NAME, follow=follow), "--dry-run"), tmp_path)
        assert out.rstrip().endswith(f"@{host} -- {command}/var/lib/official-trainer/train.log")


@pytest.mark.full
def test_an_answer_of_no_capacity(google, tmp_path):
    """N20: has a word in it by which it is known."""
    target, files = targets.get("tpu")(profile_of("tpu", TPU)), rendered("tpu", TPU)
    (tmp_path / "startup.sh").write_text("")
    google.refusals.append((429, "RESOURCE_EXHAUSTED", 'There is no more capacity in the zone "us-central2-b"'))
    done = subprocess.run(*files.submit, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "no more capacity" in done.stderr
    assert target.id_of(NAME, done.stdout) == NAME


@pytest.mark.full
def test_what_a_machine_leaves_in_its_bucket(google, tmp_path):
    """N20: the lines of the start-up script that say how training has ended, and those that fetch the code."""
    startup = rendered("tpu", TPU, model_dir="gs://my-bucket/run").files["startup.sh"]
    lines = (r"^place=.*?$", r"^copy_log.*?^\).*?$", r"^finish.*?^}$")
    finish = "\n".join(re.search(line, startup, re.M | re.S)[0] for line in lines)
    (tmp_path / "train.log").write_bytes(b"a line\r\n\r\n")
    done = subprocess.run(["bash", "-c", f"{finish}\nfinish 5"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 5
    ended = json.loads(google.objects["my-bucket/run/.launch/exit.json"])
    assert ended["exit_code"] == 5 and ended["ended"].endswith("Z")
    assert google.objects["my-bucket/run/.launch/train.log"] == b"a line\r\n\r\n"
    path = f"gs://my-bucket/run/{tpu_supervise.PLACE}/{tpu_supervise.EXIT}"
    assert json.loads(run(("gcloud", "storage", "cat", path), tmp_path)) == ended


@pytest.mark.full
def test_a_custom_job(google, workspace, capfd):
    """N20: made, described, its logs read, cancelled, made again: by `launch vertex` and `job`."""
    (workspace / "vertex.yaml").write_text(f"{VERTEX}workers: 2\nlabels: {{team: vision}}\nenviron: {{A: costs $5}}\n")
    words = ["--profile=vertex.yaml", "--submit", "--", "digits_mlp", "--model_dir=gs://my-bucket/run"]
    assert cli.main(["launch", "vertex", *words]) == 0
    (line,) = [line for line in capfd.readouterr().out.splitlines() if "was submitted" in line]
    full = "projects/my-project/locations/us-central1/customJobs/1"
    assert f"was submitted to vertex as {full}" in line
    name = line.partition(" ")[0]
    ((_, path, body),) = google.asked
    assert path.partition("?")[0] == "/v1/projects/my-project/locations/us-central1/customJobs"
    assert (body["displayName"], body["labels"]) == (name, {"team": "vision"})
    pools = body["jobSpec"]["workerPoolSpecs"]
    assert [pool["replicaCount"] for pool in pools] == ["1", "1"]
    containers = [pool["containerSpec"] for pool in pools]
    assert containers[0] == containers[1] and containers[0]["command"][:2] == ["python", "-m"]
    assert containers[0]["args"][:3] == ["official_trainer", "train", "digits_mlp"]
    assert {"name": "A", "value": "costs $$5"} in containers[0]["env"]
    assert cli.main(["job", "status", name]) == 0
    assert '"state": "JOB_STATE_PENDING"' in capfd.readouterr().out
    assert cli.main(["job", "logs", name]) == 0
    assert 'of resource.type="ml_job" AND resource.labels.job_id="1"' in capfd.readouterr().out
    assert cli.main(["job", "supervise", name]) == ExitCode.CONFIG
    assert "vertex itself restarts a job; `job supervise` is not needed" in capfd.readouterr().err
    assert cli.main(["job", "cancel", name]) == 0
    assert google.jobs["1"]["state"] == "JOB_STATE_CANCELLED"
    assert cli.main(["job", "resume", name]) == 0
    assert google.jobs["2"]["jobSpec"] == google.jobs["1"]["jobSpec"]
    assert "customJobs/2" in capfd.readouterr().out


@pytest.mark.full
def test_a_job_with_all_its_parts(google, tmp_path):
    """N20: what gcloud sends is what was rendered, to the last field."""
    files = rendered(*PROFILES["vertex-servers"])
    (tmp_path / "job.yaml").write_text(files.files["job.yaml"])
    assert run(*files.submit, tmp_path) == "projects/my-project/locations/us-central1/customJobs/1\n"

    def as_text(value):  # the API's JSON has 64-bit integers as text
        if isinstance(value, dict):
            return {key: as_text(each) for key, each in value.items()}
        if isinstance(value, list):
            return [as_text(each) for each in value]
        return value if isinstance(value, bool) else str(value)

    assert as_text(google.asked[0][2]["jobSpec"]) == as_text(yaml.safe_load(files.files["job.yaml"]))


@pytest.mark.full
def test_a_pool_that_is_empty_between_others(google, tmp_path):
    """N20: gcloud refuses it, which is why an evaluator without parameter servers is refused here."""
    (argv,) = rendered("vertex", VERTEX).submit
    job = yaml.safe_load(rendered("vertex", VERTEX).files["job.yaml"])
    job["workerPoolSpecs"].append({})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "Exactly one of fields [pythonPackageSpec, containerSpec]" in done.stderr


def test_the_names_of_fields_are_those_that_gcloud_knows():
    """N20: the table of the API's fields, against gcloud's own."""
    sdk = Path(GCLOUD).resolve().parents[1]
    messages = sdk / "lib/googlecloudsdk/generated_clients/apis/aiplatform/v1/aiplatform_v1_messages.py"
    if not messages.exists():
        pytest.skip(f"gcloud keeps its messages elsewhere: no {messages}")
    text = messages.read_text()
    names = {"": "CustomJobSpec", "baseOutputDirectory": "GcsDestination", "scheduling": "Scheduling"}
    names |= {"workerPoolSpecs": "WorkerPoolSpec", "containerSpec": "ContainerSpec", "env": "EnvVar"}
    names |= {"machineSpec": "MachineSpec", "diskSpec": "DiskSpec"}
    assert names.keys() == FIELDS.keys()
    for place, name in names.items():
        message = re.search(rf"^class GoogleCloudAiplatformV1{name}\(.*?(?=^class )", text, re.MULTILINE | re.DOTALL)[0]
        assert tuple(re.findall(r"^  (\w+) = _messages\.", message, re.MULTILINE)) == FIELDS[place]
