"""What `export` hands over to the engine and prints."""

from official_trainer import cli


def test_export_prints_where_to(engine, workspace, capsys):
    """T19: the path on stdout, for scripts."""
    assert cli.main(["export", "my_experiment", "--model_dir=run", "--checkpoint=120", "--output_dir=out"]) == 0
    assert engine.calls[0][3] == {"model_dir": "run", "checkpoint": "120", "output_dir": "out", "gin": None}
    assert capsys.readouterr().out == "run/export/20\n"


def test_export_expands_a_home(engine, workspace, monkeypatch):
    """T19: which a shell leaves to the program behind a `=`."""
    monkeypatch.setenv("HOME", "/home/someone")
    assert cli.main(["export", "my_experiment", "--output_dir=~/out"]) == 0
    assert engine.calls[0][3]["output_dir"] == "/home/someone/out"


def test_export_defaults(engine, workspace):
    assert cli.main(["export", "my_experiment"]) == 0
    assert engine.calls[0][3]["checkpoint"] == "latest"
    assert engine.calls[0][3]["output_dir"] is None


def test_formats_are_those_of_the_config(engine, workspace):
    """N46: for this export alone."""
    assert cli.main(["export", "my_experiment", "--format=tflite, onnx"]) == 0
    assert engine.calls[0][2].config.trainer.export.formats == ("tflite", "onnx")


def test_an_unknown_format_is_refused(engine, workspace, capsys):
    """N46: with those there are."""
    assert cli.main(["export", "my_experiment", "--format=onx"]) == 2
    said = capsys.readouterr().err
    assert "trainer.export.formats" in said and "did you mean 'onnx'" in said
