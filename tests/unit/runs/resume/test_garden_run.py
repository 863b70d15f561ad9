"""Knowing a run directory that Model Garden's driver left, without TensorFlow."""

import pytest

from official_trainer.runs.resume import garden_run

THEIRS = "runtime: {num_gpus: 0}\ntask: {name: null}\ntrainer: {train_steps: 5}\n"


@pytest.mark.parametrize(
    ("found", "is_theirs"),
    [
        ({"params.yaml": THEIRS, "operative_config.train.gin": ""}, True),
        ({"params.yaml": THEIRS, "run.json": "{}"}, False),
        ({"params.yaml": f"# experiment: digits_mlp\n{THEIRS}"}, False),
        ({"params.yaml": "learning_rate: 0.1\n"}, False),
        ({"params.yaml": "- 1\n"}, False),
        ({"params.yaml": "task: [\n"}, False),
        ({"params.yaml": b"\xff\xfe"}, False),
        ({"notes.txt": "mine"}, False),
        ({}, False),
    ],
)
def test_a_directory_of_theirs_is_known_by_its_params_yaml(tmp_path, found, is_theirs):
    """T22: files of a user's own are never taken for a run of theirs."""
    for name, content in found.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert garden_run.is_one(str(tmp_path)) == is_theirs


def test_a_directory_that_is_not_there_is_none(tmp_path):
    assert not garden_run.is_one(str(tmp_path / "none"))


def test_devices_are_not_compared():
    """T22: their defaults are others, so the same command gives other values here."""
    paths = ("runtime.num_gpus", "runtime", "trainer.best_checkpoint_export_subdir", "trainer.train_steps", "task.x")
    assert [path for path in paths if garden_run.is_compared(path)] == ["trainer.train_steps", "task.x"]
