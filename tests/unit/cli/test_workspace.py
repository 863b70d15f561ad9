"""In which folder a command runs: its workspace, or that of the run; so a config means the same from everywhere."""

import json
import os
import shutil
from pathlib import Path

import pytest

from official_trainer import cli
from official_trainer.tasks import registry
from tests.support import workspaces


@pytest.fixture
def visited(engine, monkeypatch):
    """What each call of the engine found: the current folder and the workspace."""
    seen = []

    def note(method):
        def noting(*args, **kwargs):
            seen.append((Path.cwd(), registry.find_workspace(), kwargs))
            return method(*args, **kwargs)

        return noting

    for name in ("run", "export"):
        monkeypatch.setattr(engine, name, note(getattr(engine, name)))
    return seen


@pytest.fixture
def trained(run_dir, workspace):
    """The directory of a run that was started in the workspace, on record; and the workspace is known."""
    record = {"experiment": "my_experiment", "run_id": "1", "workspace": str(workspace)}
    (run_dir / "run.json").write_text(json.dumps(record))
    assert cli.main(["show", "my_experiment"]) == 0
    workspaces.forget()
    return run_dir


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder outside of the workspace, which is the current one."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("verb", ["eval", "export", "predict"])
def test_a_run_is_found_with_its_workspace_from_any_folder(verb, visited, trained, workspace, elsewhere, capsys):
    """N8: and each path among the flags is what it is in the current folder."""
    (elsewhere / "more.yaml").write_text("trainer: {train_steps: 9}\n")
    relative = os.path.relpath(trained)
    words = ["--config_file=more.yaml", *{"export": ["--output_dir=out"], "predict": ["--output=out"]}.get(verb, [])]
    assert cli.main([verb, f"--model_dir={relative}", *words]) == 0, capsys.readouterr().err
    ((folder, found, given),) = visited
    assert (folder, found) == (workspace, workspace)
    assert given["model_dir"] == str(trained)
    if verb != "eval":
        out = given["output_dir"] if verb == "export" else given["prediction"].output_dir
        assert out == str(elsewhere / "out")
    assert Path.cwd() == elsewhere
    capsys.readouterr()
    assert cli.main(["show", relative, "trainer.train_steps=5"]) == 0
    assert "train_steps: 5" in capsys.readouterr().out


def test_another_workspace_without_the_experiment_makes_no_difference(
    visited, trained, workspace, tmp_path, monkeypatch
):
    """N8: as a copy in which the code is changed; one that has no experiment of this name makes no difference."""
    for name, expected in (("empty", workspace), ("copy", None)):
        other = tmp_path / name
        (other / "experiments").mkdir(parents=True)
        if expected is None:
            shutil.copytree(workspace, other, dirs_exist_ok=True)
        monkeypatch.chdir(other)
        assert cli.main(["eval", f"--model_dir={trained}"]) == 0
        assert visited[-1][:2] == (expected or other, expected or other)


def test_paths_of_a_config_are_those_of_the_workspace_in_its_folders_too(visited, workspace, monkeypatch):
    """N8: as the default of --model_dir is; in the workspace itself nothing changes."""
    assert cli.main(["train", "my_experiment", "--model_dir=run"]) == 0
    (workspace / "notes").mkdir()
    monkeypatch.chdir(workspace / "notes")
    assert cli.main(["train", "my_experiment", "--model_dir=run"]) == 0
    assert [folder for folder, *_ in visited] == [workspace, workspace]
    assert [given["model_dir"] for *_, given in visited] == ["run", str(workspace / "notes" / "run")]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        ("gone", "{}, which is not there now: run the command in the folder where it is"),
        ("unknown", "{}, in which you have run no command on this machine yet: cd {} and run the command there"),
    ],
)
def test_a_workspace_that_is_gone_or_unknown_is_named_and_not_used(
    harm, message, trained, workspace, elsewhere, monkeypatch, capsys
):
    """N7, N8: a run directory is data: no code is run because it names a folder."""
    run = elsewhere / "run"
    shutil.copytree(trained, run)
    code = "raise AssertionError('imported')\n"
    for path in (workspace / "experiments").glob("*.py"):
        path.write_text(code)
    if harm == "gone":
        shutil.rmtree(workspace)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(elsewhere / "cache"))
    assert cli.main(["eval", "--model_dir=run"]) == 2
    said = capsys.readouterr().err
    assert "unknown experiment 'my_experiment'" in said
    assert "the run in run was started in the workspace " + message.format(workspace, workspace) in said


def test_a_workspace_on_record_that_is_no_path_is_ignored(trained, elsewhere, capsys):
    """N8: and one of another kind is a changed file."""
    for value, message in (("..", "unknown experiment"), ([1], "was changed: workspace is [1]")):
        (trained / "run.json").write_text(
            json.dumps({"experiment": "my_experiment", "run_id": "1", "workspace": value})
        )
        assert cli.main(["eval", f"--model_dir={trained}"]) == 2
        assert message in capsys.readouterr().err
