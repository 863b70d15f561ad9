"""What `eval` hands over to the engine and prints."""

import json
import os

from official_trainer import cli
from tests.support.bounded import bounded


def test_eval(engine, workspace, capsys):
    """T10: `--quiet` leaves the results, which the engine prints."""
    assert cli.main(["eval", "my_experiment", "--checkpoint=best", "--quiet"]) == 0
    kwargs = engine.calls[0][3]
    assert (kwargs["mode"], kwargs["checkpoint"], kwargs["quiet"]) == ("eval", "best", False)
    assert kwargs["argv"][:2] == ["official-trainer", "eval"]
    assert capsys.readouterr().out == ""


def test_eval_as_json(engine, workspace, capsys):
    assert cli.main(["eval", "my_experiment", "--json"]) == 0
    kwargs = engine.calls[0][3]
    assert (kwargs["checkpoint"], kwargs["quiet"]) == ("latest", True)
    assert json.loads(capsys.readouterr().out) == {"loss": 0.25, "accuracy": 0.987654321}


def test_a_wrong_checkpoint_is_refused_first(engine, workspace, capsys):
    assert cli.main(["eval", "my_experiment", "--checkpoint=lates"]) == 2
    assert "--checkpoint=lates: expected `latest`, `best` or the number of a step" in capsys.readouterr().err
    assert engine.calls == []


def test_a_runs_params_that_never_end_are_refused(engine, run_dir):
    """N34: the config of a run from elsewhere, with aliases that multiply, and in a pipe."""
    lines = ["x-0: &a0 [1]", *(f"x-{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    (run_dir / "params.yaml").write_text("\n".join(lines))
    assert bounded(cli.main, ["eval", "--model_dir=runs/seven"]) == 2
    (run_dir / "params.yaml").unlink()
    os.mkfifo(run_dir / "params.yaml")
    assert bounded(cli.main, ["eval", "--model_dir=runs/seven"]) == 2
