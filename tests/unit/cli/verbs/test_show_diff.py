"""`show --diff`: what differs from an experiment's own values, from another run, file or experiment."""

import json
import sys

from official_trainer import cli

ABOUT_STEPS = """
trainer.train_steps
  - {}
  + {}
"""


def show(capsys, *words, code=0):
    assert cli.main(["show", *words]) == code
    return getattr(capsys.readouterr(), "err" if code else "out")


def test_from_the_experiments_own_values(workspace, capsys):
    """N8: without a value; TensorFlow is not imported."""
    assert show(capsys, "my_experiment", "trainer.train_steps=9", "--diff") == (
        "--- my_experiment\n+++ my_experiment with the flags of this command\n1 field differs\n"
        + ABOUT_STEPS.format("200  experiment my_experiment", "9    --set")
    )
    assert "tensorflow" not in sys.modules


def test_nothing_differs(workspace, capsys):
    assert show(capsys, "my_experiment", "--diff") == "--- my_experiment\n+++ my_experiment\nno field differs\n"


def test_of_a_run(run_dir, capsys):
    """N8: what set a value is what its `params.yaml` says."""
    assert show(capsys, "runs/seven", "--diff") == (
        "--- my_experiment\n+++ runs/seven\n1 field differs\n"
        + ABOUT_STEPS.format("200  experiment my_experiment", "7    --set")
    )


def test_from_a_run(run_dir, capsys):
    """N8: by its directory or its file."""
    file = "--config_file=configs/my_experiment.yaml"
    for other in ("runs/seven", "runs/seven/params.yaml"):
        found = show(capsys, "my_experiment", file, f"--diff={other}")
        assert found.startswith(f"--- {other}\n+++ my_experiment with the flags of this command\n")
        assert ABOUT_STEPS.format("7          --set", "400        configs/my_experiment.yaml:6") in found


def test_from_a_file(workspace, capsys):
    """N8: over the same experiment, if the file names none."""
    found = show(capsys, "my_experiment", "trainer.train_steps=400", "--diff=configs/my_experiment.yaml")
    assert "trainer.train_steps\n" not in found
    assert "  - " in found
    assert "  configs/my_experiment.yaml:" in found


def test_from_another_experiment(workspace, capsys):
    source = (workspace / "experiments" / "my_experiment.py").read_text()
    (workspace / "experiments" / "other.py").write_text(
        source.replace('"my_experiment"', '"other"').replace("200", "300")
    )
    found = show(capsys, "my_experiment", "--diff=other")
    assert ABOUT_STEPS.format("300  experiment other", "200  experiment my_experiment") in found


def test_two_runs_have_a_verb_of_their_own(run_dir, capsys):
    """N8: which shows more than the configs; with a value that changes the config it is no run that is compared."""
    said = "error: two runs are compared by `official-trainer compare runs/seven runs/seven`\n"
    assert show(capsys, "runs/seven", "--diff=runs/seven", code=2) == said
    assert "1 field differs" in show(capsys, "runs/seven", "trainer.train_steps=9", "--diff=runs/seven")


def test_as_json(run_dir, capsys):
    """N8: for programs."""
    report = json.loads(show(capsys, "my_experiment", "trainer.actions=[]", "--diff=runs/seven", "--json"))
    assert report == {
        "before": "runs/seven",
        "after": "my_experiment with the flags of this command",
        "differences": [
            {
                "path": "trainer.train_steps",
                "before": {"value": 7, "origin": "--set"},
                "after": {"value": 200, "origin": "experiment my_experiment"},
            }
        ],
    }


def test_mistakes(workspace, capsys):
    """N7: with exit code 2."""
    for words, said in (
        ("--diff=", "error: --diff= has no value: is a variable not set? Write --diff, or name one\n"),
        ("--diff --explain=trainer", "error: --explain and --diff cannot be combined; keep one\n"),
        ("--diff=configs", "error: --diff=configs: there is no configs/params.yaml, so it is not the directory of"),
        ("--diff=my_experimen", "error: unknown experiment 'my_experimen'; allowed: "),
        ("--diff=none.yaml", "error: there is no configuration file 'none.yaml'"),
    ):
        assert show(capsys, "my_experiment", *words.split(), code=2).startswith(said)
