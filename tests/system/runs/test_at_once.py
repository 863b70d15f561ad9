"""Commands that are started at the same time on one directory: none takes the files of another for its own."""

import functools
import json
import os
import signal

import pytest
import tensorflow as tf

from official_trainer import files
from tests import ROOT
from tests.support.chaos import disk
from tests.support.forked import Child, Command
from tests.support.launch import engine
from tests.support.workspace import copy_workspace

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
    """N10: each in a folder of its own; that of one that was killed is removed by those after it."""
    disk.require()
    check = ["check", *SMOKE, f"--model_dir={tmp_path / 'run'}"]
    first = functools.partial(disk.arm, str(tmp_path / "run"), 30, -signal.SIGKILL)
    assert started(check, tmp_path / "killed", first=first).wait().code == -9
    (left,) = files.list_dir(str(tmp_path / "run"))
    assert left.startswith(".check-new-")
    all_end_well(tmp_path, check, check, check)
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


def submit():
    from official_trainer import cli
    from official_trainer.launch import targets

    targets.names, targets.get = lambda: ("scripted",), lambda name: engine.Scripted
    return cli.main(["launch", "scripted", "--profile=p.yaml", "--submit", "digits_mlp", "--model_dir=run"])


def test_submissions_of_one_job(tmp_path):
    """N20: one job is started, with its code and on record; the others are refused."""
    workspace = tmp_path / "workspace"
    copy_workspace(workspace, "experiments")
    (workspace / "p.yaml").write_text("code_as: folder\n")
    engine.install(tmp_path / "bin")
    environ = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    children = []
    for number in range(3):
        folder = tmp_path / f"output-{number}"
        folder.mkdir()
        children.append(Child(submit, cwd=workspace, folder=folder, env=environ))
    ends = [child.wait() for child in children]
    assert [end.code for end in ends].count(0) == 1, ends
    refusals = ("is starting digits-mlp-", "and has not ended (running)")
    assert all(end.code == 0 or any(refusal in end.err for refusal in refusals) for end in ends), ends
    started = [json.loads(line)[1] for line in (tmp_path / "bin" / "calls").read_text().splitlines()]
    assert started.count("start") == 1
    (job,) = (workspace / "launches").iterdir()
    assert sorted(path.name[:5] for path in job.iterdir()) == ["code-", "job.t", "launc"]
