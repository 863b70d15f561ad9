"""Cloud TPU and Vertex AI without gcloud: what is rendered, and what is refused."""

import json
import re

import pytest
import yaml

from official_trainer import config
from official_trainer.config import ConfigError
from official_trainer.distributed.environment import cluster_env
from official_trainer.launch import spec, targets
from official_trainer.launch.snapshot import Snapshot
from official_trainer.launch.targets.tpu_profile import TpuProfile
from tests.support.launch import rendered_google as samples
from tests.support.launch.rendered_google import NAME, TPU, VERTEX, job_for, profile_of, rendered


def problems(target, text, *words, **changes):
    profile = profile_of(target, text)
    return "\n".join(targets.get(target)(profile).problems(job_for(profile, *words, **changes)))


def target_for(target, text):
    return targets.get(target)(profile_of(target, text))


@pytest.mark.parametrize(("target", "text"), samples.PROFILES.values(), ids=samples.PROFILES)
def test_the_samples_are_fine(target, text):
    assert not problems(target, text)


# What is refused.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zone: us-central1", "'us-central1' is not a valid zone; a zone ends with a letter, such as us-central2-b"),
        ("project: My Project", "'My Project' is not a valid project id; `gcloud projects list` lists yours"),
        ("pod: true", "pod: this field was removed; it follows from accelerator_type, so leave it out"),
        ("queued: false", "queued: this field was removed; every slice is requested as a queued resource, so leave it"),
        ("internal_ips: true", "internal_ips: this field was removed; write gcloud: [--internal-ips]"),
        ("labels: {team: x}", "labels: this field was removed; write gcloud: [--labels=NAME=VALUE]"),
        ("network: train", "network: this field was removed; write gcloud: [--network=NAME]"),
        ("source: ./code", "'./code' is no code that a machine can get; use snapshot, in a checkout of the commit"),
        ("source: gs://b/code.zip", "'gs://b/code.zip' is no code that a machine can get"),
        ("setup: [[]]", "a command is empty; each is a list of words, such as [module, load, cuda]"),
        ("install: []", "is empty, so nothing would be installed"),
        ("acelerator_type: v4-8", "did you mean 'accelerator_type'?"),
        ("gcloud: [tags=a]", "'tags=a' is not a valid flag; write --name or --name=value, each as one word"),
        ("gcloud: [--zone=x]", "--zone is set from other fields of the profile; set zone"),
        ("gcloud: [--async]", "--async is set from other fields of the profile; leave it out"),
        ("accelerator_type: v4_8", "'v4_8' is not a type of TPU; use a generation and a size, such as v4-8 or"),
        ("accelerator_type: v7x-8", "'v7x-8' is a TPU for which there is no TensorFlow, and that this API does not"),
        ("accelerator_type: v5e-16", "'v5e-16' is called v5litepod-16 by Google; use that"),
    ],
)
def test_profiles_of_slices_that_are_refused(text, said):
    """N20: before Google's API would, and with the place."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        profile_of("tpu", text)


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        (
            "{}",
            {},
            "project: is required, such as my-project\nzone: is required, such as us-central2-b\naccelerator_type: is",
        ),
        (f"{TPU}workers: 2", {}, "workers=2: one process drives a whole slice; leave workers at 1, and use a larger"),
        (f"{TPU}workers: 1\nps: 1", {}, "ps: a slice runs one process, which trains; leave it out"),
        (f"{TPU}resources: {{gpus: 1}}", {}, "resources: accelerator_type determines the resources; leave resources"),
        (TPU, {"name": "Digits"}, "name: 'Digits' is not a valid TPU name; use at most 63 of a to z, 0 to 9 and -"),
        (TPU, {"model_dir": "/runs/x"}, "--model_dir=/runs/x: the disks of a slice are deleted with it; use a gs://"),
        (TPU.replace("v4-8", "v4-32"), {"model_dir": "/runs/x"}, "its hosts cannot read those of each other; use a"),
        (TPU, {"strategy": "mirrored"}, "runtime.distribution_strategy=mirrored does not use the TPU; set it to tpu"),
        (TPU, {"strategy": "tpu"}, ""),
    ],
)
def test_jobs_that_a_slice_cannot_run(text, changes, said):
    """N20: all of it at once, each with its fix."""
    found = problems("tpu", text, **changes)
    assert said in found and bool(said) == bool(found)


def test_files_that_only_this_machine_has():
    """N20: on a slice and on Vertex AI; what is in the source, or at a URL, is there."""
    words = ["--config_file=/home/me/a.yaml", "--config_file=configs/b.yaml", "--gin_file=/c.gin"]
    words += ["--params_override=trainer.train_steps=1", "--config_file=gs://b/d.yaml"]
    for target, text in (("tpu", TPU), ("vertex", VERTEX)):
        first, second = problems(target, text, *words).splitlines()
        assert first.startswith(
            "--config_file=/home/me/a.yaml is a file of this machine; use a path relative to the top of the source"
        )
        assert second.startswith("--gin_file=/c.gin is")


SNAPSHOT = TPU.replace("gs://my-bucket/code.tar.gz", "snapshot")


def code(*paths):
    path = "/ws/launches/digits/code-0123456789ab"
    return Snapshot(path=path, workspace="/ws", made_at=path, sums=dict.fromkeys(paths, "sum"))


def test_code_that_is_copied_when_a_job_is_submitted():
    """N33: it is uploaded beside what the job leaves, before a machine is asked for; the machine gets that."""
    assert TpuProfile().source == "snapshot"
    kept = code("pyproject.toml", "experiments/a.py")
    job = rendered("tpu", SNAPSHOT, code=kept)
    url = "gs://my-bucket/digits/.launch/code-0123456789ab.tar.gz"
    assert job.submit[0] == ("gcloud", "storage", "cp", "code-0123456789ab.tar.gz", url)
    assert "create" in job.submit[1]
    assert f"\n  gcloud storage cp {url} source.tar.gz\n  tar -xzf source.tar.gz -C source\n" in job.files["startup.sh"]
    assert not problems("tpu", SNAPSHOT, code=kept)


def test_vertex_ai_runs_the_code_that_was_submitted():
    """N33: the image has the packages; what each process runs is fetched first."""
    kept = code("experiments/a.py")
    url = "gs://my-bucket/digits/.launch/code-0123456789ab.tar.gz"
    for model_dir in ("gs://my-bucket/digits", "/gcs/my-bucket/digits"):
        job = rendered("vertex", VERTEX, code=kept, model_dir=model_dir)
        assert job.submit[0] == ("gcloud", "storage", "cp", "code-0123456789ab.tar.gz", url)
        (pool,) = yaml.safe_load(job.files["job.yaml"])["workerPoolSpecs"]
        command = pool["containerSpec"]["command"]
        assert command[:5] == ["python", "-m", "official_trainer.launch.fetch", url, "python"]
    assert targets.get("vertex")(profile_of("vertex", VERTEX)).code_as("gs://b/run") == "archive"
    assert targets.get("vertex")(profile_of("vertex", f"{VERTEX}source: image\n")).code_as("gs://b/run") is None


def test_code_that_a_machine_could_not_have_or_install():
    """N33: before anything is paid for."""
    assert "source: this command runs in no workspace, so there is no code to copy" in problems("tpu", SNAPSHOT)
    said = problems("tpu", SNAPSHOT, code=code("experiments/a.py"))
    assert said.startswith(
        "install: /ws has no pyproject.toml or setup.py, which `pip install .` needs; add one, or set"
    )
    assert not problems("tpu", f"{SNAPSHOT}install: [official-trainer]\n", code=code("experiments/a.py"))
    assert not problems("tpu", SNAPSHOT, code=code("setup.py"))


@pytest.mark.parametrize(
    ("accelerator_type", "is_pod"),
    [
        *(("v2-8", False), ("v3-32", True), ("v4-8", False), ("v4-16", True), ("v5p-8", False), ("v5p-16", True)),
        *(("v5litepod-8", False), ("v5litepod-16", True), ("v6e-1", False), ("v6e-256", True), ("", False)),
    ],
)
def test_which_slices_have_several_hosts(accelerator_type, is_pod):
    """N20: by Google's name of the type."""
    assert TpuProfile(accelerator_type=accelerator_type).is_pod is is_pod


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("region: us-central1-a", "'us-central1-a' is not a valid region; a region ends with a digit, such as"),
        (
            "accelerator_type: nvidia-tesla-t4\nresources: {gpus: 1}",
            "'nvidia-tesla-t4' is not the API's name of an accelerator; use one such as NVIDIA_TESLA_T4, NVIDIA_L4 or",
        ),
        ("accelerator_type: NVIDIA_L4", "and resources.gpus belong together: set both, or neither"),
        ("resources: {cpus: 4}", "determine the resources; leave cpus and memory_gib out"),
        ("strategy: SPOT", "strategy: this field was removed; write spec: {scheduling: {strategy: SPOT}}"),
        ("spec: {enableWebAcess: true}", "not a field of CustomJobSpec; did you mean enableWebAccess?"),
        ("spec: {workerPoolSpecs: []}", "workerPoolSpecs is set from other fields of the profile; set those"),
        ("spec: {scheduling: {strateg: SPOT}}", "strateg is not a field of scheduling; did you mean strategy?"),
        ("spec: {scheduling: SPOT}", "scheduling is 'SPOT', not a section; its fields are disableRetries, maxWait"),
    ],
)
def test_profiles_of_custom_jobs_that_are_refused(text, said):
    """N20: misspelt fields among them, which gcloud passes on and Vertex AI drops."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        profile_of("vertex", text)


@pytest.mark.parametrize(
    ("text", "changes", "said"),
    [
        (
            "{}",
            {},
            "project: is required, such as my-project\nregion: is required, such as us-central1\nimage_uri: is",
        ),
        (VERTEX, {"model_dir": "/runs/x"}, "--model_dir=/runs/x: the machines cannot see it; use a gs:// URL"),
        (VERTEX, {"model_dir": "/gcs/bucket/x"}, ""),
        (f"{VERTEX}evaluator: true", {}, "evaluator: gcloud refuses a job in which only the pool of parameter"),
        (f"{VERTEX}evaluator: true\nps: 1", {}, ""),
    ],
)
def test_jobs_that_vertex_ai_cannot_run(text, changes, said):
    """N20: all of it at once, each with its fix."""
    found = problems("vertex", text, **changes)
    assert said in found and bool(said) == bool(found)


def test_predictions_on_vertex_ai():
    """N20: of one process, because the end of the first one is that of the job."""
    said = "workers: Vertex AI ends a job with its first process, while others still predict; set workers to 1"
    assert problems("vertex", f"{VERTEX}workers: 2", "--mode=predict") == said
    assert not problems("vertex", VERTEX, "--mode=predict")


def test_a_data_service_is_nowhere_on_google_cloud():
    for target, text in (("tpu", TPU), ("vertex", VERTEX)):
        profile = profile_of(target, text)
        job = spec.with_data_service(job_for(profile), [12000, 12001], "/journal")
        said = "\n".join(targets.get(target)(profile).problems(job))
        assert "dispatcher: " in said and "data_worker: " in said


# What a process on Vertex AI finds.


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("", [1]),
        ("workers: 3", [1, 2]),
        ("chief: true\nworkers: 3", [1, 3]),
        ("workers: 2\nps: 1", [1, 2, 1]),
        ("workers: 1\nps: 2\nevaluator: true", [1, 1, 2, 1]),
    ],
)
def test_pools_are_in_their_places(text, counts):
    """N20: chief, workers, parameter servers, evaluator: each process is told by Vertex AI what it was meant to be."""
    job = yaml.safe_load(rendered("vertex", f"{VERTEX}{text}").files["job.yaml"])
    pools = job["workerPoolSpecs"]
    assert [pool["replicaCount"] for pool in pools] == counts
    roles = ("chief", "worker", "ps", "evaluator")
    addresses = {
        role: [f"cmle-training-workerpool{place}-ab12-{index}:2222" for index in range(pool["replicaCount"])]
        for place, (role, pool) in enumerate(zip(roles, pools, strict=False))
        if role != "evaluator"
    }
    for role, pool in zip(roles, pools, strict=False):
        for index in range(pool["replicaCount"]):
            told = {"cluster": addresses, "task": {"type": role, "index": index}, "environment": "cloud", "job": "{}"}
            cluster = cluster_env({"TF_CONFIG": json.dumps(told)})
            if sum(counts) == 1:
                assert cluster is None
                continue
            assert (cluster.role, cluster.index) == (role, index)
            assert cluster.is_chief == (role == "chief")
        args = pool["containerSpec"]["args"]
        assert ("--mode=continuous_eval" in args) == (role == "evaluator")


def keys(value, place=""):
    """Yields (field, key in it) of all of a job."""
    if isinstance(value, list):
        for each in value:
            yield from keys(each, place)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield place, key
            yield from keys(each, key)


@pytest.mark.parametrize("name", [name for name, (target, _) in samples.PROFILES.items() if target == "vertex"])
def test_every_key_is_the_apis(name):
    """N20: gcloud would pass on a misspelt one, and Vertex AI drop it."""
    job = yaml.safe_load(rendered(*samples.PROFILES[name]).files["job.yaml"])
    for place, key in keys(job):
        assert key in samples.FIELDS[place], f"{place}.{key}"


def test_values_that_vertex_ai_would_expand():
    """N20: a dollar sign in a variable is one there, too."""
    text = f"{VERTEX}environ: {{A: '$(HOME) $$ $'}}"
    (pool,) = yaml.safe_load(rendered("vertex", text).files["job.yaml"])["workerPoolSpecs"]
    (value,) = [each["value"] for each in pool["containerSpec"]["env"] if each["name"] == "A"]
    assert value == "$$(HOME) $$$$ $$"
    assert "$(" not in "".join(pool["containerSpec"]["command"])


# Commands for a job that was submitted.


def test_commands_for_a_slice():
    """N20: of a queued resource, and of the machine in it."""
    target, inside = target_for("tpu", TPU), target_for("tpu", f"{TPU}gcloud: [--internal-ips]")
    place = ("--project=my-project", "--zone=us-central2-b")
    assert target.status(NAME)[3:-1] == ("queued-resources", "describe", NAME, *place)
    assert target.cancel(NAME)[0][3:] == ("queued-resources", "delete", NAME, *place, "--quiet", "--force")
    log = "/var/lib/official-trainer/train.log"
    ssh = ("tpu-vm", "ssh", NAME, *place, "--worker=0")
    assert target.logs(NAME, follow=False)[3:] == (*ssh, f"--command=sudo cat {log}")
    follow = inside.logs(NAME, follow=True)
    assert "--internal-ip" in follow and f"--follow=name --retry {log}" in follow[-1]
    assert target.id_of(NAME, "anything") == NAME


def test_commands_for_a_custom_job():
    """N20: by the full name that gcloud has printed."""
    target, full = target_for("vertex", VERTEX), "projects/1/locations/us-central1/customJobs/42"
    assert target.id_of("digits", f"{full}\n") == full
    place = ("--project=my-project", "--region=us-central1")
    assert target.cancel(full) == (("gcloud", "ai", "custom-jobs", "cancel", full, *place),)
    assert target.logs(full, follow=True) == ("gcloud", "ai", "custom-jobs", "stream-logs", full, *place)
    assert 'resource.labels.job_id="42"' in target.logs(full, follow=False)[3]
    assert not target.is_supervised


def test_profiles_can_be_written_down_and_read_again():
    """As records of jobs are."""
    for target, text in samples.PROFILES.values():
        profile = profile_of(target, text)
        again = config.resolve(type(profile)(), params_overrides=[json.dumps(profile.as_dict())]).config
        assert again == profile
