"""`show RUN --code`: what was edited since the job of a run was submitted."""

import json
import shutil

import pytest

from official_trainer import cli
from official_trainer.launch import snapshot
from tests.support.workspace import copy_workspace


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The directory of a run that runs a snapshot, and its workspace as the current folder."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    copy_workspace(workspace, "experiments")
    code = snapshot.take(str(workspace), str(workspace / "launches" / "job"))
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "params.yaml").write_text("trainer: {}\n")
    (directory / "run.json").write_text(json.dumps({"run_id": "1", "git_revision": "0a1b", "code": code.record}))
    monkeypatch.chdir(workspace)
    return directory


def show(capfd, run, *words, code=0):
    capfd.readouterr()
    found = cli.main(["show", str(run), "--code", *words])
    out, err = capfd.readouterr()
    assert found == code, err
    return out if code == 0 else err


def test_what_was_edited_is_shown(run, capfd):
    """N33: as a difference from the snapshot to the workspace."""
    assert show(capfd, run) == f"the code in {run.parent / 'workspace'} is that of the run\n"
    (run.parent / "workspace" / "experiments" / "mine.py").write_text("mine\n")
    assert show(capfd, run).endswith("--- a/experiments/mine.py\n+++ b/experiments/mine.py\n@@ -0,0 +1 @@\n+mine\n")


def test_a_run_without_a_snapshot_says_its_commit(run, capfd):
    (run / "run.json").write_text(json.dumps({"run_id": "1", "git_revision": "0a1b", "code": None}))
    said = show(capfd, run, code=2)
    assert "run.json names no snapshot: the run was started from a workspace, whose commit is 0a1b" in said
    (run / "run.json").unlink()
    assert "whose commit is unknown" in show(capfd, run, code=2)


def test_a_snapshot_or_a_workspace_that_is_gone_is_named(run, capfd, monkeypatch):
    monkeypatch.chdir(run)
    workspace = run.parent / "workspace"
    (moved,) = (workspace / "launches" / "job").iterdir()
    kept = run.parent / moved.name
    shutil.copytree(moved, kept, symlinks=True)
    shutil.rmtree(workspace)
    assert f"the code of this run was in {moved}, which is gone" in show(capfd, run, code=2)
    (run / "run.json").write_text(json.dumps({"run_id": "1", "code": {"digest": "1", "path": str(kept)}}))
    assert f"the code of this run is in {kept}; its workspace {workspace} is gone" in show(capfd, run, code=2)


def test_a_change_of_the_config_is_refused(run, capfd):
    said = "--code cannot be combined with changes of the config; leave them out"
    assert said in show(capfd, run, "--set=trainer.train_steps=1", code=2)
