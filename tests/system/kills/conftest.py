"""The workspace of the killed runs, shared by all processes of one pytest."""

import pytest

from tests.support.chaos.runs import Workspace


@pytest.fixture(scope="session")
def workspace(tmp_path_factory, worker_id):
    base = tmp_path_factory.getbasetemp()
    return Workspace((base if worker_id == "master" else base.parent) / "chaos")


@pytest.fixture
def tallied(record_property):
    """Adds a `Tally` to the table at the end; `tests/support/chaos/summary.py` prints it."""
    return lambda tally: record_property("chaos", vars(tally) | {"phases": dict(tally.phases)})
