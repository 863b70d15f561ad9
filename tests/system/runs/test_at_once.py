"""Commands that are started at the same time on one directory: none takes the files of another for its own."""

import json

import pytest
import tensorflow as tf

from official_trainer import files
from tests import ROOT
from tests.support.forked import Command

SMOKE = ("digits_mlp", "--config_file=configs/smoke/digits_mlp.yaml")


def started(argv, folder, **options):
    folder.mkdir()
    return Command(argv, cwd=ROOT, folder=folder, **options)


def all_end_well(tmp_path, *commands):
    children = [started(argv, tmp_path / f"output-{number}") for number, argv in enumerate(commands)]
    ends = [child.wait() for child in children]
    assert [end.code for end in ends] == [0] * len(ends), [end.err for end in ends]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("at_once")
    train = ["train", *SMOKE, "--mode=train_and_eval", f"--model_dir={folder / 'run'}"]
    assert started(train, folder / "output").wait().code == 0
    return folder / "run"


def test_checks_of_one_experiment(tmp_path):
    """N10: each in a folder of its own."""
    all_end_well(tmp_path, *[["check", *SMOKE, f"--model_dir={tmp_path / 'run'}"]] * 3)
    assert not files.exists(str(tmp_path / "run")) or not files.list_dir(str(tmp_path / "run"))


def test_checks_beside_a_run(run_dir, tmp_path):
    """N10: with its values; it stays as it is."""
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    all_end_well(tmp_path, *[["check", f"--model_dir={run_dir}"]] * 2)
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("place", ["steps", "elsewhere"])
def test_exports_to_one_directory(place, run_dir, tmp_path):
    """T19: the one that comes last stays there, whole; so does what a killed one left not."""
    folder = tmp_path / "exported" if place == "elsewhere" else run_dir / "export" / "steps"
    directory = folder / "10"
    (folder / "10.writing-0123abcd" / "new").mkdir(parents=True)
    where = [f"--output_dir={directory}"] if place == "elsewhere" else []
    all_end_well(tmp_path, *[["export", f"--model_dir={run_dir}", "--checkpoint=10", *where]] * 3)
    assert [path.name for path in folder.iterdir()] == ["10"]
    assert json.loads((directory / "export.json").read_text())["step"] == 10
    assert "serving_default" in tf.saved_model.load(str(directory)).signatures
