"""Early stopping of runs that are killed anywhere: they stop at the same step."""

import shutil

import pytest

from official_trainer.actions.early_stopping import EarlyStoppingConfig
from official_trainer.checkpoints.manifest import committed_steps
from tests.support import runs, scripted_runs
from tests.support.cases import cases, full

SCORES = (0.5, 0.7, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0)
STOP = EarlyStoppingConfig(monitor="score", patience=3)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """An unbroken run that stops early, which tests only read."""
    model_dir = str(tmp_path_factory.mktemp("stopped") / "run")
    scripted_runs.do(model_dir, STOP, scores=SCORES)
    return model_dir


@pytest.mark.parametrize(
    ("where", "step"),
    [
        full(("training", 30)),
        full(("training", 40)),
        full(("evaluation begins", 30)),
        full(("evaluation begins", 50)),
        full(("before the row", 40)),
        ("before the row", 50),
        ("after the row", 30),  # the checkpoint of this step is older than the row
        full(("after the row", 50)),
        full(("before the save", 50)),
        full(("after the save", 30)),
        ("after the save", 50),
    ],
)
def test_a_killed_run_stops_at_the_same_step(stopped, tmp_path, monkeypatch, where, step):
    """C1, N2: the same weights and rows, whatever the checkpoint knew of; and it stays stopped."""
    scripted_runs.do_killed(monkeypatch, where, step, tmp_path / "run", STOP, scores=SCORES)
    assert runs.differences(str(tmp_path / "run"), stopped) == []
    scripted_runs.do(tmp_path / "run", STOP, scores=SCORES)
    assert runs.differences(str(tmp_path / "run"), stopped) == []


@pytest.mark.parametrize("where", cases(["evaluation begins", "before the row", "after the row"], "after the row"))
def test_the_summary_of_the_last_step_is_not_lost(tmp_path, monkeypatch, where):
    """C1: also where the checkpoint of that step was there before, and no summary was due."""
    scripted_runs.do(tmp_path / "unbroken", STOP, scores=SCORES, checkpoint_interval=50)
    with scripted_runs.killed(monkeypatch, where, 50):
        scripted_runs.do(tmp_path / "run", STOP, scores=SCORES, checkpoint_interval=50)
    assert committed_steps(f"{tmp_path}/run") == (50,)
    scripted_runs.do(tmp_path / "run", STOP, scores=SCORES, checkpoint_interval=50)
    assert runs.differences(f"{tmp_path}/run", f"{tmp_path}/unbroken") == []
    assert [row["split"] for row in runs.rows(f"{tmp_path}/run") if row["step"] == 50] == ["train", "validation"]


def evaluated(model_dir):
    return [row["step"] for row in runs.rows(model_dir) if row["split"] == "validation"]


def test_more_patience_goes_on(stopped, model_dir):
    """C1: from where the run stopped, with what it has counted."""
    shutil.copytree(stopped, model_dir)
    scripted_runs.do(model_dir, STOP.replace(patience=4), scores=(*SCORES[:5], 0.7, 0.6, 0.6))
    assert evaluated(model_dir) == [10, 20, 30, 40, 50, 60]
    scripted_runs.do(model_dir, STOP.replace(patience=50), scores=SCORES)
    assert evaluated(model_dir) == [10, 20, 30, 40, 50, 60, 70, 80]
