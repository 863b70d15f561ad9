"""A run that trains on, and deletes, while another command reads one of its checkpoints."""

import shutil

import pytest

from official_trainer.checkpoints.directory import CheckpointDirectory
from official_trainer.engine.checkpoint_state import CheckpointState
from official_trainer.errors import ExitCode
from official_trainer.runs import build, chosen_checkpoint, evaluate
from official_trainer.runs.chosen_checkpoint import DeletedError
from official_trainer.runs.predictions import PredictionSettings
from tests.support import jobs
from tests.support.cases import cases
from tests.support.shuffled_runs import do, resolve


@pytest.fixture(scope="module")
def of_twenty_steps(tmp_path_factory):
    """A run with a checkpoint of step 20, which tests copy."""
    model_dir = str(tmp_path_factory.mktemp("of_twenty_steps") / "run")
    do(model_dir, "trainer.train_steps=20", "trainer.export.at_end=false", mode="train")
    return model_dir


@pytest.fixture
def model_dir(of_twenty_steps, tmp_path, monkeypatch):
    """A run that deletes its checkpoint while a command builds the model."""
    copy = str(shutil.copytree(of_twenty_steps, tmp_path / "run"))

    def build_meanwhile(job, **options):
        CheckpointDirectory(copy).delete(20)
        return make(job, **options)

    make = build.build
    for module in (build, chosen_checkpoint, evaluate):
        monkeypatch.setattr(module, "build", build_meanwhile)
    return copy


def evaluated(model_dir, checkpoint):
    do(model_dir, mode="eval", checkpoint=checkpoint)


def predicted(model_dir, checkpoint):
    settings = PredictionSettings(output_dir=f"{model_dir}/predictions", shard_size=10)
    do(model_dir, mode="predict", checkpoint=checkpoint, prediction=settings)


def exported(model_dir, checkpoint):
    jobs.export("toy_run", resolve(), model_dir=model_dir, checkpoint=checkpoint)


def loaded(model_dir, checkpoint):
    jobs.model_of("toy_run", resolve(), model_dir=model_dir, checkpoint=checkpoint)


@pytest.mark.parametrize("reader", [evaluated, predicted, exported, loaded])
@pytest.mark.parametrize("checkpoint", cases(["latest", "20"], "latest"))
def test_a_checkpoint_that_is_gone_by_then_is_said_and_may_be_started_again(model_dir, reader, checkpoint):
    """N6, N14: exit code 75, and why."""
    message = (
        r"ckpt-20 was deleted before it was read: its run trains on, and keeps only its newest checkpoints "
        r"\(trainer\.max_to_keep\) and its best ones\. Start this command again, with --checkpoint=latest, =best or a "
        r"step that is saved$"
    )
    with pytest.raises(DeletedError, match=message) as caught:
        reader(model_dir, checkpoint)
    assert caught.value.exit_code == ExitCode.RETRY


def test_a_checkpoint_that_is_deleted_while_it_is_read_is_said(of_twenty_steps, tmp_path, monkeypatch):
    """N6, N14: after its manifest was read."""

    def load_weights(state, directory, step):
        CheckpointDirectory(directory).delete(step)
        load(state, directory, step)

    load = CheckpointState.load_weights
    monkeypatch.setattr(CheckpointState, "load_weights", load_weights)
    with pytest.raises(DeletedError, match=r"ckpt-20 was deleted before it was read"):
        evaluated(str(shutil.copytree(of_twenty_steps, tmp_path / "copy")), "latest")
