"""What all processes of one pytest share: the unbroken run of each case."""

import pytest

from tests.support.chaos.contract import Shared


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id):
    base = tmp_path_factory.getbasetemp()
    return Shared((base if worker_id == "master" else base.parent) / "kills")
