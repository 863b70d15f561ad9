"""Verbs of the command line up to the call of the engine: a stand-in for the engine, a workspace, a run's directory."""

import json
import sys
import types

import pytest

import official_trainer.runs
from official_trainer import cli
from tests.support import packages


def step(name, outcome, seconds, error=None):
    """Stands for a `CheckStep` of `official_trainer.runs.check`, which needs TensorFlow."""
    return types.SimpleNamespace(name=name, outcome=outcome, seconds=seconds, error=error)


class Engine(types.ModuleType):
    """Stands for `official_trainer.runs.run`; remembers what was called, the job, and the other arguments by name."""

    def __init__(self):
        super().__init__("official_trainer.runs.run")
        self.calls = []

    def run(self, job, **others):
        self.calls.append(("run", job, others))
        return {"loss": 0.25, "accuracy": 0.987654321}

    def check(self, job, metrics=()):
        self.calls.append(("check", job, {"metrics": metrics}))
        yield step("build", "1,234 parameters", 0.51)
        yield step("save", "equal", 12.0)

    def export(self, job, **others):
        self.calls.append(("export", job, others))
        return f"{job.model_dir}/export/20"


@pytest.fixture
def engine(monkeypatch):
    made = Engine()
    monkeypatch.setitem(sys.modules, "official_trainer.runs.run", made)
    monkeypatch.setattr(official_trainer.runs, "run", made, raising=False)
    return made


@pytest.fixture
def workspace(tmp_path, monkeypatch, capsys):
    """A new workspace, which is the current directory."""
    assert cli.main(["init", str(tmp_path / "ws")]) == 0
    capsys.readouterr()
    monkeypatch.chdir(tmp_path / "ws")
    return tmp_path / "ws"


@pytest.fixture
def restored(monkeypatch):
    """Leaves what is registered and imported as it was."""
    with packages.as_it_was(monkeypatch):
        yield


@pytest.fixture
def run_dir(workspace, capsys):
    """What a run of `my_experiment` with 7 steps has left."""
    folder = workspace / "runs" / "seven"
    folder.mkdir(parents=True)
    assert cli.main(["show", "my_experiment", "trainer.train_steps=7"]) == 0
    (folder / "params.yaml").write_text(capsys.readouterr().out)
    (folder / "run.json").write_text(json.dumps({"experiment": "my_experiment", "run_id": "1"}))
    return folder
