"""What all processes of one pytest share: the unbroken run of each case."""

import time

import pytest

from tests.support.chaos.contract import Shared
from tests.support.chaos.summary import Tally


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id):
    base = tmp_path_factory.getbasetemp()
    return Shared((base if worker_id == "master" else base.parent) / "kills")


@pytest.fixture
def tally(record_property):
    """Counts what happens; `tests/support/chaos/summary.py` prints it at the end."""
    tally, start = Tally(), time.monotonic()
    yield tally
    tally.seconds = time.monotonic() - start
    record_property("chaos", vars(tally) | {"phases": dict(tally.phases)})
