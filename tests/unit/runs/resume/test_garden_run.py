"""Knowing a run directory that Model Garden's driver left, without TensorFlow."""

from official_trainer.runs.resume import garden_run

THEIRS = "runtime: {num_gpus: 0}\ntask: {name: null}\ntrainer: {train_steps: 5}\n"


DIRECTORIES = [
    ({"params.yaml": THEIRS, "operative_config.train.gin": ""}, True),
    ({"params.yaml": THEIRS, "run.json": "{}"}, False),
    ({"params.yaml": f"# experiment: digits_mlp\n{THEIRS}"}, False),
    ({"params.yaml": "learning_rate: 0.1\n"}, False),
    ({"params.yaml": "- 1\n"}, False),
    ({"params.yaml": "task: [\n"}, False),
    ({"params.yaml": b"\xff\xfe"}, False),
    ({"notes.txt": "mine"}, False),
    ({}, False),
]


def test_a_directory_of_theirs_is_known_by_its_params_yaml(tmp_path):
    """T22: files of a user's own are never taken for a run of theirs; nor is a directory that is not there."""
    for number, (content, is_theirs) in enumerate(DIRECTORIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        assert garden_run.is_one(str(folder)) == is_theirs, content
    assert not garden_run.is_one(str(tmp_path / "none"))


def test_devices_are_not_compared():
    """T22: their defaults are others, so the same command gives other values here."""
    paths = ("runtime.num_gpus", "runtime", "trainer.best_checkpoint_export_subdir", "trainer.train_steps", "task.x")
    assert [path for path in paths if garden_run.is_compared(path)] == ["trainer.train_steps", "task.x"]
