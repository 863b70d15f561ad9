"""Devices and processes that one experiment is trained on."""

from tests.support.distributed.clusters import LocalCluster
from tests.support.forked import run_command
from tests.support.keras3.sides import WORKSPACE

PLACES = {
    "1 device": ("runtime.distribution_strategy=one_device",),
    "2 devices": ("runtime.distribution_strategy=mirrored", "runtime.num_logical_cpus=2"),
    "4 devices": ("runtime.distribution_strategy=mirrored", "runtime.num_logical_cpus=4"),
    "2 processes": (
        "runtime.distribution_strategy=multi_worker_mirrored",
        "runtime.collective_timeout_seconds=60",
        "runtime.rendezvous_timeout_seconds=60",
    ),
}


def train(place, model_dir, *sets, experiment):
    """Trains in processes of their own, or goes on."""
    words = [f"--set={word}" for word in (*PLACES[place], *sets)]
    argv = ["train", f"--experiment={experiment}", "--mode=train", f"--model_dir={model_dir}", *words]
    folder = model_dir.with_suffix(".output")
    folder.mkdir(exist_ok=True)
    if place != "2 processes":
        done = run_command(argv, cwd=WORKSPACE, folder=folder)
        assert done.code == 0, done.err
        return
    with LocalCluster({"worker": 2}, argv=argv, cwd=WORKSPACE, folder=folder) as started:
        codes = set(started.start_all().wait_all().values())
        assert codes == {0}, started.outputs()
