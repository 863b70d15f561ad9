"""What `find-lr` prints and writes, with a stand-in for the training."""

import re

import pytest

from official_trainer import cli
from official_trainer.reports import find_lr
from official_trainer.reports.find_lr import RateCurve

RATE = r"trainer\.optimizer_config\.learning_rate\.constant\.learning_rate"


@pytest.fixture(autouse=True)
def trained(monkeypatch, workspace):
    """Stands for the training, whose loss falls between 1e-4 and 1e-1; remembers how it was called."""
    calls = []

    def search(job, **settings):
        calls.append((job, settings))
        curve = RateCurve()
        for i in range(100):
            rate = 10 ** (-7 + 8 * i / 99)
            curve.add(rate, 2.0 - 1.9 * min(1.0, max(0.0, (i - 37) / 37)) if calls[0][0].config.runtime.seed else 1.0)
        return curve

    monkeypatch.setattr(find_lr, "search", search)
    return calls


def test_the_suggestion_can_be_pasted_and_the_picture_is_written(workspace, capsys):
    """N36: the suggestion and the drawing; the run directory is left alone."""
    assert cli.main(["find-lr", "my_experiment", "runtime.seed=1"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"^suggestion: {RATE}=0\.0\d+$", out, re.MULTILINE)
    folder = workspace / "find_lr" / "my_experiment"
    assert f"curve: {folder / 'plot.svg'}" in out
    assert (folder / "plot.svg").read_text().rstrip().endswith("</svg>")
    assert not (workspace / "runs").exists()


def test_no_fall_no_suggestion(capsys, workspace):
    """N36: a loss that does not fall suggests nothing, and what to try is said."""
    assert cli.main(["find-lr", "my_experiment", f"--output={workspace / 'here'}", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("no suggestion: the loss did not fall further than it scatters. Try more --steps")
    assert (workspace / "here" / "plot.svg").exists()


def test_flags_of_the_search(trained):
    """N36: the number of steps reaches the training; without it there are a hundred."""
    assert cli.main(["find-lr", "my_experiment", "--steps=40"]) == 0
    assert cli.main(["find-lr", "my_experiment"]) == 0
    assert [settings for _, settings in trained] == [{"num_steps": 40}, {"num_steps": 100}]


ERRORS = (
    ("--steps=5", "--steps=5: expected a number from 20"),
    ("--output=", "--output is empty: is a variable not set?"),
)


def test_errors(capsys):
    for flag, message in ERRORS:
        assert cli.main(["find-lr", "my_experiment", flag]) == 2
        assert message in capsys.readouterr().err
