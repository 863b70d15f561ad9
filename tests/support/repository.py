"""A git repository of one file, `x`."""

import subprocess

IDENTITY = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]


def git(folder, *arguments):
    """Runs a command of git; returns what it prints."""
    done = subprocess.run(["git", "-C", str(folder), *IDENTITY, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder, text):
    """Commits a text as the file `x`; returns the commit."""
    (folder / "x").write_text(text)
    git(folder, "add", "x")
    git(folder, "commit", "-qm", "x")
    return git(folder, "rev-parse", "HEAD")


def make(folder):
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    commit(folder, "x\n")
    return folder
