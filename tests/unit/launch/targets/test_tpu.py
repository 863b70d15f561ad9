"""Cloud TPU: what is refused, what gcloud is given, and that it takes the words."""

import shutil
import subprocess

import pytest

from official_trainer import cli
from official_trainer.launch.targets.tpu import CloudTpu
from official_trainer.launch.targets.tpu_profile import TpuProfile
from tests.support import golden
from tests.support.launch.rendered import NAME, RUN, TPU, job_for, profile_of
from tests.support.workspace import copy_workspace

PLACE = ("--project=my-project", "--zone=us-central2-b")
DESCRIBED = "name: projects/1/locations/us-central2-b/queuedResources/digits\nstate:\n  state: WAITING_FOR_RESOURCES\n"
DENIED = (
    "ERROR: (gcloud.compute.tpus.queued-resources.create) PERMISSION_DENIED: Permission 'tpu.nodes.create' denied on "
    "resource '//tpu.googleapis.com/projects/my-project' (or it may not exist).\n"
)


def profile(text):
    return profile_of(text, TpuProfile)


def problems(text, *words, **changes):
    return "\n".join(CloudTpu(profile(text)).problems(job_for(profile(text), *words, **changes)))


def test_profiles_of_slices_that_are_refused(request):
    """N20: before Google's API would, and with the place."""
    golden.check_profiles("profiles of Cloud TPU", request, TpuProfile())


WRONG_JOBS = (
    ("{}", {}, "project: is required, such as my-project\nzone: is required, such as us-central2-b\naccelerator"),
    (f"{TPU}workers: 2", {}, "workers=2: one process drives a whole slice; leave workers at 1, and use a larger"),
    (f"{TPU}workers: 1\nps: 1", {}, "ps: a slice runs one process, which trains; leave it out"),
    (f"{TPU}resources: {{gpus: 1}}", {}, "resources: accelerator_type determines the resources; leave resources"),
    (TPU, {"model_dir": "/runs/x"}, "--model_dir=/runs/x: the disks of a slice are deleted with it, and its hosts"),
    (TPU, {"strategy": "mirrored"}, "runtime.distribution_strategy=mirrored does not use the TPU; set it to tpu"),
    (TPU, {"strategy": "tpu"}, ""),
)


def test_jobs_that_a_slice_cannot_run():
    """N20: all of it at once, each with its fix."""
    for text, changes, message in WRONG_JOBS:
        shown = problems(text, **changes)
        assert message in shown and bool(message) == bool(shown)


def test_what_a_slice_does_not_have():
    """N20: files of this machine; what is in the source, or at a URL, is there."""
    words = ["--config_file=/home/me/a.yaml", "--config_file=configs/b.yaml", "--config_file=gs://b/d.yaml"]
    assert problems(TPU, *words).startswith("--config_file=/home/me/a.yaml is a file of this machine; use a path rel")


TYPES = (
    ("v2-8", False),
    ("v3-32", True),
    ("v5p-8", False),
    ("v5litepod-8", False),
    ("v6e-256", True),
    ("", False),
)


def test_which_slices_have_several_hosts():
    """N20: by Google's name of the type."""
    for accelerator_type, is_pod in TYPES:
        assert TpuProfile(accelerator_type=accelerator_type).is_pod is is_pod


def commands():
    """Returns every command for a slice."""
    target = CloudTpu(profile(f"{TPU}gcloud: [--spot, --internal-ips, '--labels=team=vision,cost=a1']"))
    job = job_for(target.profile)
    following = target.commands(job, NAME, "/folder")
    return target.render(job).submit, following.status, following.logs, following.cancel


def test_the_commands_of_gcloud():
    """N20: lists of words."""
    submit, status, logs, cancel = commands()
    queued = ("gcloud", "compute", "tpus", "queued-resources")
    assert submit == (
        *(*queued, "create", NAME, *PLACE, "--accelerator-type=v4-8", f"--node-id={NAME}"),
        *("--runtime-version=tpu-ubuntu2204-base", "--metadata-from-file=startup-script=startup.sh", "--spot"),
        *("--internal-ips", "--labels=team=vision,cost=a1", "--quiet"),
    )
    assert status == (*queued, "describe", NAME, *PLACE)
    assert cancel == (*queued, "delete", NAME, *PLACE, "--quiet", "--force")
    assert logs == (
        *("gcloud", "compute", "tpus", "tpu-vm", "ssh", NAME, *PLACE, "--worker=0", "--internal-ip"),
        "--command=sudo cat /var/lib/official-trainer/train.log",
    )


@pytest.mark.parametrize(("denied", "code"), [(False, 0), (True, 1)])
def test_a_slice_is_requested_and_seen_to(tmp_path, monkeypatch, capfd, denied, code):
    """N20: with a program in the place of gcloud; what it prints is shown as it is."""
    copy_workspace(tmp_path, "experiments")
    (tmp_path / "bin").mkdir()
    (tmp_path / "described").write_text(DESCRIBED)
    (tmp_path / "denied").write_text(DENIED)
    answer = f"cat {tmp_path}/denied >&2; exit 1" if denied else f"[ $4 != describe ] || cat {tmp_path}/described"
    (tmp_path / "bin" / "gcloud").write_text(f'#!/bin/sh\necho "$4 $PWD" >>{tmp_path}/calls\n{answer}\n')
    (tmp_path / "bin" / "gcloud").chmod(0o755)
    (tmp_path / "p.yaml").write_text(TPU)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert cli.main(["launch", "tpu", "--profile=p.yaml", "--submit", "--", "digits_mlp", f"--model_dir={RUN}"]) == code
    out, err = capfd.readouterr()
    if denied:
        assert DENIED in err and not list(tmp_path.glob("launches/*/launch.json"))
        return
    name = out.partition(" ")[0]
    assert [cli.main(["job", action, name]) for action in ("status", "cancel")] == [0, 0]
    assert capfd.readouterr().out == DESCRIBED
    folder = tmp_path / "launches" / name
    assert (tmp_path / "calls").read_text() == "".join(
        f"{verb} {folder}\n" for verb in ("create", "describe", "delete")
    )


@pytest.mark.full
@pytest.mark.skipif(shutil.which("gcloud") is None, reason="GCLOUD IS NOT ASKED: it is not installed")
@pytest.mark.parametrize("number", range(4))
def test_gcloud_itself_takes_the_words(number, tmp_path, monkeypatch):
    """N20: without an account it asks for one, after it has read them; it refuses a word that it does not know."""
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    (tmp_path / "startup.sh").touch()
    argv = commands()[number]
    for words, is_known in ((argv, True), ((*argv, "--no-such-flag"), False)):
        done = subprocess.run(
            words, cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        assert done.returncode and ("unrecognized arguments" not in done.stderr) == is_known, done.stderr
