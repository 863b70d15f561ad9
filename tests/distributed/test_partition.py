"""The network between the processes of a run is cut: each on a machine of its own, as a namespace stands for one."""

import tempfile

import pytest

from tests.chaos.compare import differences, id_lines
from tests.distributed import networks
from tests.distributed.clusters import LocalCluster
from tests.distributed.workers import argv_of


@pytest.fixture
def two_hosts():
    if reason := networks.why_not():
        pytest.skip(f"A CUT NETWORK IS NOT TESTED: {reason}")
    with networks.Network(2) as found:
        yield found


@pytest.mark.full
def test_workers_that_cannot_reach_each_other_end_and_go_on_once_they_can(workspace, unbroken, tmp_path, two_hosts):
    """T16: a cable is pulled while they train: both exit with 75 and name the other, and no bit is lost."""
    model_dir = tmp_path / "run"

    def cluster():
        folder = tempfile.mkdtemp(prefix="output-", dir=tmp_path)
        argv = argv_of(workspace, model_dir)
        return LocalCluster({"worker": 2}, argv=argv, cwd=workspace.folder, folder=folder, network=two_hosts)

    with cluster() as started:
        started.start_all()
        started.wait_for(lambda: max((step for _, step, _ in id_lines(model_dir)), default=0) >= 15)
        two_hosts.cut(1)
        codes, said = started.wait_all(), started.outputs()
        assert set(codes.values()) == {75}, said
        for index in (0, 1):
            other = 1 - index
            address = started.addresses["worker"][other]
            assert f"worker {other} ({address})" in started.err("worker", index), said

    two_hosts.mend(1)
    with cluster() as started:
        assert set(started.start_all().wait_all().values()) == {0}, started.outputs()
    assert differences(model_dir, unbroken) == {}
