"""`launch/skypilot.yaml`, which SkyPilot itself starts: that SkyPilot reads it, and what it installs and runs."""

import json
import subprocess
import sys

import pytest
import yaml

from official_trainer import cli
from official_trainer.errors import START_AGAIN, ExitCode
from tests import ROOT
from tests.support.docs import given

TASK = yaml.safe_load((ROOT / "launch" / "skypilot.yaml").read_text())
FIELDS = {
    *("name", "workdir", "num_nodes", "resources", "file_mounts", "volumes", "envs", "secrets", "setup", "run"),
    *("config", "service", "pool", "event_callback", "inputs", "outputs", "managed_secrets"),
}
"""The fields of a task, of SkyPilot 0.14."""


def test_the_file_is_a_task():
    """N20: fields that SkyPilot has; it starts again what can be continued, and asks for the run directory."""
    assert TASK.keys() <= FIELDS
    assert TASK["resources"]["job_recovery"] == {"recover_on_exit_codes": list(map(int, START_AGAIN))}
    assert TASK["envs"]["MODEL_DIR"] is None and TASK["num_nodes"] == 2


@pytest.mark.parametrize(
    ("is_new", "argv"),
    [
        (False, ["--constraint", "requirements.lock", "."]),
        (True, ["official-trainer @ git+https://change-me/official-trainer.git"]),
    ],
)
def test_what_it_installs_is_there(is_new, argv, tmp_path, capfd):
    """N20: `setup`, in the repository and in a workspace that `init` has written, names no file that is not there."""
    folder = tmp_path / "ws" if is_new else ROOT
    if is_new:
        assert cli.main(["init", str(folder)]) == 0
        assert yaml.safe_load((folder / "launch" / "skypilot.yaml").read_text())["setup"] == TASK["setup"]
    (tmp_path / "python3").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "python3").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ran = subprocess.run(
        ["sh", "-ec", TASK["setup"]], cwd=folder, env=environ, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.splitlines() == ["-m", "pip", "install", *argv, "tensorflow[and-cuda]"]
    assert all((folder / word).exists() for word in argv if "@" not in word and not word.startswith("-"))


def test_what_launch_says_of_it(capfd):
    """N20: SkyPilot starts its tasks itself; which file, and which command."""
    assert cli.main(["launch", "skypilot", "--", "digits_cnn"]) == ExitCode.CONFIG
    said = capfd.readouterr().err
    assert "launch skypilot: SkyPilot starts tasks itself" in said
    assert "sky jobs launch --env MODEL_DIR=gs://BUCKET/RUN launch/skypilot.yaml" in said


@pytest.mark.parametrize("rank", [0, 1])
def test_what_it_runs_is_one_of_two_workers(rank, tmp_path):
    """N20: `run`, by a shell with nothing but SkyPilot's variables; `test_multi_worker.py` trains as two workers."""
    tell = 'echo "$OFFICIAL_TRAINER_GPUS" "$TF_CONFIG" && echo "$@"; exit'
    script = f'#!/bin/sh\n[ "$1" = -m ] && {{ {tell}; }}\nexec {sys.executable} "$@"\n'
    (tmp_path / "python3").write_text(script)
    (tmp_path / "python3").chmod(0o755)
    environ = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "MODEL_DIR": "gs://bucket/run",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "SKYPILOT_NODE_RANK": str(rank),
        "SKYPILOT_NUM_GPUS_PER_NODE": "4",
    }
    ran = subprocess.run(["bash", "-c", TASK["run"]], env=environ, capture_output=True, text=True, timeout=60)
    place, words = ran.stdout.splitlines()
    gpus, _, tf_config = place.partition(" ")
    workers = ["10.0.0.1:2222", "10.0.0.2:2222"]
    assert (gpus, json.loads(tf_config)) == (
        "4",
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}},
    )
    assert words.split()[:3] == ["-m", "official_trainer", "train"]
    given.check(["official-trainer", *words.split()[2:]])
