"""One workspace for all runs on clusters: that of the chaos tests, with one of everything that has state."""

import shutil
from pathlib import Path

import pytest

from tests.chaos.runs import Workspace


@pytest.fixture(scope="session")
def workspace(tmp_path_factory):
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if root.name.startswith("popen-") else root  # pytest-xdist: one for all its processes
    found = Workspace(shared / "distributed")
    shutil.copy(Path(__file__).with_name("experiment.py"), found.folder / "experiments" / "collected.py")
    return found
