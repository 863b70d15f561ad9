"""The network between the processes of a run is cut: each on a machine of its own, as a namespace stands for one."""

import tempfile

import pytest

from tests.support.chaos.compare import differences, id_lines
from tests.support.distributed import networks
from tests.support.distributed.clusters import LocalCluster
from tests.support.distributed.coordinated import LONG, Run, run_so_far
from tests.support.distributed.workers import argv_of


@pytest.fixture
def hosts(request):
    if reason := networks.why_not():
        pytest.skip(f"A CUT NETWORK IS NOT TESTED: {reason}")
    with networks.Network(request.param) as found:
        yield found


@pytest.mark.full
@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_workers_that_cannot_reach_each_other_end_and_go_on_once_they_can(workspace, unbroken, tmp_path, hosts):
    """T16: a cable is pulled while they train: both exit with 75 and name the other, and no bit is lost."""
    model_dir = tmp_path / "run"

    def cluster():
        folder = tempfile.mkdtemp(prefix="output-", dir=tmp_path)
        argv = argv_of(workspace, model_dir)
        return LocalCluster({"worker": 2}, argv=argv, cwd=workspace.folder, folder=folder, network=hosts)

    with cluster() as started:
        started.start_all()
        started.wait_for(lambda: max((step for _, step, _ in id_lines(model_dir)), default=0) >= 15)
        hosts.cut(1)
        codes, said = started.wait_all(), started.outputs()
        assert set(codes.values()) == {75}, said
        for index in (0, 1):
            other = 1 - index
            address = started.addresses["worker"][other]
            assert f"worker {other} ({address})" in started.err("worker", index), said

    hosts.mend(1)
    with cluster() as started:
        assert set(started.start_all().wait_all().values()) == {0}, started.outputs()
    assert differences(model_dir, unbroken) == {}


@pytest.mark.full
@pytest.mark.parametrize("at_step", [pytest.param(100, id="while it traces"), pytest.param(750, id="in a window")])
@pytest.mark.parametrize("hosts", [4], indirect=True)
def test_a_coordinator_goes_on_without_a_worker_that_cannot_be_reached(tmp_path, hosts, at_step):
    """T7: and with it once it can; the chief says both, and no step is lost or added."""
    with Run(tmp_path, *LONG, "trainer.train_steps=5000", spins=8, network=hosts) as run:
        name = ("worker", 1)
        run.wait_for_step(at_step)
        hosts.cut(run.cluster.names.index(name))
        run.wait_for_step(run_so_far(run) + 300)
        assert run.windows()[-1]["steps"][1] == 0
        hosts.mend(run.cluster.names.index(name))
        run.cluster.wait_for(lambda: "\nworker 1 is back\n" in run.cluster.err("chief"))
        assert run.wait_all() == {0}, run.cluster.outputs()
        run.assert_done(5000)
        lost = f"lost worker 1 ({run.cluster.addresses['worker'][1]}): the others take over its steps; it may come back"
        assert lost in run.cluster.err("chief")
        assert run.windows()[-1]["steps"][1] > 0
