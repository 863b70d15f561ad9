"""What git says of the code, within its limits."""

import os
import re

import pytest

from official_trainer.tracking import git_state
from official_trainer.tracking.git_state import Code
from tests.support import repository


def asked(folder):
    code = Code(folder)
    assert code.wait(60)
    return code


def test_the_commit_and_the_changes(tmp_path):
    """B8: a clean workspace has no changes; files that git does not track are none."""
    folder = repository.make(tmp_path / "repository")
    (folder / "new").write_text("not tracked")
    clean = asked(folder)
    assert re.fullmatch("[0-9a-f]{40}", clean.revision)
    assert clean.changes == ""
    (folder / "x").write_text("y\n")
    changed = asked(folder)
    assert changed.revision == f"{clean.revision}-dirty"
    assert changed.changes.startswith("diff --git a/x b/x\n")
    assert changed.changes.endswith("-x\n+y\n")


def test_without_git_nothing_is_known(tmp_path, monkeypatch):
    """B8: no workspace, no repository, no commit, or no git: its absence is never an error."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "empty").mkdir()
    repository.git(tmp_path / "empty", "init", "-q")
    for folder in (None, tmp_path / "nowhere", tmp_path, tmp_path / "empty"):
        assert (asked(folder).revision, asked(folder).changes) == (None, "")
    monkeypatch.setenv("PATH", "")
    assert asked(tmp_path).revision is None


def test_large_changes_are_cut_at_a_line(tmp_path):
    """B8: a run directory does not grow by what was changed."""
    folder = repository.make(tmp_path / "repository")
    (folder / "x").write_text("a line\n" * 100_000)
    changes = asked(folder).changes
    assert git_state.LIMIT_BYTES - 100 < len(changes) < git_state.LIMIT_BYTES + 100
    assert changes.endswith("\n+a line\n# cut here: the whole is larger than 256 KiB\n")


def test_no_program_of_the_repository_is_run(tmp_path):
    """B8: a repository may name programs that show differences; asking git starts none."""
    folder = repository.make(tmp_path / "repository")
    repository.git(folder, "config", "diff.external", f"touch {tmp_path}/ran")
    repository.git(folder, "config", "diff.shown.textconv", f"touch {tmp_path}/ran; cat")
    (folder / ".gitattributes").write_text("x diff=shown\n")
    (folder / "x").write_text("y\n")
    assert asked(folder).changes
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(not os.path.exists("/bin/sh"), reason="the fake git is a shell script")
def test_a_git_that_hangs_is_ended_with_what_it_started(tmp_path, monkeypatch):
    """B8: nothing of it is left, also not a process of its own that holds its output open."""
    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\n/bin/sleep 1000 &\nwait\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(git_state, "_TIMEOUT_SECONDS", 0.2)
    assert asked(tmp_path).revision is None
