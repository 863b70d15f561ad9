"""Two processes: actions that change weights in both, and trees that all processes gather."""

import json

import pytest

from tests.support.chaos.runs import Variant
from tests.support.distributed.workers import argv_of, run_to_end
from tests.support.forked import run_command
from tests.support.runs import bits, rows

SETS = (
    "task.gathers=true",
    "trainer.train_steps=24",
    "trainer.validation_interval=12",
    "trainer.export.at_end=false",
    "trainer.actions=[{type: replica_integrity, when: {every: 12}}]",
)
LAST = 24


def do(workspace, model_dir, *sets):
    run_to_end(workspace, model_dir, *SETS, *sets, experiment="digits_collected")
    return model_dir


@pytest.fixture(scope="module")
def of_two(workspace, tmp_path_factory):
    """A run of two workers from its beginning to its end."""
    return do(workspace, tmp_path_factory.mktemp("gathered") / "run")


def test_new_values_are_assigned_in_every_process(of_two):
    """B12: weights and batch-norm statistics; an action that compares them has found no difference afterwards."""
    record = json.loads((of_two / "run.json").read_text())
    assert (record["status"], record["results"]["Prune"]["zeros"] > 100) == ("done", True)


@pytest.mark.full
def test_new_values_are_those_of_two_replicas(workspace, of_two, tmp_path):
    """B12: bit by bit, of one process."""
    argv = argv_of(
        workspace,
        tmp_path / "run",
        *SETS,
        "runtime.distribution_strategy=mirrored",
        experiment="digits_collected",
        variant=Variant("mirrored2"),
    )
    alone = run_command(argv, cwd=workspace, folder=tmp_path)
    assert alone.code == 0, alone.err
    assert bits(f"{of_two}/ckpt-{LAST}") == bits(f"{tmp_path}/run/ckpt-{LAST}")
    said = json.loads((tmp_path / "run" / "run.json").read_text())["results"]["Prune"]
    assert said["zeros"] > 100
    assert said["said"] == "1 process"


def test_all_processes_gather_a_tree(of_two):
    """B15: in each evaluation; an action, which only the chief runs, is told where to do it."""
    found = [row["processes"] for row in rows(of_two) if row["split"] == "validation"]
    assert found == [2.0, 2.0]
    result = json.loads((of_two / "run.json").read_text())["results"]["Prune"]
    assert "trees.gather is called by the chief alone, as an action is" in result["said"]
