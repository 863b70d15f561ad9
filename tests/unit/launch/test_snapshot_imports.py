"""The code of a job is what its processes import."""

import importlib
import sys
from pathlib import Path

import pytest

from official_trainer.launch import snapshot
from official_trainer.tasks import registry
from tests.support import packages
from tests.support.packages import write


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with packages.as_it_was(monkeypatch):
        yield


def test_modules_of_a_job_are_those_that_were_submitted(tmp_path):
    """N33: also those of a folder that PYTHONPATH, or a package installed with `pip install -e`, names."""
    write(tmp_path / "workspace", src__layers_of_a_job="SIZE = 1\n")
    taken = snapshot.take("workspace", "workspace/launches")
    write(tmp_path / "workspace", src__layers_of_a_job="SIZE = 2\n")
    sys.path[:0] = ["", str(tmp_path / "workspace" / "src")]
    registry.enter_for(Path(taken.path))
    assert sys.path[:3] == [taken.path, "", f"{taken.path}/src"]
    assert importlib.import_module("layers_of_a_job").SIZE == 1
