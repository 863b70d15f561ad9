"""Projects as others write them on Model Garden (`tests/support/projects`), each in processes of its own."""

import json
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from tests import ROOT
from tests.support import runs
from tests.support.forked import Command

PROJECTS = ROOT / "tests/support/projects"


def python(folder, *words):
    """Returns what `python WORDS…` prints in `folder`, with no other package of tests on the path than the folder's."""
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(folder)}
    options = {"capture_output": True, "text": True, "timeout": 400, "check": False}
    ended = subprocess.run([sys.executable, *words], cwd=folder, env=environ, **options)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    return ended.stdout


def trainer(folder, *argv, **environment):
    """Returns how `official-trainer ARGV…` ends in `folder`; forked, as it imports nothing that is there already."""
    return Command(argv, cwd=folder, folder=folder.parent, env=environment).wait()


def done(*argv, **environment):
    ended = trainer(*argv, **environment)
    assert ended.code == 0, ended.out[-2000:] + ended.err[-4000:]
    return ended.out


# Packages `configs` and `tasks` at the root of the project.


@pytest.fixture
def tides(tmp_path):
    return shutil.copytree(PROJECTS / "tides", tmp_path / "tides")


QUICK = ["--experiment=tide_level", "--config_file=configs/quick.yaml"]


@pytest.mark.full
def test_packages_at_the_root_train_here_and_go_on_there(tides):
    """T20, T25: the flags of their program, and its run evaluates here to the same number."""
    imports = ["--import=configs", "--import=tasks"]
    done(tides, "train", *QUICK, *imports, "--mode=train_and_eval", "--model_dir=ours")
    rows = [row for row in runs.rows(tides / "ours") if row["split"] == "validation"]
    assert [row["step"] for row in rows] == [4, 8]
    python(tides, "train.py", *QUICK, "--mode=train_and_eval", "--model_dir=theirs")
    best = json.loads(done(tides, "eval", *QUICK, *imports, "--model_dir=theirs", "--checkpoint=best", "--json"))
    assert best["error"] == json.loads((tides / "theirs" / "best" / "info.json").read_text())["error"]


def test_packages_at_the_root_are_listed_and_shown(tides):
    """T25: `configs` is a package of the project here, and not the folder of a workspace's overlays."""
    assert "tide_level" in done(tides, "list", "--import=configs")
    shown = done(tides, "show", "tide_level", "--import=train", "--config_file=configs/quick.yaml")
    assert re.search(r"type: recurrent", shown)
    refused = trainer(tides, "show", "tide_level", "--import=configs", "task.validation_data.hours=5")
    assert refused.code == 2
    assert "task.train_data.hours: must be == task.validation_data.hours, as the experiment" in refused.err


# A factory that reads the environment.


STATIONS = '''"""Heights at the stations that the environment names."""

import os

import tasks
from configs import level
from official.core import exp_factory


@exp_factory.register_config_factory("tide_of_stations")
def tide_of_stations():
    experiment = level.tide_level()
    experiment.task.train_data.stations = os.environ["STATIONS"].split()
    experiment.trainer.train_steps = int(os.environ.get("STEPS", "4"))
    return experiment
'''


def test_a_factory_that_reads_the_environment(tides):
    """T25: each command reads it again; what is missing is named at its line, and what has changed is said."""
    (tides / "of_stations.py").write_text(STATIONS)
    words = ["train", "tide_of_stations", "--import=of_stations", "--model_dir=run"]
    missing = trainer(tides, *words)
    assert missing.code == 2
    line = next(n for n, text in enumerate(STATIONS.splitlines(), 1) if "STATIONS" in text)
    assert re.search(rf"of_stations\.py:{line}\b.*STATIONS", missing.err, re.DOTALL)
    done(tides, *words, STATIONS="north")
    assert "stations: [north]" in done(tides, "show", "run")
    assert "continuing from step 4" in done(tides, *words, STATIONS="north", STEPS="8")
    changed = {"STATIONS": "north south", "STEPS": "12"}
    refused = trainer(tides, *words, **changed)
    assert refused.code == 2
    assert "task.train_data.stations" in refused.err
    assert "continuing from step 8" in done(tides, *words, "--allow_config_change", **changed)


# An experiment that a notebook builds.

CELLS = [
    """
import tensorflow as tf, tf_keras
from official.core import base_task, config_definitions as cfg, exp_factory, task_factory
from official_trainer import run_experiment

class Line(base_task.Task):
    def build_model(self):
        return tf_keras.Sequential([tf_keras.Input([2]), tf_keras.layers.Dense(1, name="line")])
    def build_inputs(self, params, input_context=None):
        points = tf.random.stateless_uniform([64, 2], [1, 2])
        data = tf.data.Dataset.from_tensor_slices((points, points @ [[2.0], [3.0]]))
        return (data.repeat() if params.is_training else data).batch(params.global_batch_size)
    def build_losses(self, labels, model_outputs, aux_losses=None):
        return tf.reduce_mean((labels - model_outputs) ** 2)
    def build_metrics(self, training=True):
        return [tf_keras.metrics.MeanSquaredError("squared")]
""",
    """
config = cfg.ExperimentConfig(
    task=cfg.TaskConfig(
        train_data=cfg.DataConfig(is_training=True, global_batch_size=8),
        validation_data=cfg.DataConfig(is_training=False, global_batch_size=16),
    ),
    trainer=cfg.TrainerConfig(train_steps=10, steps_per_loop=5, checkpoint_interval=5, validation_interval=5,
        optimizer_config={"optimizer": {"type": "sgd"},
                          "learning_rate": {"type": "constant", "constant": {"learning_rate": 0.1}}}),
)
task = Line(config.task)
strategy = tf.distribute.get_strategy()
""",
    """
model, logs = run_experiment(strategy, task, "train_and_eval", config, "run", run_post_eval=True)
print("after", config.trainer.train_steps, round(float(logs["squared"]), 4), len(model.get_weights()))
""",
    "config.trainer.train_steps = 20",  # and the third cell again
    # What goes wrong:
    "config.trainer.optimizer_config.learning_rate.constant.learning_rate = 0.2",
    "config.trainer.trian_steps = 30",
]


@pytest.fixture
def run_cells(tmp_path, monkeypatch):
    """Returns a function that runs cells in a new kernel; it returns what they print, and their errors."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))

    def run(*cells):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELLS[each]) for each in cells])
        options = {"resources": {"metadata": {"path": str(tmp_path)}}, "allow_errors": True}
        NotebookClient(notebook, timeout=240, coalesce_streams=True, **options).execute()
        outputs = [output for cell in notebook.cells for output in cell.outputs]
        said = "".join(output.text for output in outputs if output.output_type == "stream")
        return said, [output for output in outputs if output.output_type == "error"]

    return run


def test_an_experiment_of_a_notebook_goes_on_when_its_cells_run_again(tmp_path, run_cells):
    """T3, K6, N7: a task of a cell, a config that the next cell changes; in a new kernel too, where mistakes follow.

    These are a value that would change the run, and a misspelt field, which Model Garden's sections take.
    """
    said, errors = run_cells(0, 1, 2, 0, 3, 1, 3, 2)  # cells are run again, in no order
    assert not errors
    assert re.findall(r"^after (\d+) ", said, re.MULTILINE) == ["10", "20"]
    assert "continuing from step 10" in said
    again, (changed, misspelt) = run_cells(0, 1, 3, 2, 4, 2, 5, 2)
    assert re.findall(r"^after .*$", again, re.MULTILINE) == re.findall(r"^after 20 .*$", said, re.MULTILINE)
    assert [row["step"] for row in runs.rows(tmp_path / "run") if row["split"] == "validation"] == [5, 10, 15, 20]
    assert "learning_rate: 0.1 -> 0.2" in changed.evalue
    assert changed.traceback[-1].endswith("In a program: run_experiment(…, allow_config_change=True)")
    assert misspelt.evalue == "trainer.trian_steps: unknown field; did you mean 'train_steps'?"
