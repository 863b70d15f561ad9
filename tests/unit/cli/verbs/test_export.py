"""What `export` hands over to the engine and prints."""

from official_trainer import cli


def test_export_prints_where_to(engine, workspace, capsys):
    """T19: the path on stdout, for scripts."""
    assert cli.main(["export", "my_experiment", "--model_dir=run", "--checkpoint=120", "--output_dir=out"]) == 0
    assert engine.calls[0][3] == {"model_dir": "run", "checkpoint": "120", "output_dir": "out", "gin": None}
    assert capsys.readouterr().out == "run/export/20\n"


def test_export_defaults(engine, workspace):
    assert cli.main(["export", "my_experiment"]) == 0
    assert engine.calls[0][3]["checkpoint"] == "latest"
    assert engine.calls[0][3]["output_dir"] is None
