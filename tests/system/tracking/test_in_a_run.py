"""Trackers in whole runs: what a config asks for is told, and a tracker that fails costs a run nothing."""

import dataclasses
import logging
from pathlib import Path

import pytest

from official_trainer import config as configuration
from official_trainer.config import ConfigError, TrackerConfig
from official_trainer.lazy import keras
from official_trainer.tasks import registry
from official_trainer.tracking import Tracker
from official_trainer.tracking.jsonl import JsonlTracker
from official_trainer.tracking.tensorboard import TensorBoardConfig, TensorBoardTracker
from official_trainer.tracking.threads import TrackerError
from tests.support import jobs, toy
from tests.support.tracking.readers import READERS

CALLS, ROWS = [], []


class Broken(Tracker):
    """Fails whatever is asked of it."""

    def _fail(self, *args):
        CALLS.append(args)
        raise ValueError("broken")

    describe = log = publish = rewind = resume = flush = end = close = _fail


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokenConfig(TrackerConfig):
    """A tracker of the user's own."""

    def build(self, place):
        assert (place.experiment, place.name) == ("toy_tracked", "run")
        return Broken()


class Lines(Tracker):
    """A line of Python's log for each row, which it keeps too."""

    def log(self, split, step, values):
        logging.getLogger("mine").info("%s @ %d: %s", split, step, values)
        ROWS.extend(((f"{split}/{name}", step), value) for name, value in values.items())


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinesConfig(TrackerConfig):
    """A tracker of the user's own that works."""

    def build(self, place):
        ROWS.clear()
        return Lines()


class TrackedConfig(configuration.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(TrackedConfig)
class TrackedTask(toy.ToyTask):
    """The toy task."""


def resolve(*trackers, **trainer):
    base = toy.experiment(
        steps_per_loop=10, summary_interval=10, checkpoint_interval=20, validation_interval=20,
        export=configuration.ExportConfig(at_end=False), trackers=trackers,
    )  # fmt: skip
    data = configuration.DataConfig(global_batch_size=10)
    task = TrackedConfig(train_data=data, validation_data=data)
    return configuration.resolve(
        base.replace(task=task, trainer=base.trainer.replace(**{"train_steps": 40, **trainer}))
    )


def do(model_dir, *trackers, mode="train_and_eval", **trainer):
    keras.backend.clear_session()
    return jobs.run("toy_tracked", resolve(*trackers, **trainer), mode=mode, model_dir=model_dir, quiet=True)


def points(model_dir, name):
    return {(place, step): value for place, step, value in READERS[name](Path(model_dir))}


def test_a_tracker_that_always_fails_costs_the_run_nothing(model_dir, caplog):
    """B6: on_error warn, the default: the run ends in order and all other trackers have everything."""
    CALLS.clear()
    metrics = do(model_dir, BrokenConfig(), LinesConfig())
    assert "accuracy" in metrics
    said = [record.getMessage() for record in caplog.records if "trainer.trackers[0]" in record.getMessage()]
    assert said == [
        "tracker test_in_a_run (trainer.trackers[0]) failed in rewind; the run continues and counts further "
        "lost calls: ValueError: broken",
        f"tracker test_in_a_run (trainer.trackers[0]): {len(CALLS)} of {len(CALLS)} calls were lost; the first error: "
        "ValueError: broken",
    ]
    assert any(record.exc_info for record in caplog.records if record.levelno == logging.WARNING)
    rows = {key: value for key, value in points(model_dir, "jsonl").items() if isinstance(value, float)}
    rows = {key: value for key, value in rows.items() if not key[0].endswith("/time")}
    shared = {"train/training_loss": "train/loss", "validation/validation_loss": "validation/loss"}
    shared |= {place: f"train/{place}" for place, _ in rows if place.startswith("time/")}
    assert dict(ROWS) == rows and len(ROWS) == len(rows)
    board = points(model_dir, "tensorboard")
    shown = {(shared.get(place, place), step): pytest.approx(value) for (place, step), value in rows.items()}
    assert {key: board[key] for key in shown} == shown


def test_a_run_may_have_no_tensorboard_or_one_of_some_splits(model_dir, tmp_path):
    """B14: the section takes the place of what every run has; there is one."""
    do(model_dir, TensorBoardConfig(splits=()), train_steps=20)
    assert not list(Path(model_dir).rglob("*.tfevents.*"))
    assert ("train/accuracy", 20) in points(model_dir, "jsonl")
    other = str(tmp_path / "other")
    do(other, TensorBoardConfig(splits=("validation",)), train_steps=20)
    assert {path.parent.name for path in Path(other).rglob("*.tfevents.*")} == {"validation"}
    said = r"trackers\[1\].type: is the second section of type 'tensorboard'.* put the settings into one section"
    with pytest.raises(ConfigError, match=said):
        do(other, TensorBoardConfig(), TensorBoardConfig(splits=()), train_steps=40)


def test_a_sub_folder_that_is_not_allowed_ends_the_run(model_dir):
    """B14: the error of the thread is the run's, and names the section."""
    task = resolve().config.task
    config = configuration.MultiEvalExperimentConfig(
        task=task,
        trainer=resolve(TensorBoardConfig(divide_at="last", sub_folders=("dev",)), train_steps=20).config.trainer,
        eval_tasks=(configuration.TaskRoutine(task_name="far", task_config=task),),
    )
    said = (
        "tracker tensorboard failed in log of validation at step 20: .* sub-folder 'far'; trainer.trackers: sub_folders"
    )
    with pytest.raises(TrackerError, match=said):
        jobs.do("toy_tracked", model_dir, config=config)


def test_a_process_that_died_between_tensorboard_and_the_row_leaves_one_point(model_dir, monkeypatch):
    """T18, N15: the evaluation is made again, and nothing is there twice."""
    log = JsonlTracker.log

    def die(self, split, step, values):
        if (split, step) == ("validation", 20):
            raise KeyboardInterrupt
        log(self, split, step, values)

    with monkeypatch.context() as patch:
        patch.setattr(JsonlTracker, "log", die)
        with pytest.raises(KeyboardInterrupt):
            do(model_dir)
    assert ("validation/accuracy", 20) in points(model_dir, "tensorboard")
    do(model_dir)
    for name in ("jsonl", "tensorboard"):
        found = [(place, step) for place, step, _ in READERS[name](Path(model_dir))]
        assert sorted(step for place, step in found if place == "validation/accuracy") == [20, 40], name
        assert sorted(step for place, step in found if place == "train/accuracy") == [10, 20, 30, 40], name
        assert len(set(found)) == len(found), name


def test_tensorboard_has_an_evaluations_points_before_its_row_is_written(model_dir, monkeypatch):
    """N15: the row says that all else is done, though TensorBoard has a thread of its own."""
    log, flush, order = JsonlTracker.log, TensorBoardTracker.flush, []

    def logged(self, split, step, values):
        order.append(f"row {split} {step}")
        log(self, split, step, values)

    def flushed(self):
        flush(self)
        order.append("flushed")

    monkeypatch.setattr(JsonlTracker, "log", logged)
    monkeypatch.setattr(TensorBoardTracker, "flush", flushed)
    do(model_dir, train_steps=20)
    assert order[order.index("row validation 20") - 1] == "flushed"
    assert "flushed" in order[order.index("row train 20") : order.index("row validation 20") - 1]  # before the save


def test_an_evaluator_beside_training_has_files_of_its_own(model_dir):
    """N14: no two live processes write one file of rows; TensorBoard's files are those of the run."""
    do(model_dir, mode="train", train_steps=20)
    do(model_dir, mode="continuous_eval", train_steps=20)
    beside = Path(model_dir, "continuous_eval")
    assert {step for place, step in points(beside, "jsonl")} == {20}
    assert not [place for place, _ in points(model_dir, "jsonl") if place.startswith("validation")]
    assert not list(beside.rglob("*.tfevents.*"))
    assert ("validation/accuracy", 20) in points(model_dir, "tensorboard")
