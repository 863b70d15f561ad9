"""A run that trains on while another command reads one of its checkpoints: which one it takes, and what it says."""

import functools
import os
import shutil
from pathlib import Path

import pytest

from official_trainer import files
from official_trainer.checkpoints.directory import CheckpointDirectory
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.engine.checkpoint_state import CheckpointState
from official_trainer.errors import ExitCode
from official_trainer.runs import build, chosen_checkpoint, evaluate, run
from official_trainer.runs.chosen_checkpoint import DeletedError
from official_trainer.runs.predictions import MANIFEST, PredictionSettings
from tests.support.shuffled_runs import do, resolve


@pytest.fixture(scope="module")
def of_two_checkpoints(tmp_path_factory):
    """A run with checkpoints of steps 20 and 40, which tests copy, and its last results."""
    model_dir = str(tmp_path_factory.mktemp("of_two_checkpoints") / "run")
    return model_dir, do(model_dir, "trainer.train_steps=40", "trainer.export.at_end=false", mode="train_and_post_eval")


@pytest.fixture
def model_dir(of_two_checkpoints, tmp_path, monkeypatch):
    """A run that saves its checkpoint of step 40 while a command builds the model, and deletes that of step 20."""
    new = tmp_path / "run"
    shutil.copytree(of_two_checkpoints[0], new)
    (tmp_path / "later").mkdir()
    for path in new.glob("ckpt-40.*"):
        path.rename(tmp_path / "later" / path.name)

    def build_meanwhile(job, **options):
        for path in (tmp_path / "later").iterdir():
            path.rename(new / path.name)
        if not (tmp_path / "keeps").exists():
            CheckpointDirectory(str(new)).delete(20)
        return make(job, **options)

    make = build.build
    for module in (build, chosen_checkpoint, evaluate):
        monkeypatch.setattr(module, "build", build_meanwhile)
    return str(new)


def evaluated(model_dir, checkpoint):
    return do(model_dir, mode="eval", checkpoint=checkpoint)["validation_loss"]


def predicted(model_dir, checkpoint):
    out = files.join(model_dir, "predictions")
    do(model_dir, mode="predict", checkpoint=checkpoint, prediction=PredictionSettings(output_dir=out, shard_size=10))
    return files.read_json(files.join(out, MANIFEST))["settings"]["checkpoint"]


def exported(model_dir, checkpoint):
    return Path(run.export("toy_run", resolve(), model_dir=model_dir, checkpoint=checkpoint)).name


def loaded(model_dir, checkpoint):
    return [value.tolist() for value in run.model_of("toy_run", resolve(), model_dir=model_dir).get_weights()]


READERS = [evaluated, predicted, exported, loaded]
parametrized = functools.partial(pytest.mark.parametrize, "reader")


@parametrized(READERS)
def test_the_latest_is_chosen_again_once_the_model_is_built(of_two_checkpoints, model_dir, reader):
    """N14: the checkpoint that was the newest at the start of the command is gone by then."""
    whole, metrics = of_two_checkpoints
    read = reader(model_dir, "latest")
    assert committed_steps(model_dir) == (40,)
    if reader is evaluated:
        assert read == pytest.approx(metrics["validation_loss"], rel=1e-6)
    else:
        assert read == (loaded(whole, "40") if reader is loaded else {predicted: 40, exported: "40"}[reader])


@parametrized(READERS[:3])
def test_a_number_that_is_gone_by_then_is_said_and_may_be_started_again(model_dir, reader):
    """N6, N14: exit code 75, and why."""
    message = (
        r"ckpt-20 was deleted before it was read: its run trains on, and keeps only its newest checkpoints "
        r"\(trainer\.max_to_keep\) and its best ones\. Start this command again, with --checkpoint=latest, =best or a "
        r"step that is saved$"
    )
    with pytest.raises(DeletedError, match=message) as caught:
        reader(model_dir, "20")
    assert caught.value.exit_code == ExitCode.RETRY


def test_a_checkpoint_that_is_deleted_while_it_is_read_is_said(model_dir, monkeypatch):
    """N6, N14: also the newest."""

    def load_weights(state, directory, step):
        CheckpointDirectory(directory).delete(step)
        load(state, directory, step)

    load = CheckpointState.load_weights
    monkeypatch.setattr(CheckpointState, "load_weights", load_weights)
    with pytest.raises(DeletedError, match=r"ckpt-40 was deleted before it was read"):
        evaluated(model_dir, "latest")


@pytest.mark.parametrize("is_kept", [True, False], ids=["there", "gone"])
def test_predictions_that_are_continued_stay_those_of_their_checkpoint(model_dir, tmp_path, is_kept):
    """N18: rows of two checkpoints never come together."""
    (tmp_path / "keeps").touch()
    (tmp_path / "later").rename(tmp_path / "aside")
    (tmp_path / "later").mkdir()
    predicted(model_dir, "20")
    out = files.join(model_dir, "predictions")
    os.remove(sorted(Path(out).glob("predictions-*"))[-1])
    (tmp_path / "later").rmdir()
    (tmp_path / "aside").rename(tmp_path / "later")
    if is_kept:
        assert predicted(model_dir, "latest") == 20
        return
    (tmp_path / "keeps").unlink()
    with pytest.raises(DeletedError, match=r"ckpt-20 was deleted before it was read"):
        predicted(model_dir, "latest")
