"""Commands that are started at the same time on one directory: none takes the files of another for its own."""

import json

import pytest
import tensorflow as tf

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


def test_checks_beside_each_other_and_a_run(run_dir, tmp_path):
    """N10: each in a folder of its own; the run stays as it is."""
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    new = tmp_path / "run"
    all_end_well(tmp_path, *[["check", *SMOKE, f"--model_dir={new}"]] * 2, ["check", f"--model_dir={run_dir}"])
    assert not new.exists() or not [*new.iterdir()]
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


def test_exports_to_one_directory(run_dir, tmp_path):
    """T19: the one that comes last stays there, whole; so does what a killed one left not."""
    folder = run_dir / "export" / "steps"
    (folder / "10.writing-0123abcd" / "new").mkdir(parents=True)
    all_end_well(tmp_path, *[["export", f"--model_dir={run_dir}", "--checkpoint=10"]] * 2)
    assert [path.name for path in folder.iterdir()] == ["10"]
    assert json.loads((folder / "10" / "export.json").read_text())["step"] == 10
    assert "serving_default" in tf.saved_model.load(str(folder / "10")).signatures
