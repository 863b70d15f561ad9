"""A run directory as a value in Python, without TensorFlow."""

import os
import sys

import pytest

from official_trainer import reports
from tests.support.reports import kinds


@pytest.fixture
def make(tmp_path):
    def make(name):
        kinds.KINDS[name](tmp_path / name)
        return reports.open(tmp_path / name, now_seconds=kinds.NOW)

    return make


def test_what_a_run_has(make):
    """N29: status, config with its origins, best, record and metrics of a run; TensorFlow is not imported."""
    run = make("done")
    assert (run.name, run.status, run.notes) == ("done", "done", [])
    assert run.config["trainer.train_steps"] == 40
    assert run.config["task.model.mlp.hidden"] == [8]
    assert run.origin("runtime.seed") == "--set"
    assert run.origin("task.model.type") == ""
    assert {"trainer.train_steps", "runtime.seed"} < set(run.config)
    assert (run.best, run.recorded.metric, run.recorded.direction) == (kinds.accuracy(1, 40), "accuracy", "higher")
    assert run.recorded.record["devices"] == ["/device:CPU:0"]
    assert run.curves.get("validation", "accuracy").steps == [10, 20, 30, 40]
    assert repr(run) == f"<run {run.directory}: done at step 40>"
    assert "tensorflow" not in sys.modules


def test_metrics_are_a_long_table(make):
    """N29: every number of the final history is a row of a DataFrame."""
    metrics = make("done").metrics
    assert [*metrics] == ["step", "split", "name", "value"]
    accuracies = metrics[(metrics["split"] == "validation") & (metrics["name"] == "accuracy")]
    assert dict(zip(accuracies["step"], accuracies["value"], strict=True))[20] == kinds.accuracy(1, 20)
    assert make("without_metrics").metrics.empty


def test_checkpoints_and_what_is_wrong_with_them(make):
    """N29: a word about one that is not whole, and those of Model Garden's driver, which have no manifest."""
    (damaged,) = make("damaged_checkpoint").checkpoints
    assert damaged.note.startswith("damaged: ckpt-40.manifest.json")
    run = make("garden")
    assert run.status == "done"
    assert [(checkpoint.step, checkpoint.role) for checkpoint in run.checkpoints] == [(40, "latest")]
    assert all("without a manifest" in checkpoint.note for checkpoint in run.checkpoints)
    assert run.best == 0.75
    assert run.curves.get("validation", "accuracy").steps == [10, 20, 30, 40]


def test_all_runs_below_a_folder(tmp_path):
    """N29: one of each kind, with those of sweeps and of folders in folders; nothing is left out in silence."""
    kinds.make_all(tmp_path / "runs")
    runs = reports.open_all(tmp_path / "runs", now_seconds=kinds.NOW)
    names = {os.path.relpath(run.directory, tmp_path / "runs") for run in runs}
    several = {"sweep": [f"trials/{n}/run" for n in range(4)], "nested": ["group/one", "group/two"]}
    expected = {*kinds.KINDS, *kinds.HOSTILE} - several.keys()
    assert names == expected | {os.path.join(name, below) for name, all_below in several.items() for below in all_below}
    assert {run.name for run in runs} >= {"sweep/trials/0", "done"}
    assert {run.name for run in runs if run.status is None} == {"empty", "no_run"}


def test_all_kinds_of_directories_have_all_parts_and_a_word_about_what_is_not_known(make):
    """N29: no part fails, whatever is in the directory."""
    complete = {"done", "running", "stopped", "restarted", "with_evaluator", "by_a_rule"}
    for word in kinds.KINDS.keys() - {"sweep", "nested", "no_run", "empty"}:
        run = make(word)
        for part in (run.metrics, run.config, run.checkpoints, run.recorded.record, run.status or ""):
            assert len(part) >= 0
        # Of a damaged checkpoint its own note says what is wrong.
        assert (word not in complete | {"damaged_checkpoint"}) == bool(run.notes), (word, run.notes)


def test_what_is_not_a_run(tmp_path, monkeypatch):
    """N29: the message says what is there instead."""
    monkeypatch.chdir(tmp_path)
    for name in ("done", "no_run", "empty"):
        kinds.KINDS[name](tmp_path / name)
    other = "holds no run, but {}; `reports.open_all` finds those in folders below it"
    for path, message in {
        "donn": "there is no folder donn; did you mean done?",
        "": "the name of the run directory is empty: is a variable not set?",
        "gs://b/run": "gs://b/run: only local run directories are read; mount the bucket, or copy the run",
        "no_run": f"no_run {other.format('notes.md')}",
        "empty": f"empty {other.format('nothing')}",
        "done/run.json": "done/run.json cannot be listed: Not a directory; name a run directory",
    }.items():
        with pytest.raises(reports.NoRunError) as caught:
            reports.open(path)
        assert str(caught.value) == message


def test_a_model_of_an_experiment_that_is_not_known(make):
    """N29: without the name of an experiment no model can be built."""
    with pytest.raises(reports.NoRunError, match="does not say which experiment it is of"):
        make("garden").load_model()
