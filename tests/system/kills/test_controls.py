"""The comparison of the kill tests fails when one item of state is left out, and each epoch's edge is no edge."""

import functools
import shutil

import pytest

from tests.support.cases import cases
from tests.support.chaos import inside
from tests.support.chaos.campaign import Tally, newest
from tests.support.chaos.compare import differences, ids
from tests.support.chaos.runs import SOURCES, STRATEGIES, Variant
from tests.support.runs import bits

STOP_STEP = 18  # three steps after a summary, four before the end of the first epoch
STOPPED = 143
STEP_BY_STEP = "trainer.steps_per_loop=1"
NO_EXPORTS = ("trainer.export.at_end=false", "trainer.export.best=false")


def stopped(workspace, model_dir, variant, step, *sets, mode="train_and_eval"):
    """Runs until `step` and stops there with SIGTERM, which saves."""
    first = functools.partial(inside.stop_after_step, step)
    completed = workspace.start(model_dir, variant, STEP_BY_STEP, *sets, mode=mode, first=first).wait()
    assert completed.code == STOPPED, completed.err
    assert newest(model_dir) == step


@pytest.fixture(scope="session")
def half(workspace):
    """A run that was stopped in the middle; tests copy it."""
    model_dir = workspace.folder / "half"
    with workspace.once("half") as done:
        if not done.exists():
            stopped(workspace, model_dir, Variant(), STOP_STEP, *NO_EXPORTS)
            done.touch()
    return model_dir


def resumed(workspace, half, forget, folder):
    """Returns how a copy of `half` differs from an unbroken run when a process continues it that forgets."""
    model_dir = folder / "run"
    shutil.copytree(half, model_dir)
    shutil.copy(f"{half}.ids", f"{model_dir}.ids")
    completed = workspace.start(model_dir, Variant(), STEP_BY_STEP, *NO_EXPORTS, first=forget).wait()
    assert completed.code == 0, completed.err
    return differences(model_dir, workspace.unbroken(Variant(), *NO_EXPORTS).model_dir)


CONTROLS = {
    "random streams": (inside.forget_random, {"variables"}),
    "data position": (inside.forget_position, {"variables", "ids"}),
    "optimizer slots": (inside.forget_slots, {"variables"}),
    "metrics": (inside.forget_metrics, {"rows", "events"}),
    "loss": (inside.forget_loss, {"rows", "events"}),
    "averaged weights": (inside.forget_average, {"variables", "best"}),
}


@pytest.mark.parametrize("item", cases(CONTROLS, "random streams", "data position", "optimizer slots"))
def test_a_run_that_forgets_is_found_out(item, workspace, half, tmp_path, tallied):
    """N1, N2: leave one item of state out, and the comparison says so."""
    forget, kinds = CONTROLS[item]
    found = resumed(workspace, half, forget, tmp_path)
    tallied(Tally(trials=1, found_out=len(found) > 0))
    assert kinds <= found.keys(), found


def test_a_run_that_forgets_nothing_is_not(workspace, half, tmp_path):
    """N1: the same stop and restart, with nothing left out."""
    assert resumed(workspace, half, None, tmp_path) == {}


EDGES = (1, 21, 22, 23, 43, 47)
"""After the first step; before, at and after the first epoch's end; before the second's; before the last step."""

BATCHES = {"arrays": 20, "records": 16, "stream": 16}  # an epoch of 352 ends inside a batch of 20, at one of 16


VARIANTS = [(strategy, source, EDGES) for strategy in STRATEGIES for source in SOURCES]


@pytest.mark.parametrize(
    ("strategy", "source", "edges"), cases([("off", "stream", EDGES[::2]), *VARIANTS], ("off", "stream", EDGES[::2]))
)
def test_every_edge_of_an_epoch(strategy, source, edges, workspace, tmp_path, tallied):
    """N1: stopped and started there by fresh processes, a run sees the same examples, each where it was."""
    edge_variant = Variant(strategy, source)
    sets = [*NO_EXPORTS, f"task.train_data.global_batch_size={BATCHES[edge_variant.source]}"]
    model_dir = tmp_path / "run"
    for step in edges:
        stopped(workspace, model_dir, edge_variant, step, *sets, mode="train")
    completed = workspace.start(model_dir, edge_variant, *sets, mode="train").wait()
    assert completed.code == 0, completed.err
    unbroken = workspace.unbroken(edge_variant, *sets, mode="train").model_dir
    tallied(Tally(trials=1))
    assert ids(model_dir) == ids(unbroken)
    assert trained(model_dir) == trained(unbroken)


def trained(model_dir):
    return bits(model_dir / f"ckpt-{newest(model_dir)}")
