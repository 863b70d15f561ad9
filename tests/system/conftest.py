"""Tests of whole systems; those that also compute in this process have the same devices as the integration tests."""

import pytest

from tests.support import forked
from tests.support.chaos.contract import Shared
from tests.support.devices import _clean_keras, _devices, _freed_memory  # noqa: F401
from tests.support.reports.browser import chromium  # noqa: F401  one for all modules: a process can have one only


@pytest.fixture(scope="session", autouse=True)
def _fork_server():
    """Starts it before a test can start one that lacks the library of `disk.c`, as the product's processes do."""
    forked.start_server()


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id):
    """What all processes of one pytest share: the unbroken run of each case of the kills, and a workspace."""
    base = tmp_path_factory.getbasetemp()
    return Shared((base if worker_id == "master" else base.parent) / "shared")
