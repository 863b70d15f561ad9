"""A job as YAML for SkyPilot: what it says, what its script does on each machine, what is refused."""

import json
import subprocess
import sys

import pytest
import yaml

from official_trainer import cli, config
from official_trainer.config import ConfigError
from official_trainer.distributed.environment import cluster_env
from official_trainer.errors import ExitCode
from official_trainer.launch.targets.skypilot import FILE, SkyPilot, SkyPilotProfile
from tests import ROOT
from tests.support.launch.rendered import SKYPILOT, job_for, profile_of

IMAGE = "image: registry.example.com/trainer:1"


def task_of(text, *words):
    profile = profile_of(text, SkyPilotProfile)
    done = SkyPilot(profile).render(job_for(profile, *words))
    assert done.submit == ()
    return yaml.safe_load(done.files[FILE])


def problems_of(text, *words, **changes):
    profile = profile_of(f"{IMAGE}\n{text}", SkyPilotProfile)
    return list(SkyPilot(profile).problems(job_for(profile, *words, **changes)))


def test_the_script_tells_each_machine_who_it_is(tmp_path):
    """N20: run by a shell as SkyPilot would, with the variables that it sets."""
    folder = tmp_path / "official_trainer"
    folder.mkdir()
    (folder / "__main__.py").write_text(
        "import json, os, sys\nprint(json.dumps([os.environ.get('TF_CONFIG'), sys.argv[1:]]))"
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    word = "--set=task.note=it's $5 $(x)"
    script = task_of(f"{IMAGE}\nworkers: 2", word)["run"]
    for rank in (0, 1):
        told = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n", "SKYPILOT_NODE_RANK": str(rank)}
        environ = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", **told}
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
        )
        text, words = json.loads(done.stdout)
        found = cluster_env({"TF_CONFIG": text})
        assert (found.index, found.addresses) == (rank, {"worker": ("10.0.0.1:2222", "10.0.0.2:2222")})
        assert words[0] == "train" and word in words
    assert "TF_CONFIG" not in task_of(IMAGE)["run"]


def test_what_is_started_again():
    """N20: by exit code, as SkyPilot can; it does not count how often."""
    assert task_of(IMAGE)["resources"]["job_recovery"] == {"recover_on_exit_codes": [75, 143]}
    assert "job_recovery" not in task_of(f"{IMAGE}\nmax_restarts: 0")["resources"]


def test_secrets_are_named_only():
    text = f"{IMAGE}\nsecrets: [WANDB_API_KEY]"
    assert task_of(text)["secrets"] == {"WANDB_API_KEY": None}
    profile = profile_of(text, SkyPilotProfile)
    (file,) = SkyPilot(profile).render(job_for(profile)).files.values()
    assert file.startswith("# sky jobs launch --secret=WANDB_API_KEY FILE\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accelerator: A100", r"accelerator.*resources.gpus is 0, and accelerator A100; .*set both, or neither"),
        ("resources: {gpus: 2}", r"accelerator.*resources.gpus is 2, and accelerator is not set"),
        ("image: ''", r"setup.*is not set, nor is image, so nothing would be installed; set one, such as"),
        (
            "{workers: 2, ps: 1}",
            r"workers.*are the only processes that SkyPilot starts.*leave out chief, ps and evaluator",
        ),
        ("max_restarts: 3", r"max_restarts.*is not supported by SkyPilot.*use 0 for no restarts"),
        ("secrets: [a-b]", r"secrets.*'a-b' is not a valid variable name"),
        ("{secrets: [A], environ: {A: b}}", r"secrets.*'A' .* is in environ too; name each once"),
    ],
)
def test_a_profile_that_skypilot_cannot_run(text, said):
    with pytest.raises(ConfigError, match=said):
        config.resolve(profile_of(IMAGE, SkyPilotProfile), params_overrides=[text])


def test_what_would_not_be_on_the_machines():
    (problem,) = problems_of("workers: 2", model_dir="/home/me/run")
    assert problem == (
        "--model_dir=/home/me/run would be lost with its machine after the job; use a URL, such as gs://BUCKET/RUN"
    )
    (problem,) = problems_of("workers: 2", "--config_file=/home/me/x.yaml")
    assert problem.startswith(
        "--config_file=/home/me/x.yaml is a file of this machine; use its path relative to workdir"
    )
    assert problems_of("file_mounts: {/home/me: gs://bucket/me}", "--config_file=/home/me/x.yaml") == []


def test_it_is_saved_from_the_screen(tmp_path, monkeypatch, capfd):
    """N20: what `launch skypilot` prints is the file; starting it is SkyPilot's business."""
    monkeypatch.chdir(ROOT)
    (tmp_path / "sky.yaml").write_text(f"{IMAGE}\nworkers: 2\n")
    words = ["launch", "skypilot", f"--profile={tmp_path / 'sky.yaml'}", "digits_mlp", "--model_dir=gs://bucket/run"]
    assert cli.main(words) == 0
    out, err = capfd.readouterr()
    task = yaml.safe_load(out)
    assert task["num_nodes"] == 2 and task["workdir"] == str(ROOT)
    assert "start it with `sky jobs launch job.yaml`" in err and "max_restarts   skypilot does not count" in err
    assert cli.main([*words, "--submit"]) == ExitCode.CONFIG
    assert (
        "error: --submit with `launch skypilot`: this command only writes the YAML; save it with"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize("name", SKYPILOT)
def test_skypilot_itself_reads_it(name):
    """N20: where it is installed; it is no dependency, having a hundred of its own."""
    sky = pytest.importorskip("sky", reason="SKYPILOT IS NOT ASKED: it is not installed")
    task = sky.Task.from_yaml_config(task_of(SKYPILOT[name]))
    assert task.name == "digits-1a2b3c4d"
    broken = task_of(SKYPILOT[name])
    broken["num_noodes"] = broken.pop("num_nodes")
    with pytest.raises(ValueError, match="did you mean 'num_nodes'"):
        sky.Task.from_yaml_config(broken)
