"""Two and three processes under MultiWorkerMirroredStrategy: the same numbers, stops, losses, and the way back."""

import json
import signal
from pathlib import Path

import pytest

from official_trainer.manifest import committed_steps
from tests.chaos.compare import differences, id_lines
from tests.chaos.runs import Variant
from tests.distributed.clusters import LocalCluster

SETS = ("runtime.distribution_strategy=multi_worker_mirrored", "runtime.collective_timeout_seconds=20")


def cluster(workspace, model_dir, *sets, workers=2, variant=Variant("multi_worker_mirrored"), env=None):
    words = [f"--set={word}" for word in (*variant.sets(workspace.folder), *SETS, *sets)]
    argv = ["train", "--experiment=digits_chaos", f"--model_dir={model_dir}", *words]
    return LocalCluster(
        {"worker": workers}, argv=argv, cwd=workspace.folder, folder=f"{model_dir}.output", env=env
    )


def run_to_end(*arguments, **options):
    with cluster(*arguments, **options) as started:
        codes = set(started.start_all().wait_all().values())
        assert codes == {0}, started.outputs()


@pytest.fixture(scope="session")
def unbroken(workspace):
    """Returns the directory of a run of two workers from its beginning to its end."""
    model_dir = workspace.folder / "two-workers"
    with workspace.once("two-workers") as done:
        if not done.exists():
            run_to_end(workspace, model_dir)
            done.touch()
    return model_dir


def test_two_workers_train_as_two_replicas_of_one_process_do(workspace, unbroken):
    """T16: the same examples, weights, evaluations and best checkpoint, bit by bit."""
    assert differences(unbroken, workspace.unbroken(Variant("mirrored2")).model_dir) == {}
