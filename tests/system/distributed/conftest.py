"""One workspace for all runs on clusters: that of the chaos tests, with one of everything that has state."""

import shutil

import pytest

from tests import ROOT
from tests.support.chaos.runs import Workspace
from tests.support.distributed.workers import run_to_end


@pytest.fixture(scope="session")
def workspace(tmp_path_factory):
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if root.name.startswith("popen-") else root  # pytest-xdist: one for all its processes
    found = Workspace(shared / "distributed")
    source = ROOT / "tests" / "support" / "distributed" / "experiment.py"
    shutil.copy(source, found.folder / "experiments" / "collected.py")
    return found


@pytest.fixture(scope="session")
def unbroken(workspace):
    """Returns the directory of a run of two workers from its beginning to its end."""
    model_dir = workspace.folder / "two-workers"
    with workspace.once("two-workers") as done:
        if not done.exists():
            run_to_end(workspace, model_dir)
            done.touch()
    return model_dir
