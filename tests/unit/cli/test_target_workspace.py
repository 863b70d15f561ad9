"""In which folder a command runs: its workspace; so a config means the same from each folder of it."""

import os
from pathlib import Path

import pytest

from official_trainer import cli
from official_trainer.tasks import registry


@pytest.fixture
def visited(engine, monkeypatch):
    """What each call of the engine found: the current folder and the workspace."""
    seen = []

    def note(method):
        def noting(job, **others):
            seen.append((Path.cwd(), registry.find_workspace(), job, others))
            return method(job, **others)

        return noting

    for name in ("run", "export"):
        monkeypatch.setattr(engine, name, note(getattr(engine, name)))
    return seen


def test_paths_of_flags_are_those_of_the_current_folder(visited, run_dir, workspace, monkeypatch, capsys):
    """N8: also where that is a folder inside of the workspace, in which the command runs."""
    inside = workspace / "notes"
    inside.mkdir()
    monkeypatch.chdir(inside)
    (inside / "more.yaml").write_text("trainer: {train_steps: 9}\n")
    relative = os.path.relpath(run_dir)
    for verb, words in {"eval": [], "export": ["--output_dir=out"], "predict": ["--output=out"]}.items():
        assert cli.main([verb, f"--model_dir={relative}", "--config_file=more.yaml", *words]) == 0
        folder, found, job, given = visited.pop()
        assert (folder, found, job.model_dir) == (workspace, workspace, str(run_dir))
        if words:
            out = given["output_dir"] if verb == "export" else given["prediction"].output_dir
            assert out == str(inside / "out")
        assert Path.cwd() == inside
    capsys.readouterr()
    assert cli.main(["show", relative, "trainer.train_steps=5"]) == 0
    assert "train_steps: 5" in capsys.readouterr().out


def test_paths_of_a_config_are_those_of_the_workspace_in_its_folders_too(visited, workspace, monkeypatch):
    """N8: as the default of --model_dir is; in the workspace itself nothing changes."""
    assert cli.main(["train", "my_experiment", "--model_dir=run"]) == 0
    (workspace / "notes").mkdir()
    monkeypatch.chdir(workspace / "notes")
    assert cli.main(["train", "my_experiment", "--model_dir=run"]) == 0
    assert [folder for folder, *_ in visited] == [workspace, workspace]
    assert [job.model_dir for *_, job, _ in visited] == ["run", str(workspace / "notes" / "run")]
