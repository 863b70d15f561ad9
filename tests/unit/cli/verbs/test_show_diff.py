"""`show --diff`: what differs from an experiment's own values."""

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
    """N8: TensorFlow is not imported."""
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
