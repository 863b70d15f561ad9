"""A real experiment, trained by real processes of a job on this machine."""

import json
import subprocess
import sys

import pytest

from tests import ROOT
from tests.support.workspace import copy_workspace


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    copy_workspace(tmp_path, "experiments")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_worker_and_an_evaluator_train_and_evaluate(workspace, tmp_path):
    """N20: real processes of a real experiment, forked from one that has imported TensorFlow."""
    overlay = ROOT / "configs" / "smoke" / "digits_cnn.yaml"
    words = [
        "--evaluator",
        "--",
        "--experiment=digits_cnn",
        f"--config_file={overlay}",
        "--model_dir=run",
    ]
    boot = "import sys; sys.path.insert(0, sys.argv.pop(1)); from official_trainer import cli; sys.exit(cli.main())"
    command = [sys.executable, "-c", boot, str(ROOT), "launch", "local", "--log_dir=logs", *words]
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    (finished,) = [number for number, line in enumerate(lines) if line.startswith("[worker 0]  finished at step 20")]
    said = "[launch]    training is done; the evaluator ends by itself once it has evaluated the last checkpoint"
    assert said in lines[finished:]
    assert [line for line in lines if line.startswith("[evaluator] validation @ 20: accuracy")]
    assert "finished at step 20" in (workspace / "logs" / "worker-0.log").read_text()
    assert json.loads((workspace / "run" / "run.json").read_text())["experiment"] == "digits_cnn"
