"""Copies of this repository's workspace: what a user edits, for tests to run in and to change."""

import shutil

from tests import ROOT

FOLDERS = ("experiments", "configs", "launch")


def copy_workspace(folder, *names):
    """Copies the folders called `names`, by default all that a user edits, into `folder`."""
    for name in names or FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
