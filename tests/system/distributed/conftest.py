"""One workspace for all runs on clusters: that of the chaos tests, with one of everything that has state."""

import functools
import shutil

import pytest

from tests import ROOT
from tests.support.chaos.runs import Workspace
from tests.support.distributed.workers import run_to_end


@pytest.fixture(scope="session")
def workspace(shared):
    found = Workspace(shared.folder / "distributed")
    source = ROOT / "tests" / "support" / "distributed" / "experiment.py"
    shutil.copy(source, found.folder / "experiments" / "collected.py")
    return found


@pytest.fixture(scope="session")
def unbroken(workspace):
    """Returns the directory of a run of two workers from its beginning to its end."""
    return workspace.made("two-workers", functools.partial(run_to_end, workspace))
