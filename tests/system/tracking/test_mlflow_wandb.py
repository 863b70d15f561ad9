"""MLflow and W&B: what is asked for, what is refused, and which run of theirs a run directory is."""

import dataclasses
import importlib.util
import sqlite3
from pathlib import Path

import pytest

from official_trainer import config as configuration
from official_trainer.config import ConfigError, ExperimentConfig, TrackerConfig
from official_trainer.errors import ExitCode
from official_trainer.runs.job import Job, check_ready
from official_trainer.tracking import Outcome
from tests.support import showing, toy
from tests.support.tracking.readers import READERS, wandb_records


def needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"NOT TESTED: {', '.join(missing)} is not installed")


def job_of(*trackers, mode="train"):
    config = toy.experiment(trackers=trackers)
    resolved = configuration.resolve(config)
    return Job(experiment="toy", resolved=resolved, model_dir="/nowhere", mode=mode)


@pytest.mark.parametrize("mode", ["train", "continuous_eval"])
@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("mlflow", ["mlflow"]),
        ("mlflow", ["sqlalchemy", "alembic"]),
        ("wandb", ["wandb"]),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_the_command_that_installs_it(monkeypatch, name, missing, mode):
    """B6: before anything is started, exit code 2."""
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda n: None if n in missing else n in ("mlflow",) or found(n))
    monkeypatch.setattr("official_trainer.tasks.registry.get_task_cls", lambda *where: None)
    job = job_of(TrackerConfig.named(name)(), mode=mode)
    said = rf"trainer.trackers\[0\].type: '{name}' needs {', '.join(missing)}, which is not installed"
    with pytest.raises(ConfigError, match=said) as caught:
        check_ready(job)
    assert f"pip install 'official-trainer[{name}]'" in str(caught.value)
    assert caught.value.exit_code == ExitCode.CONFIG
    check_ready(dataclasses.replace(job, mode="eval"))


@needs("mlflow", "sqlalchemy", "alembic")
def test_the_same_tracker_twice_is_refused(monkeypatch):
    """B6: both would write to the same run; with other fields there may be two of one type."""
    monkeypatch.setattr("official_trainer.tasks.registry.get_task_cls", lambda *where: None)
    mlflow = TrackerConfig.named("mlflow")
    check_ready(job_of(mlflow(), mlflow(run_name="other")))
    with pytest.raises(ConfigError, match=r"trainer.trackers\[1\]: is there twice, as trainer.trackers\[0\] too"):
        check_ready(job_of(mlflow(), mlflow(on_error="fail")))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mlflow", "gs://b/run is a URL, where no SQLite file can be; name a server"),
        ("wandb", "where W&B cannot write"),
    ],
)
def test_a_run_directory_on_a_url_needs_a_server(place, name, message):
    place = dataclasses.replace(place, directory="gs://b/run")
    with pytest.raises(ConfigError, match=message):
        TrackerConfig.named(name)().build(place)
    other = {"mlflow": {"tracking_uri": "http://localhost:5000"}, "wandb": {"mode": "online"}}[name]
    TrackerConfig.named(name)(**other).build(place)


def test_trackers_are_read_from_yaml():
    """B6: `trainer.trackers: [{type: wandb}]`."""
    sets = ["trainer.trackers=[{type: mlflow, experiment: all, on_error: fail}, {type: wandb}]"]
    mlflow, wandb = configuration.resolve(ExperimentConfig(), sets=sets).config.trainer.trackers
    assert (mlflow.experiment, mlflow.on_error, wandb.mode) == ("all", "fail", "offline")
    with pytest.raises(ConfigError, match=r"unknown type 'wandbi'.*mlflow, prometheus, .*did you mean 'wandb'"):
        configuration.resolve(ExperimentConfig(), sets=["trainer.trackers=[{type: wandbi}]"])


@needs("mlflow", "sqlalchemy", "alembic")
def test_mlflow_continues_its_run_and_keeps_first_parameters(place, caplog):
    """B6: one run of MLflow's for a run directory, named as the config says, with how it ended."""
    import mlflow

    config = TrackerConfig.named("mlflow")(experiment="all", run_name="mine")
    for steps, status in ((20, "stopped"), (30, "done")):
        tracker = config.build(place)
        tracker.describe("digits", {"trainer.train_steps": steps, **{f"many.{i}": i for i in range(150)}})
        tracker.end(Outcome(status=status))
        tracker.close()
        client = mlflow.MlflowClient(f"sqlite:///{place.directory}/mlflow.db")
        experiment = client.get_experiment_by_name("all")
        (run,) = client.search_runs([experiment.experiment_id])
        assert run.info.status == {"stopped": "KILLED", "done": "FINISHED"}[status]
    assert run.info.run_name == "mine"
    assert run.data.params == {
        "experiment": "digits",
        "trainer.train_steps": "20",
        **{f"many.{i}": str(i) for i in range(150)},
    }
    assert caplog.messages == ["MLflow keeps the first value of a parameter; changed since: trainer.train_steps"]
    assert experiment.artifact_location == f"file://{place.directory}/mlartifacts"
    with sqlite3.connect(f"{place.directory}/mlflow.db") as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (1,)


@needs("wandb")
def test_wandb_has_one_identity_and_the_config_of_each_process(place):
    """B6: offline; the same id after a restart, so that `wandb sync` makes one run of it."""
    config = TrackerConfig.named("wandb")(project="all", run_name="mine")
    for steps in (20, 30):
        tracker = config.build(place)
        tracker.describe("digits", {"trainer.train_steps": steps})
        tracker.log("train", steps, {"loss": 1.0})
        tracker.end(Outcome())
        tracker.close()
    runs = [
        next(record.run for record in wandb_records(path) if record.HasField("run"))
        for path in sorted(Path(place.directory).glob("wandb/offline-run-*/*.wandb"))
    ]
    assert len(runs) == 2
    assert len({run.run_id for run in runs}) == 1
    assert {(run.project, run.display_name) for run in runs} == {("all", "mine")}
    said = [{item.key: item.value_json for item in run.config.update} for run in runs]
    assert [config["trainer.train_steps"] for config in said] == ["20", "30"]


@pytest.mark.parametrize(
    "name",
    [pytest.param("mlflow", marks=[needs("mlflow"), pytest.mark.full]), pytest.param("wandb", marks=needs("wandb"))],
)
def test_what_an_evaluation_returns_is_in_a_service_once(tmp_path, name):
    """B13: images, texts, tables and so on, over a restart; `eval` has a run of its own there."""
    trackers = (TrackerConfig.named(name)(on_error="fail"),)
    showing.do(tmp_path, train_steps=20, trackers=trackers)
    showing.do(tmp_path, train_steps=40, trackers=trackers)
    assert shown(tmp_path, name) == {each: [20, 40] for each in showing.MEDIA}
    showing.do(tmp_path, mode="eval", trackers=trackers)
    assert shown(tmp_path / "eval", name) == {each: [40] for each in showing.MEDIA}


def shown(directory, name):
    found = READERS[name](directory)
    return {each: sorted(step for place, step, _ in found if place == f"validation/{each}") for each in showing.MEDIA}
