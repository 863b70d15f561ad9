"""The commit of a job: what is in it, that nothing of the user's repository changes, and its copy."""

import subprocess

import pytest

from official_trainer.launch import code
from official_trainer.launch.code import CodeError
from official_trainer.launch.spec import Code, in_copy, training_job
from tests.support import repository


@pytest.fixture
def workspace(tmp_path):
    folder = repository.make(tmp_path / "workspace")
    (folder / ".gitignore").write_text("data/\n*.secret\nlaunches\n")
    repository.git(folder, "add", "--all")
    repository.git(folder, "commit", "-qm", "ignored")
    return folder


def listed(workspace, commit):
    return repository.git(workspace, "ls-tree", "-r", "-z", "--name-only", commit).split("\0")[:-1]


def state(workspace):
    """Returns what the user sees of the repository."""
    words = (("status", "--porcelain"), ("diff", "--cached"), ("log", "--oneline", "--branches"), ("stash", "list"))
    return [repository.git(workspace, *command) for command in words]


def test_a_clean_workspace_is_its_own_commit(workspace):
    assert code.commit_of(str(workspace)) == repository.git(workspace, "rev-parse", "HEAD")


def test_what_is_in_the_commit(workspace):
    """N33: what is tracked, as it is now, and what git does not ignore; no runs, jobs and repositories inside."""
    (workspace / "x").write_text("edited\n")
    for name in (
        "new.py",
        "a.secret",
        "data/rows",
        "launches/job/job.sbatch",
        "a/__pycache__/x.pyc",
        "runs/a/run.json",
    ):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("text")
    repository.git(workspace, "add", "new.py")
    (workspace / "a b\u00e9").write_text("text")
    repository.make(workspace / "other")
    before = state(workspace)
    commit = code.commit_of(str(workspace))
    assert listed(workspace, commit) == [".gitignore", "a b\u00e9", "new.py", "x"]
    assert repository.git(workspace, "show", f"{commit}:x") == "edited"
    assert repository.git(workspace, "rev-parse", f"{commit}^") == repository.git(workspace, "rev-parse", "HEAD")
    assert state(workspace) == before
    assert code.commit_of(str(workspace)) == commit  # the same files are the same commit
    (workspace / "x").write_text("edited again\n")
    assert code.commit_of(str(workspace)) != commit


def test_a_workspace_without_a_commit_yet(tmp_path):
    repository.git(tmp_path, "init", "-q")
    (tmp_path / "x").write_text("x")
    assert listed(tmp_path, code.commit_of(str(tmp_path))) == ["x"]


def test_workspaces_that_git_does_not_know(workspace, tmp_path, monkeypatch):
    """N33: no repository, one that ignores the folder, no git."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (workspace / "data").mkdir()
    assert code.commit_of(str(tmp_path)) is None and code.commit_of(str(workspace / "data")) is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert code.commit_of(str(workspace)) is None


def test_a_repository_that_git_cannot_read(workspace):
    """N33: what is ignored, such as secrets, is not known then."""
    (workspace / ".git" / "index").write_text("damaged")
    with pytest.raises(CodeError, match=r"`git add` fails \(.*\), so it is not known what the code of the job is; men"):
        code.commit_of(str(workspace))


def test_a_copy_has_the_commit_and_leads_to_the_data(workspace):
    """N33: it is made once; a relative path to what git ignores leads to the workspace."""
    (workspace / "data").mkdir()
    (workspace / "data/rows").write_text("1")
    (workspace / "x").write_text("edited\n")
    kept_code = Code(
        commit=code.commit_of(str(workspace)), workspace=str(workspace), folder=str(workspace / "launches/job/code-1")
    )
    code.keep(kept_code, "job")
    code.copy(kept_code)
    copy = workspace / "launches/job/code-1"
    assert sorted(path.name for path in copy.iterdir()) == [".gitignore", "data", "x"]
    assert (copy / "x").read_text() == "edited\n" and (copy / "data/rows").read_text() == "1"
    assert [path.name for path in copy.parent.iterdir()] == ["code-1"]
    assert repository.git(workspace, "for-each-ref", "--format=%(objectname) %(refname)", "refs/official-trainer") == (
        f"{kept_code.commit} refs/official-trainer/job"
    )
    (copy / "x").write_text("a job runs here\n")
    code.copy(kept_code)
    assert (copy / "x").read_text() == "a job runs here\n"


def test_a_folder_of_a_repository(workspace):
    """N33: a workspace below the top of its repository: the copy has that folder."""
    inner = workspace / "inner"
    inner.mkdir()
    (inner / "y").write_text("y")
    kept_code = Code(commit=code.commit_of(str(inner)), workspace=str(inner), folder=str(inner / "launches/job/code-1"))
    code.copy(kept_code)
    assert [path.name for path in (inner / "launches/job/code-1").iterdir()] == ["y"]


def test_a_job_in_its_copy():
    """N33: its directory, files that flags name, and where Python looks for modules; what is elsewhere stays."""
    words = ["--config_file=/ws/a.yaml", "--config_file=b.yaml", "--config_file=../c.yaml", "--gin_file=/elsewhere"]
    job = training_job({"worker": 1}, words, grace_seconds=1)
    job = type(job)(**{**vars(job), "cwd": "/ws/inner"})
    (role,) = in_copy(job, Code(commit="abc", workspace="/ws", folder="/copy"), ["/ws/src", "/lib"]).roles
    expected = ["--config_file=/copy/a.yaml", "--config_file=b.yaml", "--config_file=/copy/c.yaml", words[3]]
    assert list(role.argv[2:]) == expected
    assert role.environ == {"OFFICIAL_TRAINER_COMMIT": "abc", "PYTHONPATH": "/copy/src:/lib"}
    (role,) = in_copy(job, Code(commit="abc", workspace="/ws", folder="/copy"), ["/lib"]).roles
    assert role.environ == {"OFFICIAL_TRAINER_COMMIT": "abc"}


def test_a_git_that_hangs(workspace, monkeypatch):
    def hangs(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", hangs)
    assert code.commit_of(str(workspace)) is None
