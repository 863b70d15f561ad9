"""What `check` prints, and how it ends."""

import types

from official_trainer import cli
from official_trainer.errors import ExitCode, UserError


def test_check_ends_with_the_exit_code_of_what_failed(engine, workspace, capsys, monkeypatch):
    """N6, N10: what has worked is shown, then the reason."""

    class NoData(UserError):
        exit_code = ExitCode.DATA

    def check(job, metrics):
        yield types.SimpleNamespace(name="build", outcome="", seconds=0.5, error=None)
        yield types.SimpleNamespace(
            name="train", outcome="", seconds=1.5, error=NoData("no file matches data/*.tfrecord")
        )

    assert cli.main(["check", "my_experiment", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(engine, "check", check)
    assert cli.main(["check", "my_experiment"]) == 3
    out, err = capsys.readouterr()
    assert out.split() == ["ok", "build", "0.5", "s", "failed", "train", "1.5", "s"]
    assert err == "error: no file matches data/*.tfrecord\n"
