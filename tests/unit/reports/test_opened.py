"""A run directory as a value in Python, without TensorFlow."""

import dataclasses
import os
import sys

import pytest

from official_trainer import reports
from official_trainer.reports import opened
from tests.support.reports import kinds


@pytest.fixture
def make(tmp_path):
    def make(name):
        kinds.KINDS[name](tmp_path / name)
        return reports.open(tmp_path / name, now_seconds=kinds.NOW)

    return make


@pytest.mark.parametrize(
    ("directory", "name"),
    [("/model", "model"), ("/trials/run", "run"), ("/trials/3/run", "trials/3"), ("/s/trials/3/run/", "trials/3")],
)
def test_the_name_of_a_run(make, directory, name):
    """N29: a volume of a container is often right below the root."""
    recorded = dataclasses.replace(make("done").recorded, directory=directory)
    assert opened.OpenedRun(recorded).name == name


def test_what_a_run_has(make):
    """N29: status, config with its origins, best, record and metrics of a run; TensorFlow is not imported."""
    run = make("done")
    assert (run.name, run.status, run.notes) == ("done", "done", ())
    assert run.config["trainer.train_steps"] == 40
    assert run.config["task.model.mlp.hidden"] == [8]
    assert run.config.origin("runtime.seed") == "--set"
    assert run.config.origin("task.model.type") == ""
    assert run.config.get("none") is None
    assert run.config.section("task.model") == {"type": "mlp", "mlp.hidden": [8]}
    assert {"trainer.train_steps", "runtime.seed"} < set(run.config)
    assert run.best == opened.Best(metric="accuracy", value=kinds.accuracy(1, 40), direction="higher", step=40)
    assert run.record["devices"] == ["/device:CPU:0"]
    assert run.curves.get("validation", "accuracy").steps == [10, 20, 30, 40]
    assert repr(run) == f"<run {run.directory}: done at step 40>"
    assert "tensorflow" not in sys.modules


def test_metrics_without_pandas(make, monkeypatch):
    """N29: a dict of columns where pandas is not installed."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    metrics = make("done").metrics
    assert [*metrics] == ["step", "time", "split", "name", "value"]
    assert len(metrics["step"]) == len(metrics["value"]) > 30


def test_checkpoints_and_what_is_wrong_with_them(make):
    """N29: those that a restart continues, the best ones, and a word about one that is not whole."""
    run = make("of_an_earlier_version")
    assert [(each.step, each.kind, each.note) for each in run.checkpoints] == [
        (12, "latest", ""),
        (18, "latest", ""),
        (11, "best", ""),
    ]
    assert run.checkpoints[0].prefix == os.path.join(run.directory, "ckpt-12")
    assert run.checkpoints[0].size_bytes > 1000
    assert run.best.checkpoint == run.checkpoints[2]
    assert run.checkpoints[2].results["accuracy"] == run.best.value
    (damaged,) = make("damaged_checkpoint").checkpoints
    assert damaged.note.startswith("damaged: ckpt-40.manifest.json")


def test_what_model_gardens_driver_left(make):
    """N29: its checkpoints, its best value and its numbers."""
    run = make("garden")
    assert run.status == "Model Garden"
    assert [(each.step, each.kind) for each in run.checkpoints] == [(40, "latest"), (30, "best")]
    assert all("without a manifest" in each.note for each in run.checkpoints)
    assert (run.best.value, run.best.step) == (0.75, 30)
    assert run.curves.get("validation", "accuracy").steps == [10, 20, 30, 40]


def test_all_runs_below_a_folder(tmp_path):
    """N29: one of each kind, with those of sweeps and of folders in folders; nothing is left out in silence."""
    kinds.make_all(tmp_path / "runs")
    found = reports.open_all(tmp_path / "runs", now_seconds=kinds.NOW)
    names = {os.path.relpath(each.directory, tmp_path / "runs") for each in found}
    several = {"sweep": [f"trials/{n}/run" for n in range(4)], "nested": ["group/one", "group/two"]}
    expected = {*kinds.KINDS, *kinds.HOSTILE} - several.keys()
    assert names == expected | {os.path.join(name, below) for name, all_below in several.items() for below in all_below}
    assert {each.name for each in found} >= {"trials/0", "done"}
    assert {each.name for each in found if each.status in ("empty", "no run")} == {"empty", "no_run"}


QUIET = {
    *("done", "running", "preempted", "stalled", "stopped_early", "restarted", "with_evaluator", "by_a_rule"),
    *("of_an_earlier_version", "of_a_much_earlier_version", "of_a_later_version", "linked"),
    "damaged_checkpoint",
}
"""Kinds of which all is known; of a damaged checkpoint its own note says what is wrong."""


@pytest.mark.parametrize("kind", sorted(kinds.KINDS.keys() - {"sweep", "nested", "no_run", "empty"}))
def test_each_kind_of_directory_has_all_parts_and_a_word_about_what_is_not_known(make, kind):
    """N29: no part fails, whatever is in the directory."""
    run = make(kind)
    assert run.status
    for part in (run.metrics, run.config, run.checkpoints, run.record):
        assert len(part) >= 0
    assert run.best is None or run.best.metric
    assert (kind not in QUIET) == bool(run.notes), run.notes


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("donn", "there is no folder donn; did you mean done?"),
        ("", "the name of the run directory is empty: is a variable not set?"),
        ("gs://bucket/run", "gs://bucket/run: only local run directories are read; mount the bucket, or copy the run"),
        ("no_run", "no_run holds no run, but notes.md; `reports.open_all` finds those in folders below it"),
        ("empty", "empty holds no run, but nothing; `reports.open_all` finds those in folders below it"),
        ("done/run.json", "done/run.json cannot be listed: Not a directory; name a run directory"),
    ],
)
def test_what_is_not_a_run(tmp_path, monkeypatch, path, message):
    """N29: the message says what is there instead."""
    monkeypatch.chdir(tmp_path)
    for name in ("done", "no_run", "empty"):
        kinds.KINDS[name](tmp_path / name)
    with pytest.raises(reports.NoRunError) as caught:
        reports.open(path)
    assert str(caught.value) == message


def test_no_folder_of_runs():
    """N29: also for a table."""
    with pytest.raises(reports.NoRunError, match="there is no folder nowhere"):
        reports.open_all("nowhere")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("trainer.train_stepz", "has no field trainer.train_stepz; did you mean trainer.train_steps?"),
        ("task.model", "has no field task.model; it is a section, with task.model.type"),
        ("zzz", "has no field zzz$"),
    ],
)
def test_a_field_that_is_not_there(make, path, message):
    """N29: the nearest one is named."""
    with pytest.raises(reports.NoRunError, match=message.replace("?", r"\?")):
        make("done").config[path]


def test_a_model_of_an_experiment_that_is_not_known(make):
    """N29: without the name of an experiment no model can be built."""
    with pytest.raises(reports.NoRunError, match="does not say which experiment it is of"):
        make("garden").load_model()
