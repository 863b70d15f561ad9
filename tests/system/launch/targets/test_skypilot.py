"""`launch/skypilot.yaml`, which SkyPilot itself starts: that SkyPilot reads it, and that what it runs trains."""

import json
import subprocess
import sys

import pytest
import yaml

from official_trainer import cli
from official_trainer.errors import START_AGAIN, ExitCode
from tests import ROOT
from tests.support.distributed import networks

TASK = yaml.safe_load((ROOT / "launch" / "skypilot.yaml").read_text())
FIELDS = {
    *("name", "workdir", "num_nodes", "resources", "file_mounts", "volumes", "envs", "secrets", "setup", "run"),
    *("config", "service", "pool", "event_callback", "inputs", "outputs", "managed_secrets"),
}
"""The fields of a task, of SkyPilot 0.14."""
TIMEOUT_SECONDS = 300


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


def test_what_it_runs_trains_as_two_workers(tmp_path):
    """N20: `run`, by a shell on two nodes with addresses of their own, and nothing but SkyPilot's variables."""
    if reason := networks.why_not():
        pytest.skip(f"NODES ARE NOT RUN: {reason}")
    (tmp_path / "bin").mkdir()
    short = "--config_file=configs/smoke/digits_cnn.yaml"
    (tmp_path / "bin" / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@" {short}\n')
    (tmp_path / "bin" / "python3").chmod(0o755)
    running = []
    with networks.Network(TASK["num_nodes"]) as network:
        for rank in range(TASK["num_nodes"]):
            environ = {
                "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
                "PYTHONPATH": str(ROOT),
                "CUDA_VISIBLE_DEVICES": "-1",
                **TASK["envs"],
                "MODEL_DIR": f"{tmp_path}/run",
                "SKYPILOT_NODE_IPS": "\n".join(network.addresses),
                "SKYPILOT_NODE_RANK": str(rank),
                "SKYPILOT_NUM_NODES": "2",
                "SKYPILOT_NUM_GPUS_PER_NODE": "0",
            }
            command = ["bash", "-c", TASK["run"]]
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            running.append(
                subprocess.Popen(command, cwd=ROOT, env=environ, preexec_fn=network.entrance(rank), **streams)
            )
        try:
            said = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in running]
        finally:
            for process in running:
                process.kill()
    assert [process.returncode for process in running] == [0, 0], said
    assert " of 2 workers, mirrored," in said[0]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "done"
