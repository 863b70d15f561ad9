"""Tests of whole systems; those that also compute in this process have the same devices as the integration tests."""

import pytest

from tests.support import forked
from tests.support.devices import _clean_keras, _devices, _freed_memory  # noqa: F401
from tests.support.reports.browser import chromium  # noqa: F401  one for all modules: a process can have one only


@pytest.fixture(scope="session", autouse=True)
def _fork_server():
    """Starts it before a test can start one that lacks the library of `disk.c`, as the product's processes do."""
    forked.start_server()
