"""A sweep in TensorBoard's HParams tab, by TensorBoard's own backend."""

import dataclasses

import pytest
from tensorboard.plugins.hparams import api_pb2

from official_trainer.sweeps import requests, tensorboard
from official_trainer.sweeps.settings import Objective
from official_trainer.sweeps.trial import Trial
from official_trainer.tracking.tensorboard import TensorBoardTracker
from tests.support.sweeps.written import RATE, SPACE, write_sweep
from tests.support.tracking.hparams import hparams_columns, hparams_tab

OBJECTIVE = Objective("accuracy", "max", "best")
HIDDEN = "task.model.mlp.hidden"
FIELDS = SPACE | {HIDDEN: "list(1, 2, int(2, 8))", "task.model.mlp.units": "choice(16, 128)"}
MLP = {"task.model.type": "mlp", RATE: 0.01, "task.model.mlp.dropout": 0.5, "task.model.mlp.units": "128"}
LAYERS = {f"{HIDDEN}[length]": 2, f"{HIDDEN}[0]": 4, f"{HIDDEN}[1]": 8}
TRIALS = [
    Trial(number=0, values=MLP | LAYERS, state="complete", value=0.75, step=200, reports=((100, 0.75), (200, 0.5))),
    Trial(number=1, values={"task.model.type": "cnn", RATE: 0.1}, state="pruned", reports=((100, 0.25),), reason="x"),
    Trial(number=2, values={"task.model.type": "cnn", RATE: 1.0}, state="failed", reason="a bug"),
    Trial(number=3, values={"task.model.type": "cnn", RATE: 2.0}),
]


def write(directory, *found):
    for trial in found:
        if trial.state is None:
            tensorboard.begin(str(directory), trial, FIELDS)
        else:
            tensorboard.end(str(directory), trial, FIELDS, OBJECTIVE)


def curves(directory, number):
    """A run of a trial, which has curves of its own and no row."""
    tracker = TensorBoardTracker(str(directory / "trials" / str(number) / "run"), describes=None)
    tracker.log("train", 100, {"training_loss": 1.0, "grad_norm": 2.0})
    tracker.log("validation", 100, {"accuracy": 0.125})
    tracker.close()


def test_a_row_has_what_was_drawn_and_the_result_that_counts(tmp_path):
    """N21: under short names, a list as one value; a trial that is pruned or has failed is a failure."""
    write(tmp_path, *TRIALS)
    for number in range(4):
        curves(tmp_path, number)
    rows = {name: (status, drawn, results) for name, _, status, drawn, results in hparams_tab(tmp_path)}
    drawn = {
        "model": "mlp",
        "initial_learning_rate": 0.01,
        "dropout": 0.5,
        "units": "128".rjust(20),
        "hidden": "[4, 8]",
    }
    assert rows == {
        "trials/0/result": (api_pb2.STATUS_SUCCESS, drawn, {":accuracy": (200, 0.75)}),
        "trials/1/result": (
            api_pb2.STATUS_FAILURE,
            {"model": "cnn", "initial_learning_rate": 0.1},
            {":accuracy": (100, 0.25)},
        ),
        "trials/2/result": (api_pb2.STATUS_FAILURE, {"model": "cnn", "initial_learning_rate": 1.0}, {}),
        "trials/3/result": (api_pb2.STATUS_UNKNOWN, {"model": "cnn", "initial_learning_rate": 2.0}, {}),
    }
    assert hparams_columns(tmp_path) == (set(drawn), {":accuracy"})


def test_choices_are_shown_as_they_are_written(tmp_path):
    """N21: integers as such, which are sorted as numbers, and not as 16.000; beside a word all are texts."""
    space = {"a": "choice(8, 16, 128)", "b": "choice(0.5, 1)", "c": "choice(1, auto)", "d": "int(1, 9)"}
    for number, values in enumerate(
        ({"a": "16", "b": "1", "c": "1", "d": 2}, {"a": "128", "b": "0.5", "c": "auto", "d": 3})
    ):
        tensorboard.begin(str(tmp_path), Trial(number=number, values=values), space)
    first, second = (row for *_, row, _ in hparams_tab(tmp_path))
    assert first == {"a": "16".rjust(20), "b": 1.0, "c": "1", "d": 2.0}
    assert second == {"a": "128".rjust(20), "b": 0.5, "c": "auto", "d": 3.0}
    assert first["a"] < second["a"]


def test_two_sweeps_and_a_run_share_one_table(tmp_path):
    """N21: of the folder above them; each trial has a row, though the sweeps have the same numbers."""
    write(tmp_path / "first", *TRIALS[:2])
    write(tmp_path / "second", *TRIALS[:2])
    tracker = TensorBoardTracker(str(tmp_path / "alone"))
    tracker.describe("digits", {"seed": 1})
    tracker.close()
    names = sorted(name for name, *_ in hparams_tab(tmp_path))
    assert names == ["alone/validation", *(f"{each}/trials/{n}/result" for each in ("first", "second") for n in (0, 1))]


def test_of_several_metrics_each_is_a_column(tmp_path):
    """N21: one that is not finite is left out, which TensorBoard could not show."""
    objective = dataclasses.replace(OBJECTIVE, others={"loss": "min", "auc": "max"})
    trial = dataclasses.replace(TRIALS[0], others={"loss": float("inf"), "auc": 0.5})
    tensorboard.end(str(tmp_path), trial, FIELDS, objective)
    ((*_, results),) = hparams_tab(tmp_path)
    assert results == {":accuracy": (200, 0.75), ":auc": (200, 0.5)}


def test_what_a_kill_has_left_is_written_again(tmp_path):
    """N21: also half of a file; a trial that is run again begins a new row."""
    write(tmp_path, dataclasses.replace(TRIALS[2], state=None), TRIALS[2])
    folder = tmp_path / "trials" / "2" / "result"
    before = hparams_tab(tmp_path)
    for name in sorted(path.name for path in folder.iterdir()):
        (folder / f"{name}.tmp-1-0123abcd").write_bytes((folder / name).read_bytes()[:50])
        (folder / name).unlink()
        write(tmp_path, TRIALS[2])
        assert hparams_tab(tmp_path) == before and len(list(folder.iterdir())) == 2
    write_sweep(tmp_path, [TRIALS[2]])
    requests.retry(str(tmp_path))
    assert not folder.exists()
    write(tmp_path, dataclasses.replace(TRIALS[2], state=None))
    ((*_, status, _, _),) = hparams_tab(tmp_path)
    assert status == api_pb2.STATUS_UNKNOWN


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_it_may_be_on_a_bucket(tmp_path, scheme):
    """N21: through TensorFlow's file systems."""
    write(f"{scheme}{tmp_path}", *TRIALS)
    assert len(hparams_tab(tmp_path)) == len(TRIALS)
