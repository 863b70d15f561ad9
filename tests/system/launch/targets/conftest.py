"""A real Slurm for the tests of this folder, one for each process of pytest."""

import shutil
import tempfile
import warnings

import pytest

from tests import ROOT
from tests.support.slurm import cluster
from tests.support.workspace import copy_workspace


@pytest.fixture(scope="session")
def daemons():
    if why := cluster.why_not():
        warnings.warn(f"NOTHING OF SLURM IS TESTED HERE: {why}", stacklevel=1)
        pytest.skip(why)
    folder = tempfile.mkdtemp(prefix="slurm")  # a short path: sockets are in it
    found = cluster.Slurm(folder)
    with found:
        yield found
    assert not found.left()
    shutil.rmtree(folder)


@pytest.fixture
def slurm(daemons, tmp_path, monkeypatch):
    """Slurm, with the current directory in a workspace; no job is left."""
    copy_workspace(tmp_path, "experiments", "configs")
    for name, value in daemons.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    yield daemons
    daemons.clear()
