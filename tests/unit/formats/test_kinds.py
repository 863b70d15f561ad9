"""Formats: which library is missing, and what a path is."""

import importlib.util
import json
from typing import get_args

import pytest

from official_trainer import cli
from official_trainer.config.schema import ExportFormat
from official_trainer.formats import kinds
from official_trainer.tasks.export import FORMAT_FILES


def without(monkeypatch, *modules):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in modules else find_spec(name, *rest)
    )


def test_each_format_has_a_file_and_each_file_a_format():
    """N46: the names of the config are those of the files."""
    assert set(get_args(ExportFormat)) == {"saved_model", *FORMAT_FILES}
    assert len(set(FORMAT_FILES.values())) == len(FORMAT_FILES)


def test_the_kind_of_a_path(tmp_path):
    """N46: by its ending, or by what a folder holds; what is no model is refused with what is allowed."""
    formats = {"a.tflite": "tflite", "a.onnx": "onnx", "a.keras": "keras", "a.weights.h5": "weights"}
    for name, format_name in formats.items():
        (tmp_path / name).touch()
        assert kinds.kind_of(str(tmp_path / name)) == format_name
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "saved_model.pb").touch()
    assert kinds.kind_of(str(tmp_path / "7")) == "saved_model"
    (tmp_path / "model.pt").touch()
    allowed = "model.pt is no model that can be read; expected a folder with saved_model.pb, or a file that ends in "
    with pytest.raises(kinds.UnknownFileError, match=allowed):
        kinds.kind_of(str(tmp_path / "model.pt"))


def test_what_cannot_be_written_is_refused_before_tensorflow_is_imported(
    workspace, run_dir, restored, monkeypatch, capsys
):
    """N46: a library with pip's command; several processes, which read data together; a file that is not there."""

    def refused(words, message):
        assert cli.main(words) == 2
        assert message in " ".join(capsys.readouterr().err.split())

    without(monkeypatch, "tf2onnx", "onnx", "onnxruntime", "ai_edge_litert")
    message = "needs tf2onnx, onnx, onnxruntime, not installed here; pip install 'official-trainer[onnx]'"
    for verb in ("export", "train"):
        refused([verb, "my_experiment", "--model_dir=run", "trainer.export.formats=[onnx, keras]"], f"onnx {message}")
    refused(["predict", f"--model_dir={run_dir}", "--model=none.onnx"], "none.onnx: there is no such file or folder")
    cluster = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    refused(
        ["train", "my_experiment", "--model_dir=run", "trainer.export.formats=[keras]"],
        "trainer.export.formats: are written by a single process, and this run has several",
    )
