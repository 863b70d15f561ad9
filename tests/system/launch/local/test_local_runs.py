"""A real experiment, trained by real processes of a job on this machine."""

import json
import subprocess
import sys

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.errors import ExitCode
from tests import ROOT
from tests.support.workspace import copy_workspace


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    copy_workspace(tmp_path, "experiments")
    monkeypatch.chdir(tmp_path)
    return tmp_path


BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from official_trainer import cli; sys.exit(cli.main())"
LAUNCH = (sys.executable, "-c", BOOT, str(ROOT), "launch", "local", "--log_dir=logs")
TRAIN = (
    "--",
    "--experiment=digits_cnn",
    f"--config_file={ROOT / 'configs' / 'smoke' / 'digits_cnn.yaml'}",
    "--model_dir=run",
)


def test_a_worker_and_an_evaluator_train_and_evaluate(workspace):
    """N20: real processes of a real experiment, forked from one that has imported TensorFlow."""
    command = [*LAUNCH, "--evaluator", *TRAIN]
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    (finished,) = [number for number, line in enumerate(lines) if line.startswith("[worker 0]  finished at step 20")]
    said = "[launch]    training is done; the evaluator ends by itself once it has evaluated the last checkpoint"
    assert said in lines[finished:]
    assert [line for line in lines if line.startswith("[evaluator] validation @ 20: accuracy")]
    assert "finished at step 20" in (workspace / "logs" / "worker-0.log").read_text()
    assert json.loads((workspace / "run" / "run.json").read_text())["experiment"] == "digits_cnn"


def test_a_supervised_job_whose_directory_is_moved_is_not_started_again(workspace):
    """N6: another start would train from step 0 in a new directory at the old place."""
    endless = "--params_override=trainer.train_steps=1000000,trainer.checkpoint_interval=20"
    command = [*LAUNCH, "--supervise", *TRAIN, endless]
    with subprocess.Popen(command, cwd=workspace, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        lines = []
        for line in job.stdout:
            lines.append(line)
            if (workspace / "run").is_dir() and committed_steps(str(workspace / "run")):
                (workspace / "run").rename(workspace / "moved")
        said = "".join(lines)
    assert job.returncode == ExitCode.CONFIG, said
    assert f"now at {workspace / 'moved'}. What was saved is there." in said
    assert "restart 1" not in said
    assert not (workspace / "run" / "run.json").exists(), said
    assert committed_steps(str(workspace / "moved"))
