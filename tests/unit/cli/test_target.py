"""Which config a verb takes: that of the experiment, or that of a run."""

import json
import sys

import pytest

from official_trainer import cli
from tests.support.packages import registering, write


@pytest.mark.parametrize("verb", ["check", "eval", "export"])
def test_a_run_is_taken_as_it_was_configured(verb, engine, run_dir):
    """N8: without an experiment, name and values are those the run recorded, under what the flags change."""
    assert cli.main([verb, f"--model_dir={run_dir}", "runtime.seed=5"]) == 0
    _, experiment, resolved, kwargs = engine.calls[0]
    assert experiment == "my_experiment"
    assert (resolved.config.trainer.train_steps, resolved.config.runtime.seed) == (7, 5)
    assert kwargs["model_dir"] == str(run_dir)


@pytest.mark.parametrize("verb", ["check", "eval", "export"])
def test_a_run_may_stand_in_the_place_of_an_experiment(verb, engine, run_dir):
    """N8: as for the verbs that only read runs; a flag that names another place wins."""
    assert cli.main([verb, str(run_dir), "runtime.seed=5"]) == 0
    _, experiment, resolved, kwargs = engine.calls[0]
    assert (experiment, resolved.config.trainer.train_steps, kwargs["model_dir"]) == ("my_experiment", 7, str(run_dir))
    assert cli.main([verb, str(run_dir), "--model_dir=other"]) == 2


def test_a_named_experiment_is_taken_as_it_is(engine, run_dir):
    assert cli.main(["eval", "my_experiment", f"--model_dir={run_dir}"]) == 0
    assert engine.calls[0][2].config.trainer.train_steps == 200


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "run holds no run (there is no run.json), so name the experiment with --experiment"),
        ("{", "run/run.json cannot be read"),
        ("{}", "run/run.json was not written by this program"),
        ("[]", "run/run.json was not written by this program"),
    ],
)
def test_a_run_that_does_not_say_what_it_is(content, reason, engine, workspace, capsys):
    (workspace / "run").mkdir()
    if content is not None:
        (workspace / "run" / "run.json").write_text(content)
    assert cli.main(["export", "--model_dir=run"]) == 2
    assert f"error: {reason}" in capsys.readouterr().err


def test_a_run_directory_that_is_not_there(engine, workspace, capsys):
    """N7: the nearest folder beside it is named."""
    (workspace / "runs" / "tickets").mkdir(parents=True)
    assert cli.main(["eval", "--model_dir=runs/ticket"]) == 2
    assert capsys.readouterr().err == "error: there is no folder runs/ticket; did you mean runs/tickets?\n"
    assert cli.main(["eval", "runs/ticket"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: there is no folder runs/ticket, and no experiment has this name")
    assert said.endswith("; did you mean 'runs/tickets'?\n")
    assert cli.main(["eval", "./runs/"]) == 2
    assert capsys.readouterr().err.startswith("error: ./runs/ holds no run, and no experiment has this name")
    assert cli.main(["eval", "--model_dir=nowhere"]) == 2
    assert capsys.readouterr().err == "error: there is no folder nowhere\n"


@pytest.mark.parametrize("verb", ["eval", "export", "predict"])
def test_neither_a_run_nor_an_experiment(verb, engine, workspace, capsys):
    """N7: both are offered, and a command that can be given."""
    assert cli.main([verb, "--checkpoint=best"]) == 2
    said = "error: name a run or an experiment: --model_dir=DIR or --experiment=NAME\nexperiments: my_experiment\n"
    command = f"try: official-trainer {verb} --checkpoint=best --experiment=my_experiment\n"
    assert capsys.readouterr().err == said + command
    assert engine.calls == []


def test_no_experiment_where_there_is_no_workspace(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train"]) == 2
    assert capsys.readouterr().err.endswith(
        "\nexperiments: none here; `official-trainer init DIR` writes a new workspace\n"
    )


@pytest.fixture
def flagged_run(workspace, restored):
    """The directory of a run of `flagged`, which the module `mine` registers."""
    write(workspace, mine=registering("flagged"))
    folder = workspace / "runs" / "flagged"
    folder.mkdir(parents=True)
    (folder / "params.yaml").write_text("trainer: {train_steps: 7}\n")
    record = {"experiment": "flagged", "run_id": "1", "imports": ["mine", "other"]}
    (folder / "run.json").write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--experiment=flagged"],
        ["train", "flagged", "--model_dir=runs/flagged"],
        ["eval", "--model_dir=runs/flagged"],
        ["show", "runs/flagged", "trainer.train_steps=8"],
    ],
)
def test_a_restart_without_the_import_says_which_one_is_missing(words, engine, flagged_run, capsys):
    """T25: a run directory is data: what its record names is not imported."""
    assert cli.main(words) == 2
    said = "flagged was started with --import=mine --import=other: add it\n"
    assert capsys.readouterr().err.endswith(said)
    assert "mine" not in sys.modules
    assert engine.calls == []
    if words[0] == "eval":
        assert cli.main([*words, "--import=mine"]) == 0
        assert engine.calls[0][2].config.trainer.train_steps == 7


def test_a_record_that_names_no_modules_is_changed(engine, flagged_run, capsys):
    """T25: and the message about the experiment stays."""
    (flagged_run / "run.json").write_text('{"experiment": "flagged", "run_id": "1", "imports": 3}')
    assert cli.main(["train", "flagged"]) == 2
    assert capsys.readouterr().err.startswith("error: unknown experiment 'flagged'; allowed: my_experiment")
