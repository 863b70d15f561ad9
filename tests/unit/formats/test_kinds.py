"""Formats: which library is missing."""

import importlib.util
import json
from typing import get_args

from official_trainer import cli
from official_trainer.config.schema import ExportFormat
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


def test_what_cannot_be_written_is_refused_before_tensorflow_is_imported(workspace, monkeypatch, capsys):
    """N46: a library with pip's command; several processes, which read data together."""

    def refused(words, message):
        assert cli.main(words) == 2
        assert message in " ".join(capsys.readouterr().err.split())

    without(monkeypatch, "tf2onnx", "onnx", "onnxruntime", "ai_edge_litert")
    message = "needs tf2onnx, onnx, onnxruntime, not installed here; pip install 'official-trainer[onnx]'"
    for verb in ("export", "train"):
        refused([verb, "my_experiment", "--model_dir=run", "trainer.export.formats=[onnx, keras]"], f"onnx {message}")
    cluster = {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    refused(
        ["train", "my_experiment", "--model_dir=run", "trainer.export.formats=[keras]"],
        "trainer.export.formats: are written by a single process, and this run has several",
    )
