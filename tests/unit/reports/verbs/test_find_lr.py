"""What `find-lr` prints and writes, with a stand-in for the training."""

import pytest

from official_trainer import cli
from official_trainer.reports import find_lr
from official_trainer.reports.find_lr import RateCurve
from tests.support import golden


@pytest.fixture(autouse=True)
def trained(monkeypatch, workspace):
    """Stands for the training, whose loss stays as it is; remembers how it was called."""
    calls = []

    def search(job, **settings):
        calls.append((job, settings))
        curve = RateCurve()
        for i in range(100):
            curve.add(10 ** (-7 + 8 * i / 99), 1.0)
        return curve

    monkeypatch.setattr(find_lr, "search", search)
    return calls


def test_no_fall_no_suggestion(capsys, workspace):
    """N36: a loss that does not fall suggests nothing, and what to try is said."""
    assert cli.main(["find-lr", "my_experiment", f"--output={workspace / 'here'}", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("no suggestion: the loss did not fall further than it scatters. Try more --steps")
    assert (workspace / "here" / "plot.svg").exists()


def test_flags_of_the_search(trained, capsys, request):
    """N36: the number of steps reaches the training; without it there are a hundred."""
    golden.check_refused("find-lr", request, capsys, "find-lr")
    assert cli.main(["find-lr", "my_experiment", "--steps=40"]) == 0
    assert cli.main(["find-lr", "my_experiment"]) == 0
    assert [settings for _, settings in trained] == [{"num_steps": 40}, {"num_steps": 100}]
