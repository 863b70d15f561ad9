"""A run directory as a value, with TensorFlow."""

import re

import numpy as np
import pytest

from official_trainer import Program, reports
from official_trainer.lazy import keras
from tests.support import several_tasks, shuffled_runs, toy


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "mine"
    shuffled_runs.do(str(folder))
    return reports.open(folder)


@pytest.mark.parametrize("checkpoint", ["latest", "best", 80])
def test_the_model_of_a_checkpoint_is_the_one_that_was_evaluated(trained, checkpoint):
    """N29: with the averaged weights; its accuracy is that of the evaluation at this step."""
    model = trained.load_model(checkpoint)
    found = np.mean(model(toy.FEATURES).numpy().argmax(axis=-1) == toy.LABELS)
    step = trained.recorded.record["best"]["step"] if checkpoint == "best" else 80
    assert found == pytest.approx(trained.curves.get("validation", "accuracy").at(step))


def test_what_a_whole_run_left(trained):
    """N29: its checkpoints and its best one."""
    steps = [checkpoint.step for checkpoint in trained.checkpoints if checkpoint.role == "latest"]
    assert steps == [20, 40, 60, 80] == trained.curves.get("train", "training_loss").steps
    best = [checkpoint.step for checkpoint in trained.checkpoints if checkpoint.role == "best"]
    assert best == [trained.recorded.record["best"]["step"]]
    assert not any(checkpoint.note for checkpoint in trained.checkpoints)
    assert all(checkpoint.size_bytes > 1000 for checkpoint in trained.checkpoints)


def test_the_models_of_several_tasks(tmp_path):
    """N29: `sub_tasks` has one for each, with the weights that were evaluated."""
    several_tasks.do(tmp_path / "several", "trainer.train_steps=24")
    run = reports.open(tmp_path / "several")
    model = run.load_model().sub_tasks["points"]
    found = np.mean(model({"x": toy.FEATURES}).numpy().argmax(axis=-1) == toy.LABELS)
    assert found == pytest.approx(run.curves.get("validation", "points/accuracy").at(24))


def small_model():
    model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    return model


def test_the_model_of_a_program_is_in_its_code(tmp_path):
    """N29: the message says so, and the call that it names loads the weights."""
    program = Program(small_model(), str(tmp_path / "mine"))
    program.fit(np.ones([8, 4]), np.zeros([8, 3]), epochs=1, batch_size=4, verbose=0)
    with pytest.raises(reports.NoRunError, match=r"is of a Program, whose model is in the code") as raised:
        reports.open(tmp_path / "mine").load_model()
    call = re.search(r'Program\(model\)\.load_weights\(".*"\)', str(raised.value))[0]
    model = small_model()
    eval(call, {"Program": Program, "model": model})
    for mine, loaded in zip(program.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, loaded)
