"""A run that goes on with another commit of the code than its newest checkpoint."""

import json
from pathlib import Path

import pytest

from official_trainer.checkpoints import manifest
from official_trainer.runs.job import Job
from official_trainer.runs.resume import config_changes
from official_trainer.runs.resume.config_changes import ConfigChangeError
from official_trainer.tracking.git_state import COMMIT
from tests.support import jobs, repository, toy
from tests.support.config import sample

do = toy.runs_of("changed_code", toy.InMemory, train_steps=4, checkpoint_interval=2, export=toy.NO_EXPORT)


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A repository, which is the current directory, as that of a job is a folder of one."""
    folder = repository.make(tmp_path / "workspace")
    monkeypatch.chdir(folder)
    return folder


def job(model_dir, resolved, **options):
    return Job(experiment="changed_code", resolved=resolved, model_dir=model_dir, mode="train", **options)


def test_other_code_is_refused_until_it_is_allowed(workspace, model_dir, monkeypatch):
    """N33: the run and its checkpoints record the commit; the same files in another commit are no change."""
    first = repository.commit(workspace, "first\n")
    monkeypatch.setenv(COMMIT, first)
    do(model_dir, "trainer.train_steps=2", mode="train")
    assert json.loads(Path(model_dir, "run.json").read_text())["git_revision"] == first
    assert manifest.read(model_dir, 2).run.commit == first

    resolved = jobs.resolved("changed_code")
    repository.git(workspace, "commit", "-q", "--allow-empty", "-m", "nothing")
    monkeypatch.setenv(COMMIT, repository.git(workspace, "rev-parse", "HEAD"))
    assert [change.path for change in job(model_dir, resolved).check_changes()] == ["trainer.train_steps"]

    monkeypatch.setenv(COMMIT, repository.commit(workspace, "second\n"))
    with pytest.raises(ConfigChangeError) as caught:
        do(model_dir, mode="train")
    said = str(caught.value)
    assert said.splitlines()[:2] == [
        f"--model_dir={model_dir}: the code is not the one that ckpt-2 was saved with",
        "Changes what the run computes from here on:",
    ]
    assert said.splitlines()[2].startswith(f"  code: {first[:20]}") and said.splitlines()[2].endswith("; changed: x")
    assert "\nTo continue with the new code, add --allow_config_change\n" in said
    assert "To continue with the old ones, submit the job from the commit before: `git stash` or `git" in said
    accepted = job(model_dir, resolved, allow_config_change=True).check_changes()
    assert "; changed: x, by --allow_config_change" in config_changes.notice(accepted, 2)


def test_commits_that_git_does_not_have_here_and_no_commit(workspace, model_dir, monkeypatch):
    """N33: as in an image: they differ, and no file is named. Outside of jobs, to edit and train is daily work."""
    resolved = sample.resolved()
    monkeypatch.setenv(COMMIT, "1" * 40)
    toy.commit(model_dir, 2, job(model_dir, resolved).facts)
    monkeypatch.setenv(COMMIT, "2" * 40)
    with pytest.raises(ConfigChangeError, match=r"code: 1+ -> 2+\n"):
        job(model_dir, resolved).check_changes()
    monkeypatch.delenv(COMMIT)
    assert job(model_dir, resolved).check_changes() == ()
