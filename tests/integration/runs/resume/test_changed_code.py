"""A run that goes on with another snapshot of the code than its newest checkpoint."""

import json
import shutil
from pathlib import Path

import pytest

from official_trainer.checkpoints import manifest
from official_trainer.launch import snapshot
from official_trainer.runs.resume.config_changes import ConfigChangeError
from tests.support.guarded_runs import train


@pytest.fixture
def workspace(tmp_path):
    folder = tmp_path / "workspace"
    (folder / "experiments").mkdir(parents=True)
    return folder


def code(workspace, text):
    """Returns a snapshot of the workspace with this text in a file."""
    (workspace / "experiments" / "mine.py").write_text(text)
    return snapshot.take(str(workspace), str(workspace / "launches" / "job"))


def test_other_code_is_refused_until_it_is_allowed(workspace, model_dir, monkeypatch, capsys):
    """N33: the run and its checkpoints record the snapshot; the same code in another copy is no change."""
    first, second = code(workspace, "first"), code(workspace, "second")
    monkeypatch.chdir(first.path)
    train(model_dir, "trainer.train_steps=2")
    run = json.loads(Path(model_dir, "run.json").read_text())
    assert (run["workspace"], run["code"]) == (str(workspace), first.record)
    assert manifest.read(model_dir, 2).metadata["code"] == first.record

    shutil.copytree(first.path, workspace / "copy", symlinks=True)
    monkeypatch.chdir(workspace / "copy")
    train(model_dir, "trainer.train_steps=3")

    monkeypatch.chdir(second.path)
    with pytest.raises(ConfigChangeError) as caught:
        train(model_dir)
    said = str(caught.value)
    assert said.splitlines()[:3] == [
        f"--model_dir={model_dir}: the code is not the one that ckpt-3 was saved with",
        "Changes what the run computes from here on:",
        f"  code: {first.digest} -> {second.digest}; changed: experiments/mine.py",
    ]
    assert "\nTo continue with the new code, add --allow_config_change\n" in said
    assert "To continue with the old ones, `official-trainer job resume` submits a job again as it was" in said
    capsys.readouterr()
    train(model_dir, allow_config_change=True, quiet=False)
    change = f"code: {first.digest} -> {second.digest}; changed: experiments/mine.py, by --allow_config_change"
    assert change in capsys.readouterr().out
    assert manifest.read(model_dir, 4).metadata["code"] == second.record


def test_a_copy_that_was_edited_is_other_code(workspace, model_dir, monkeypatch):
    """N33: though it is still where the checkpoint says; data that is linked there may change."""
    (workspace / "data").symlink_to(workspace.parent)
    kept = code(workspace, "first")
    monkeypatch.chdir(kept.path)
    train(model_dir, "trainer.train_steps=2")
    (workspace.parent / "more").touch()
    train(model_dir, "trainer.train_steps=3")
    Path(kept.path, "experiments", "mine.py").write_text("edited")
    with pytest.raises(ConfigChangeError, match=f"  code: {kept.digest} -> [0-9a-f]+; changed: experiments/mine.py\n"):
        train(model_dir)


def test_code_is_not_compared_outside_of_snapshots(workspace, model_dir, monkeypatch):
    """To edit and train in the workspace is daily work, and needs no flag."""
    kept = code(workspace, "first")
    monkeypatch.chdir(kept.path)
    train(model_dir, "trainer.train_steps=2")
    monkeypatch.chdir(workspace)
    (workspace / "experiments" / "mine.py").write_text("edited")
    train(model_dir)
    run = json.loads(Path(model_dir, "run.json").read_text())
    assert (run["workspace"], run["code"]) == (str(workspace), None)


def test_without_the_earlier_snapshot_its_files_are_not_named(workspace, model_dir, monkeypatch):
    first, second = code(workspace, "first"), code(workspace, "second")
    monkeypatch.chdir(first.path)
    train(model_dir, "trainer.train_steps=2")
    monkeypatch.chdir(second.path)
    shutil.rmtree(first.path)
    with pytest.raises(ConfigChangeError, match=f"code: {first.digest} -> {second.digest}\n"):
        train(model_dir)
