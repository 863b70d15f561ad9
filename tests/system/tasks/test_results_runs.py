"""What an evaluation returns beside numbers, and the rule of a user for which of two is better, in whole runs."""

import json
from pathlib import Path

import pytest

from official_trainer import config as configuration
from official_trainer.actions.checkpoint import CheckpointConfig
from official_trainer.actions.early_stopping import EarlyStoppingConfig
from official_trainer.actions.schedule import ActionError
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.engine.evaluation import MonitoredMetricError
from official_trainer.tracking.jsonl import JsonlTracker, read_rows
from tests.support import jobs, several_tasks
from tests.support.cases import cases
from tests.support.showing import MEDIA, ShowingConfig, do, resolve, showing
from tests.support.tracking.readers import READERS


def shown(model_dir, folder="validation", names=MEDIA):
    """The steps of each of `names` in TensorBoard's files."""
    found = READERS["tensorboard"](Path(model_dir))
    return {name: sorted(step for place, step, _ in found if place == f"{folder}/{name}") for name in names}


class Killed(BaseException):
    """The process is gone."""


def killed_at(monkeypatch, step, *, before_row):
    """Ends the process around the row of an evaluation."""
    log = JsonlTracker.log

    def die(self, split, at, values):
        if (split, at) == ("validation", step) and before_row:
            raise Killed
        log(self, split, at, values)
        if (split, at) == ("validation", step):
            raise Killed

    return monkeypatch.setattr(JsonlTracker, "log", die)


# Media.


def test_everything_that_an_evaluation_returns_is_written(tmp_path):
    """B13, T24: images, texts, histograms, tables and samples at each evaluation; rows hold the numbers alone."""
    metrics = do(tmp_path)
    assert shown(tmp_path) == {name: [20, 40] for name in MEDIA}
    assert {"mean_label", "quality/right", "accuracy"} <= metrics.keys()
    assert not MEDIA & metrics.keys()
    (row,) = [
        row for row in read_rows(f"{tmp_path}/metrics.jsonl") if (row["step"], row["split"]) == (40, "validation")
    ]
    assert {"quality/right", "quality/cost"} <= row.keys()
    assert not MEDIA & row.keys()


@pytest.mark.parametrize("before_row", cases([True, False], True))
def test_what_is_shown_is_there_once_after_a_restart(tmp_path, monkeypatch, before_row):
    """B13, N15: also where the process died after the images and before the row."""
    with monkeypatch.context() as patch:
        killed_at(patch, 20, before_row=before_row)
        with pytest.raises(Killed):
            do(tmp_path)
    assert shown(tmp_path)["pictures/0"] == [20]
    do(tmp_path)
    assert shown(tmp_path) == {name: [20, 40] for name in MEDIA}


def test_the_terminal_says_what_there_is(tmp_path, capsys):
    """B13: the numbers in one line, and how many images and such in another."""
    jobs.run("showing", resolve(train_steps=20), mode="train_and_eval", model_dir=str(tmp_path))
    assert "validation @ 20: 2 tables, 4 images, 1 text, 1 histogram\n" in capsys.readouterr().out


def test_a_best_checkpoint_and_texts_get_on_together(tmp_path):
    """B13, T11: what is not a number is left out of the best checkpoint's record."""
    metrics = do(tmp_path, best_checkpoint_eval_metric="accuracy")
    info = json.loads(Path(tmp_path, "best", "info.json").read_text())
    assert info["accuracy"] == metrics["best_accuracy"]
    assert info["quality"].keys() == {"right", "cost", "sample"}
    assert not info.keys() & {"note", "pictures/0", "spread"}


def test_a_text_cannot_be_monitored(tmp_path):
    """B13: message, before training."""
    with pytest.raises(MonitoredMetricError, match=r"does not produce 'note'; it produces .*accuracy.*quality\|cost"):
        do(tmp_path, best_checkpoint_eval_metric="note")


def test_eval_writes_images_into_a_folder_of_its_own(tmp_path, capsys):
    """B13: the run's own files stay as they are."""
    do(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    metrics = do(tmp_path, mode="eval")
    assert {path: path.read_bytes() for path in before} == before
    new = [path for path in tmp_path.rglob("*") if path.is_file() and path not in before]
    assert {path.relative_to(tmp_path).parts[0] for path in new} == {"eval"}
    assert shown(tmp_path / "eval") == {name: [40] for name in MEDIA}
    assert not MEDIA & metrics.keys()
    jobs.run("showing", resolve(), mode="eval", model_dir=str(tmp_path))
    out = capsys.readouterr().out
    assert f"images, texts and such: {tmp_path}/eval\n" in out
    assert "validation @ 40: 2 tables, 4 images, 1 text, 1 histogram\n" in out


def test_a_continuous_evaluator_writes_images_where_those_of_the_run_are(tmp_path):
    """B13: each checkpoint once."""
    do(tmp_path, mode="train")
    do(tmp_path, mode="continuous_eval")
    do(tmp_path, mode="continuous_eval")
    assert shown(tmp_path) == {name: [20, 40] for name in MEDIA}


def test_each_of_several_validation_sets_has_images(tmp_path):
    """B13, B3: under its name."""
    config = configuration.MultiEvalExperimentConfig(
        task=showing().task,
        trainer=resolve(train_steps=20).config.trainer,
        eval_tasks=(several_tasks.routine("dev", ShowingConfig, 10), several_tasks.routine("test", ShowingConfig, 10)),
    )
    jobs.do("showing", tmp_path, config=config)
    names = {f"{each}{name}" for each in ("", "dev/", "test/") for name in MEDIA}
    assert shown(tmp_path, names=names) == {name: [20] for name in names}


# The rule of a user.


def best_of(model_dir):
    return json.loads(Path(model_dir, "run.json").read_text())["best"]


def test_own_results_say_which_checkpoint_is_the_best(tmp_path, capsys):
    """B2, B13: by several numbers, strictly, and NaN is never best; `eval` and a lowered limit know it too."""
    settings = {"best_checkpoint_eval_metric": "quality", "best_checkpoint_max_to_keep": 2}
    jobs.run("showing", resolve(train_steps=100, **settings), mode="train_and_eval", model_dir=str(tmp_path))
    assert best_of(tmp_path) == {"metric": "quality", "value": {"right": 0.5, "cost": 2.0}, "step": 40}
    assert "best quality right 0.5, cost 2 at step 40" in capsys.readouterr().out
    assert committed_steps(str(tmp_path / "best")) == (40, 80)
    metrics = jobs.run("showing", resolve(**settings), mode="eval", model_dir=str(tmp_path), checkpoint="best")
    assert metrics["quality/cost"] == 2.0
    do(tmp_path, train_steps=100, **settings | {"best_checkpoint_max_to_keep": 1})
    assert committed_steps(str(tmp_path / "best")) == (40,)


@pytest.mark.parametrize(("step", "before_row"), cases([(40, True), (60, False)], (40, True)))
def test_a_restart_compares_with_the_best_of_an_earlier_process(tmp_path, monkeypatch, step, before_row):
    """B13: the numbers of the best checkpoint are what is left of it, and the rule gets no more in any process."""
    actions = (EarlyStoppingConfig(monitor="quality", patience=3), CheckpointConfig(monitor="quality", max_to_keep=1))
    settings = {"train_steps": 100, "best_checkpoint_eval_metric": "quality", "actions": actions}
    with monkeypatch.context() as patch:
        killed_at(patch, step, before_row=before_row)
        with pytest.raises(Killed):
            do(tmp_path, **settings)
    do(tmp_path, **settings)
    assert best_of(tmp_path) == {"metric": "quality", "value": {"right": 0.5, "cost": 2.0}, "step": 40}
    assert committed_steps(str(tmp_path / "best")) == (40,)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["00000040"]
    stopped = json.loads(Path(tmp_path, "run.json").read_text())["stopped_early"]
    assert (
        stopped == "early stopping: quality has not improved in 3 evaluations; its best is right 0.5, cost 2 (step 40)"
    )


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (EarlyStoppingConfig(monitor="quality", mode="max"), "mode=max is for one number"),
        (EarlyStoppingConfig(monitor="quality", min_delta=0.1, baseline=1.0), r"min_delta=0\.1, baseline=1\.0 is"),
        (CheckpointConfig(monitor="quality", initial_value_threshold=0.5), r"initial_value_threshold=0\.5 is for one"),
    ],
)
def test_a_limit_for_one_number_is_refused_with_a_rule(tmp_path, action, said):
    """B13: message."""
    rule = "the task declares a rule for the numbers inside 'quality'"
    with pytest.raises(ActionError, match=f"{said}.* {rule}"):
        do(tmp_path, actions=(action,))
