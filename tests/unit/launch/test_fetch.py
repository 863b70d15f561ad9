"""The program that gets the code of a job and runs a command in it, as a process."""

import os
import subprocess
import sys

import pytest

from official_trainer.errors import ExitCode
from official_trainer.launch import fetch, snapshot
from tests import ROOT


@pytest.fixture
def archive(tmp_path):
    workspace = tmp_path / "workspace"
    (workspace / "experiments").mkdir(parents=True)
    (workspace / "experiments" / "one.py").write_text("one\n")
    (workspace / "here").symlink_to("experiments/one.py")
    (workspace / "elsewhere").symlink_to("/etc/hostname")
    code = snapshot.take(str(workspace), str(tmp_path / "job"))
    snapshot.pack(code)
    return code.archive


def run(archive, tmp_path, *command):
    environ = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, *fetch.words(archive), *command]
    return subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_a_command_runs_in_the_code_of_an_archive(archive, tmp_path):
    """N33: in the place of the program, so that it gets signals and its exit code counts; a link leads as it did."""
    done = run(archive, tmp_path, "bash", "-c", "cat experiments/one.py here && ls -A && exit 7")
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.split() == ["one", "one", ".official-trainer.json", "experiments", "here"]


def test_storage_that_fails_is_tried_again(tmp_path):
    (tmp_path / "code-1.tar.gz").symlink_to("code-1.tar.gz")  # which fails to be opened
    done = run(str(tmp_path / "code-1.tar.gz"), tmp_path, "true")
    assert (done.returncode, done.stdout) == (ExitCode.RETRY, "")
    assert done.stderr.startswith(f"error: {tmp_path}/code-1.tar.gz cannot be read: ")


@pytest.mark.parametrize("place", ["{}", "ram:/"])
def test_an_archive_that_is_gone_ends_the_job(place, tmp_path):
    """N33: else a job on Kubernetes, where 75 does not count, would start again for ever."""
    url = f"{place.format(tmp_path)}/code-1.tar.gz"
    done = run(url, tmp_path, "true")
    assert (done.returncode, done.stdout) == (ExitCode.CONFIG, "")
    assert done.stderr.splitlines()[-1] == f"error: {url} is gone; submit the job again"


@pytest.mark.parametrize("damage", ["cut", "renamed", "empty"])
def test_an_archive_that_is_damaged_ends_the_job(damage, archive, tmp_path):
    with open(archive, "rb") as file:
        content = file.read()
    if damage == "renamed":
        archive = archive.replace("code-", "code-0")
    with open(archive, "wb") as file:
        file.write({"cut": content[:-40], "renamed": content, "empty": b""}[damage])
    done = run(archive, tmp_path, "true")
    assert (done.returncode, done.stdout) == (ExitCode.CONFIG, "")
    assert "submit the job again" in done.stderr
    assert ("does not hold the code that its name says" if damage == "renamed" else "cannot be unpacked") in done.stderr
