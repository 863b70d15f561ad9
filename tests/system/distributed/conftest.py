"""One workspace for all runs on clusters: that of the chaos tests, with one of everything that has state."""

import functools
import shutil

import pytest

from tests import ROOT
from tests.support.chaos.runs import workspace_in
from tests.support.distributed.workers import run_to_end


@pytest.fixture(scope="session")
def workspace(shared):
    folder = workspace_in(shared)
    source = ROOT / "tests" / "support" / "distributed" / "experiment.py"
    shutil.copy(source, folder / "experiments" / "collected.py")
    return folder


@pytest.fixture(scope="session")
def unbroken(shared, workspace):
    """Returns the directory of a run of two workers from its beginning to its end."""
    return shared.made("two-workers", functools.partial(run_to_end, workspace))
