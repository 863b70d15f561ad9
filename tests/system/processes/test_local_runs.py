"""A real experiment, trained by real processes of a job on this machine."""

import json

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.errors import ExitCode
from tests import ROOT
from tests.support.processes.local_jobs import LocalJob
from tests.support.workspace import copy_workspace


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    copy_workspace(tmp_path, "experiments")
    monkeypatch.chdir(tmp_path)
    return tmp_path


TRAIN = (
    "--",
    "--experiment=digits_cnn",
    f"--config_file={ROOT / 'configs' / 'smoke' / 'digits_cnn.yaml'}",
    "--model_dir=run",
)


def test_a_worker_and_an_evaluator_train_and_evaluate(workspace):
    """N20: real processes of a real experiment, forked from one that has imported TensorFlow."""
    words = ["--log_dir=logs", "--evaluator", *TRAIN]
    with LocalJob(words, cwd=workspace, folder=workspace / "job") as job:
        assert job.wait() == 0, job.output
        lines = job.out.splitlines()
    assert [line for line in lines if line.startswith("[worker 0]  finished at step 20")]
    assert [line for line in lines if line.startswith("[evaluator] validation @ 20: accuracy")]
    assert "finished at step 20" in (workspace / "logs" / "worker-0.log").read_text()
    assert json.loads((workspace / "run" / "run.json").read_text())["experiment"] == "digits_cnn"


def test_a_supervised_job_whose_directory_is_moved_is_not_started_again(workspace):
    """N6: another start would train from step 0 in a new directory at the old place."""
    endless = "--params_override=trainer.train_steps=1000000,trainer.checkpoint_interval=20"
    run, moved = workspace / "run", workspace / "moved"
    words = ["--log_dir=logs", "--supervise", *TRAIN, endless]
    with LocalJob(words, cwd=workspace, folder=workspace / "job") as job:
        job.until(lambda: run.is_dir() and committed_steps(str(run)))
        run.rename(moved)
        assert job.wait() == ExitCode.CONFIG, job.output
        said = job.output
    assert f"now at {moved}. What was saved is there." in said
    assert "restart 1" not in said
    assert not (run / "run.json").exists(), said
    assert committed_steps(str(moved))
