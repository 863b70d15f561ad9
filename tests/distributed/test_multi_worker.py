"""Two and three processes under MultiWorkerMirroredStrategy: the same numbers, stops, losses, and the way back."""

import signal
import tempfile
from pathlib import Path

import pytest

from official_trainer.manifest import committed_steps
from tests.chaos.compare import differences, id_lines
from tests.chaos.runs import Variant
from tests.distributed.clusters import LocalCluster

TWO_WORKERS = Variant("multi_worker_mirrored")
SETS = ("runtime.distribution_strategy=multi_worker_mirrored", "runtime.collective_timeout_seconds=20")


def cluster(workspace, model_dir, *sets, workers=2, variant=TWO_WORKERS, env=None):
    words = [f"--set={word}" for word in (*variant.sets(workspace.folder), *SETS, *sets)]
    argv = ["train", "--experiment=digits_chaos", f"--model_dir={model_dir}", *words]
    folder = tempfile.mkdtemp(prefix="output-", dir=Path(model_dir).parent)
    return LocalCluster({"worker": workers}, argv=argv, cwd=workspace.folder, folder=folder, env=env)


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


def steps_done(model_dir):
    """The last step that some process has begun."""
    return max((step for _, step, _ in id_lines(model_dir)), default=0)


def break_off(workspace, model_dir, act, *, at_step=15, sets=()):
    """Runs until `at_step`, lets `act(cluster)` do its work, and returns all exit codes."""
    with cluster(workspace, model_dir, *sets) as started:
        started.start_all()
        started.wait_for(lambda: steps_done(model_dir) >= at_step)
        act(started)
        return started.wait_all(), started.outputs()


@pytest.mark.parametrize("index", [0, 1])
def test_sigterm_to_any_worker_saves_and_ends_all(workspace, unbroken, tmp_path, index):
    """T16: all agree on a step, save it, and exit 143; the same command goes on, bit by bit."""
    model_dir = tmp_path / "run"
    codes, said = break_off(workspace, model_dir, lambda c: c.signal("worker", index, signal.SIGTERM))
    assert set(codes.values()) == {143}, said
    saved = max(committed_steps(str(model_dir)))
    assert saved >= steps_done(model_dir) - 1, said
    run_to_end(workspace, model_dir)
    assert differences(model_dir, unbroken) == {}


@pytest.mark.parametrize("index", [0, 1])
def test_a_killed_worker_ends_the_others_with_75(workspace, unbroken, tmp_path, index):
    """T16: nobody hangs; started again, all continue bit by bit from the last checkpoint."""
    model_dir = tmp_path / "run"
    codes, said = break_off(workspace, model_dir, lambda c: c.kill("worker", index))
    assert codes == {("worker", index): -signal.SIGKILL, ("worker", 1 - index): 75}, said
    assert f"worker {index} (127.0.0.1:" in said
    assert "is gone" in said
    run_to_end(workspace, model_dir)
    assert differences(model_dir, unbroken) == {}


def test_a_stopped_worker_ends_the_others_with_75(workspace, unbroken, tmp_path):
    """T16: a process that lives and does nothing is noticed too, and ends itself when it wakes up."""
    model_dir = tmp_path / "run"

    def act(started):
        started.signal("worker", 1, signal.SIGSTOP)
        assert started.wait("worker", 0) == 75, started.outputs()
        started.signal("worker", 1, signal.SIGCONT)

    codes, said = break_off(workspace, model_dir, act)
    assert set(codes.values()) == {75}, said
    run_to_end(workspace, model_dir)
    assert differences(model_dir, unbroken) == {}
