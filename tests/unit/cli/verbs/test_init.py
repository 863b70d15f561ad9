"""What `init` writes, and what it leaves alone."""

import shutil
import sys
from pathlib import Path

from official_trainer import cli
from official_trainer.cli.verbs import init
from tests.support import packages


def test_init_writes_a_workspace(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "my work"]) == 0
    out = capsys.readouterr().out
    written = sorted(str(path.relative_to(tmp_path / "my work")) for path in (tmp_path / "my work").rglob("*.*"))
    assert written == [
        ".gitignore", "README.md", "configs/my_experiment.yaml", "experiments/my_experiment.py",
        "launch/README.md", "launch/gke.yaml", "launch/kubernetes.yaml",
        "launch/observability/alerts.yml", "launch/observability/alerts_test.yml", "launch/observability/grafana.json",
        "launch/observability/prometheus.yml", "launch/skypilot.yaml", "launch/slurm.yaml",
        "launch/sweep.yaml", "launch/tpu.yaml", "tests/test_my_experiment.py", "train.py",
    ]  # fmt: skip
    assert all(f"  {name}\n" in out for name in [*written, "launch/Dockerfile"])
    assert "  cd 'my work'\n" in out
    assert "  python train.py --experiment=my_experiment" in out


def test_init_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert cli.main(["init", "."]) == 0
    assert "  cd " not in capsys.readouterr().out
    assert (tmp_path / "experiments" / "my_experiment.py").is_file()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_init_never_overwrites(tmp_path, capsys):
    (tmp_path / "train.py").write_text("mine")
    assert cli.main(["init", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path} already has train.py; nothing was written. Name another folder.\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert (tmp_path / "train.py").read_text() == "mine"


def test_init_leaves_out_compiled_files(tmp_path, monkeypatch):
    """pip compiles the template's Python files where it installs them."""
    shutil.copytree(Path(init.__file__).parents[1] / "template", tmp_path / "installed" / "template")
    for folder in ("template", "template/experiments"):
        (tmp_path / "installed" / folder / "__pycache__").mkdir(exist_ok=True)
        (tmp_path / "installed" / folder / "__pycache__" / "x.pyc").write_bytes(b"\xff\x00")
    monkeypatch.setattr(init, "__file__", str(tmp_path / "installed" / "verbs" / "init.py"))
    assert cli.main(["init", str(tmp_path / "ws")]) == 0
    assert not list((tmp_path / "ws").rglob("__pycache__"))
    assert (tmp_path / "ws" / "train.py").is_file()


def test_the_example_is_short_and_shown_without_tensorflow(tmp_path, monkeypatch, capsys):
    """N37: listing, showing and a mistake do not import the Keras that the module imports."""
    assert cli.main(["init", str(tmp_path / "ws")]) == 0
    lines = (tmp_path / "ws" / "experiments" / "my_experiment.py").read_text().splitlines()
    assert "import keras" in lines and len(lines) <= 70
    monkeypatch.chdir(tmp_path / "ws")
    with packages.as_it_was(monkeypatch):
        assert cli.main(["list"]) == 0
        assert cli.main(["show", "my_experiment", "task.hidden=[8]"]) == 0
        assert cli.main(["show", "my_experiment", "task.hiden=[8]"]) == 2
    said = capsys.readouterr()
    assert "Three grape varieties" in said.out
    assert "did you mean 'hidden'" in said.err
    assert not {"keras", "tf_keras", "tensorflow"} & set(sys.modules)
