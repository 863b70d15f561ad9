"""Snapshots of a workspace: what is copied, what is linked, and what has changed since."""

import errno
import json
import os
import shutil
import subprocess

import pytest

from official_trainer.launch import snapshot
from official_trainer.tracking import code_files


@pytest.fixture
def workspace(tmp_path):
    folder = tmp_path / "work space"
    write(folder, "experiments/one.py", "one\n")
    write(folder, "configs/one.yaml", "a: 1\n")
    write(folder, "train.py", "#!/usr/bin/env python\n")
    (folder / "train.py").chmod(0o755)
    return folder


def write(folder, path, text):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True)


def take(workspace):
    return snapshot.take(str(workspace), str(workspace / "launches" / "job"))


CODE = ["configs/one.yaml", "experiments/one.py", "train.py"]


def test_a_snapshot_holds_what_git_does_not_ignore(workspace):
    """N33: tracked and untracked; what was removed is not there; data that git ignores is linked."""
    write(workspace, ".gitignore", "data/\n*.log\nlaunches/\n")
    write(workspace, "gone.py", "")
    git(workspace, "init", "--quiet")
    git(workspace, "add", ".")
    git(workspace, "commit", "--quiet", "--message=all")
    (workspace / "gone.py").unlink()
    write(workspace, "experiments/untracked.py", "two\n")
    write(workspace, "data/train.csv", "1,2\n")
    write(workspace, "experiments/note.log", "said\n")
    taken = take(workspace)
    assert sorted(taken.sums) == [".gitignore", "configs/one.yaml", "experiments/one.py", "experiments/untracked.py",
                                  "train.py"]  # fmt: skip
    write(workspace, "experiments/one.py", "edited\n")
    write(workspace, "data/train.csv", "3,4\n")
    there = workspace / "launches" / "job" / f"code-{taken.digest}"
    assert taken.path == str(there)
    assert (there / "experiments" / "one.py").read_text() == "one\n"
    assert (there / "data" / "train.csv").read_text() == "3,4\n"
    assert (there / "experiments" / "note.log").is_symlink()
    assert os.access(there / "train.py", os.X_OK) and not os.access(there / "configs" / "one.yaml", os.X_OK)
    assert {each.name for each in there.iterdir()} == {
        *(".gitignore", ".official-trainer.json", "configs", "data", "experiments", "train.py"),
    }


def test_files_of_repositories_inside_are_code(workspace, tmp_path):
    """N33: a submodule and a clone, what they track and what they do not ignore; not where a link leads."""
    library = tmp_path / "library"
    write(library, "layers.py", "layers\n")
    write(library, ".gitignore", "*.log\n")
    for folder in (library, workspace):
        git(folder, "init", "--quiet")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message=all")
    git(workspace, "submodule", "add", "--quiet", str(library), "library")
    git(workspace, "clone", "--quiet", str(library), f"{workspace}/clone")
    for folder in ("library", "clone"):
        write(workspace / folder, "new.py", "new\n")
        write(workspace / folder, "said.log", "said\n")
    (workspace / "elsewhere").symlink_to(library)
    found = {path for path in take(workspace).sums if path.startswith(("library", "clone", "elsewhere"))}
    names = (".gitignore", "layers.py", "new.py")
    assert found == {"elsewhere", *(f"{folder}/{name}" for folder in ("library", "clone") for name in names)}


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ('#!/bin/sh\necho "fatal: detected dubious ownership in repository" >&2\nexit 128\n', "fatal: detected dub"),
        (None, "git: No such file or directory"),
    ],
)
def test_git_that_fails_in_a_repository_is_no_folder_without_git(workspace, tmp_path, monkeypatch, program, reason):
    """N33: else files that it ignores, such as those with secrets, would be copied and uploaded."""
    write(workspace, ".gitignore", "secrets.yaml\n")
    write(workspace, "secrets.yaml", "hush\n")
    git(workspace, "init", "--quiet")
    (tmp_path / "bin").mkdir()
    if program is not None:
        write(tmp_path, "bin/git", program)
        (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for folder in (workspace, workspace / "experiments"):
        with pytest.raises(code_files.SnapshotError) as caught:
            snapshot.planned(str(folder), "launches")
        said = str(caught.value)
        so = "so it is not known which files it ignores, such as those with secrets; mend it until `git status` works"
        assert said.startswith(f"{folder}: git fails there ({reason}")
        assert said.endswith(f"), {so}, or set another source in the profile")
    shutil.rmtree(workspace / ".git")
    assert "secrets.yaml" in snapshot.planned(str(workspace), "launches").sums


def test_a_workspace_that_git_ignores_is_read_without_git(workspace, tmp_path):
    write(tmp_path, ".gitignore", "*\n")
    git(tmp_path, "init", "--quiet")
    assert sorted(take(workspace).sums) == CODE


def test_without_git_all_is_code_but_what_is_hidden_large_or_of_an_environment(workspace, monkeypatch):
    """N33: what runs, sweeps and jobs have written is left out, too."""
    monkeypatch.setattr(code_files, "_LARGE_BYTES", 100)
    write(workspace, ".cache/x", "")
    write(workspace, "experiments/__pycache__/one.pyc", "")
    write(workspace, "venv/pyvenv.cfg", "")
    write(workspace, "venv/lib/x.py", "")
    write(workspace, "weights.bin", "x" * 101)
    write(workspace, "runs/a/run.json", "{}")
    write(workspace, "runs/a/train/events", "")
    write(workspace, "runs/notes.txt", "")
    write(workspace, "sweeps/a/sweep.json", "{}")
    write(workspace, "sweeps/a/trials/0/trial.json", "{}")
    write(workspace, "launches/other/job.sbatch", "")
    taken = take(workspace)
    assert sorted(taken.sums) == sorted([*CODE, "runs/notes.txt"])
    linked = {
        path for path in ("weights.bin", "venv", "runs/a", "sweeps", ".cache") if os.path.islink(f"{taken.path}/{path}")
    }
    assert linked == {"weights.bin", "venv", "runs/a", "sweeps", ".cache"}
    assert not os.path.exists(f"{taken.path}/launches")


def test_links_lead_where_they_led(workspace, tmp_path):
    write(tmp_path, "outside.txt", "outside\n")
    (workspace / "inside").symlink_to("configs")
    (workspace / "configs" / "outside.txt").symlink_to("../../outside.txt")
    taken = take(workspace)
    write(workspace, "configs/one.yaml", "a: 2\n")
    with open(f"{taken.path}/inside/one.yaml") as file:
        assert file.read() == "a: 1\n"
    with open(f"{taken.path}/configs/outside.txt") as file:
        assert file.read() == "outside\n"
    assert taken.changed(code_files.sums_of(str(workspace))) == ["configs/one.yaml"]


def test_the_same_code_is_copied_once(workspace):
    first, again = take(workspace), take(workspace)
    assert first == again == snapshot.planned(str(workspace), str(workspace / "launches" / "job"))
    write(workspace, "configs/one.yaml", "a: 2\n")
    other = take(workspace)
    assert other.path != first.path
    assert sorted(os.listdir(workspace / "launches" / "job")) == sorted(
        os.path.basename(each.path) for each in (first, other)
    )


def test_a_copy_that_was_changed_is_made_again(workspace):
    """N33: a job that is submitted runs the code as it is in the workspace."""
    taken = take(workspace)
    write(workspace / "launches" / "job" / f"code-{taken.digest}", "experiments/one.py", "edited\n")
    assert take(workspace) == taken
    with open(f"{taken.path}/experiments/one.py") as file:
        assert file.read() == "one\n"
    write(workspace / "launches" / "job" / f"code-{taken.digest}", code_files.FILE, "{")
    assert take(workspace) == taken == code_files.at(taken.path)
    os.remove(f"{taken.path}/{code_files.FILE}")  # as of a copy that was broken off
    os.remove(f"{taken.path}/train.py")
    assert take(workspace) == taken and os.path.exists(f"{taken.path}/train.py")
    assert code_files.at(workspace) is None


def test_the_copy_of_a_folder(workspace, tmp_path):
    taken = take(workspace)
    (tmp_path / "link").symlink_to(workspace)
    (workspace / ".venv").mkdir()
    for folder, copy in (("", ""), ("configs", "/configs"), ("configs/", "/configs")):
        assert (
            taken.place_of(f"{workspace}/{folder}") == taken.place_of(f"{tmp_path}/link/{folder}") == taken.path + copy
        )
    for other in (f"{workspace}/.venv", f"{workspace}/config", str(tmp_path), taken.path, "/"):
        assert taken.place_of(other) == other


def test_a_copy_that_fails_leaves_nothing(workspace, monkeypatch):
    monkeypatch.setattr(snapshot.files, "write_text_atomically", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        take(workspace)
    assert os.listdir(workspace / "launches" / "job") == []


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps({"workspace": "/w", "sums": 1})])
def test_a_description_that_cannot_be_read_is_refused(text, workspace):
    (workspace / code_files.FILE).write_text(text)
    with pytest.raises(
        code_files.SnapshotError, match=r"\.official-trainer\.json cannot be read .*; submit the job again"
    ):
        code_files.at(workspace)


def test_what_was_edited_is_shown(workspace):
    taken = take(workspace)
    write(workspace, "configs/one.yaml", "a: 2")
    write(workspace, "experiments/new.py", "new\n")
    (workspace / "train.py").chmod(0o644)
    (workspace / "experiments" / "one.py").write_bytes(b"\0\1")
    assert taken.changed(code_files.sums_of(str(workspace))) == ["configs/one.yaml", "experiments/new.py",
                                                               "experiments/one.py", "train.py"]  # fmt: skip
    assert "".join(taken.difference(str(workspace))) == (
        "--- a/configs/one.yaml\n+++ b/configs/one.yaml\n@@ -1 +1 @@\n-a: 1\n+a: 2\n"
        "--- a/experiments/new.py\n+++ b/experiments/new.py\n@@ -0,0 +1 @@\n+new\n"
        "Binary files a/experiments/one.py and b/experiments/one.py differ\n"
    )


def test_code_that_is_too_large_is_refused_with_its_largest_files(workspace, monkeypatch):
    monkeypatch.setattr(snapshot, "_MOST_BYTES", 2 << 20)
    write(workspace, "experiments/weights.npy", "x" * (3 << 20))
    message = (
        r"work space: its code has 3 MiB, and a snapshot has at most 2; the largest files are "
        r"experiments/weights.npy of 3 MiB, .*: add what is no code to .gitignore, or set another source in the profile"
    )
    for call in (take, lambda folder: snapshot.planned(str(folder), "launches")):
        with pytest.raises(code_files.SnapshotError, match=message):
            call(workspace)


def test_a_file_that_cannot_be_read_is_named(workspace, monkeypatch):
    """Root can read all, so the answer is given here."""

    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(code_files.files, "sha256", refuse)
    with pytest.raises(code_files.SnapshotError) as caught:
        snapshot.planned(str(workspace), "launches")
    assert str(caught.value) == (
        f"{workspace}/configs/one.yaml cannot be read (Permission denied), so the job would lack it; change its "
        "permissions, or add it to .gitignore if it is no code"
    )
