"""A run directory as a value, with TensorFlow, pandas and a notebook."""

import nbformat
import numpy as np
import pandas
import pytest
from nbclient import NotebookClient

from official_trainer import runs
from tests import ROOT
from tests.support import shuffled_runs, toy
from tests.support.reports import kinds


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "mine"
    shuffled_runs.do(str(folder))
    return runs.open(folder)


def test_metrics_are_a_data_frame(trained):
    """N29: of pandas, with times in UTC."""
    metrics = trained.metrics
    assert isinstance(metrics, pandas.DataFrame)
    losses = metrics[(metrics.split == "train") & (metrics.name == "training_loss")]
    assert [*losses.step] == [20, 40, 60, 80]
    assert str(metrics.time.dt.tz) == "UTC"


@pytest.mark.parametrize("checkpoint", ["latest", "best", 80])
def test_the_model_of_a_checkpoint_is_the_one_that_was_evaluated(trained, checkpoint):
    """N29: with the averaged weights; its accuracy is that of the evaluation at this step."""
    model = trained.load_model(checkpoint)
    found = np.mean(model(toy.FEATURES).numpy().argmax(axis=-1) == toy.LABELS)
    step = trained.best.step if checkpoint == "best" else 80
    assert found == pytest.approx(trained.curves.get("validation", "accuracy").at(step))


def test_what_a_whole_run_left(trained):
    """N29: its checkpoints, its best one and its export."""
    assert [each.step for each in trained.checkpoints if each.kind == "latest"] == [20, 40, 60, 80]
    assert trained.best.checkpoint is not None
    assert [each.step for each in trained.exports] == [80]
    assert all(not each.note for each in trained.checkpoints)


CELL = """
import json, time
from official_trainer import runs

def pause(seconds):
    with open("run.json") as file:
        content = json.load(file)
    with open("run.json", "w") as file:
        json.dump({**content, "status": "done"}, file)

time.sleep = pause
print(runs.open(".").attach().status)
"""


def test_live_curves_in_a_notebook(tmp_path, monkeypatch):
    """N29: one picture, which is replaced while the run goes on, until it ends."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    kinds.running(tmp_path / "mine")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    place = {"metadata": {"path": str(tmp_path / "mine")}}
    executed = NotebookClient(notebook, timeout=120, resources=place).execute()
    picture, said = executed.cells[0].outputs
    assert "mine: done, step 20 of 40" in picture.data["text/html"]
    assert picture.data["text/html"].count("<polyline") == 3
    assert said.text == "done\n"
