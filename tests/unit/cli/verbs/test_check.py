"""What `check` prints, and how it ends."""

import types

from official_trainer import cli
from official_trainer.errors import ExitCode, UserError


def test_check_prints_a_line_for_each_step(engine, workspace, capsys):
    """N10: as the steps end."""
    words = ["--mode=eval", "runtime.seed=4"]
    assert cli.main(["check", "my_experiment", *words]) == 0
    what, experiment, resolved, kwargs = engine.calls[0]
    assert (what, experiment, resolved.config.runtime.seed) == ("check", "my_experiment", 4)
    assert kwargs == {"mode": "eval", "model_dir": str(workspace / "runs" / "my_experiment"), "gin": None} | {
        "allow_config_change": False,
        "metrics": (),
    }
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["ok", "build", "0.5", "s", "1,234", "parameters"],
        ["ok", "save", "12.0", "s", "equal"],
    ]


def test_check_may_be_quiet(engine, workspace, capsys):
    assert cli.main(["check", "my_experiment", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_check_ends_with_the_exit_code_of_what_failed(engine, workspace, capsys, monkeypatch):
    """N6, N10: what has worked is shown, then the reason."""

    class NoData(UserError):
        exit_code = ExitCode.DATA

    def check(experiment, resolved, **job_fields):
        yield types.SimpleNamespace(name="build", outcome="", seconds=0.5, error=None)
        yield types.SimpleNamespace(
            name="train", outcome="", seconds=1.5, error=NoData("no file matches data/*.tfrecord")
        )

    monkeypatch.setattr(engine, "check", check)
    assert cli.main(["check", "my_experiment"]) == 3
    out, err = capsys.readouterr()
    assert out.split() == ["ok", "build", "0.5", "s", "failed", "train", "1.5", "s"]
    assert err == "error: no file matches data/*.tfrecord\n"
