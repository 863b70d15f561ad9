"""What `eval` hands over to the engine and prints."""

import json

from official_trainer import cli


def test_eval(engine, workspace, capsys):
    assert cli.main(["eval", "my_experiment", "--checkpoint=best", "--quiet"]) == 0
    kwargs = engine.calls[0][3]
    assert (kwargs["mode"], kwargs["checkpoint"], kwargs["quiet"]) == ("eval", "best", True)
    assert kwargs["argv"][:2] == ["official-trainer", "eval"]
    assert capsys.readouterr().out == ""  # the engine prints


def test_eval_as_json(engine, workspace, capsys):
    assert cli.main(["eval", "my_experiment", "--json"]) == 0
    kwargs = engine.calls[0][3]
    assert (kwargs["checkpoint"], kwargs["quiet"]) == ("latest", True)
    assert json.loads(capsys.readouterr().out) == {"loss": 0.25, "accuracy": 0.987654321}


def test_a_wrong_checkpoint_is_refused_first(engine, workspace, capsys):
    assert cli.main(["eval", "my_experiment", "--checkpoint=lates"]) == 2
    assert "--checkpoint=lates: expected `latest`, `best` or the number of a step" in capsys.readouterr().err
    assert engine.calls == []
