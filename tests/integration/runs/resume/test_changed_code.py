"""A run that goes on with another commit of the code than its newest checkpoint."""

import json
from pathlib import Path

import pytest

from official_trainer.checkpoints import manifest
from official_trainer.runs.resume.config_changes import ConfigChangeError
from official_trainer.tracking.git_state import COMMIT
from tests.support import repository
from tests.support.guarded_runs import train


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A repository, which is the current directory, as that of a job is a folder of one."""
    folder = repository.make(tmp_path / "workspace")
    monkeypatch.chdir(folder)
    return folder


def test_other_code_is_refused_until_it_is_allowed(workspace, model_dir, monkeypatch, capsys):
    """N33: the run and its checkpoints record the commit; the same files in another commit are no change."""
    first = repository.commit(workspace, "first\n")
    monkeypatch.setenv(COMMIT, first)
    train(model_dir, "trainer.train_steps=2")
    assert json.loads(Path(model_dir, "run.json").read_text())["git_revision"] == first
    assert manifest.read(model_dir, 2).run.commit == first

    repository.git(workspace, "commit", "-q", "--allow-empty", "-m", "nothing")
    monkeypatch.setenv(COMMIT, same := repository.git(workspace, "rev-parse", "HEAD"))
    train(model_dir, "trainer.train_steps=3")

    second = repository.commit(workspace, "second\n")
    monkeypatch.setenv(COMMIT, second)
    with pytest.raises(ConfigChangeError) as caught:
        train(model_dir)
    said = str(caught.value)
    assert said.splitlines()[:2] == [
        f"--model_dir={model_dir}: the code is not the one that ckpt-3 was saved with",
        "Changes what the run computes from here on:",
    ]
    assert said.splitlines()[2].startswith(f"  code: {same[:20]}") and said.splitlines()[2].endswith("; changed: x")
    assert "\nTo continue with the new code, add --allow_config_change\n" in said
    assert "To continue with the old ones, submit the job from the commit before: `git stash` or `git" in said
    capsys.readouterr()
    train(model_dir, allow_config_change=True, quiet=False)
    assert "; changed: x, by --allow_config_change" in capsys.readouterr().out
    assert manifest.read(model_dir, 4).run.commit == second


def test_commits_that_git_does_not_have_here(workspace, model_dir, monkeypatch):
    """N33: as in an image: they differ, and no file is named."""
    monkeypatch.setenv(COMMIT, "1" * 40)
    train(model_dir, "trainer.train_steps=2")
    monkeypatch.setenv(COMMIT, "2" * 40)
    with pytest.raises(ConfigChangeError, match=r"code: 1+ -> 2+\n"):
        train(model_dir)


def test_code_is_not_compared_outside_of_jobs(workspace, model_dir, monkeypatch):
    """To edit and train in the workspace is daily work, and needs no flag."""
    monkeypatch.setenv(COMMIT, repository.commit(workspace, "first\n"))
    train(model_dir, "trainer.train_steps=2")
    monkeypatch.delenv(COMMIT)
    (workspace / "x").write_text("edited\n")
    train(model_dir)
