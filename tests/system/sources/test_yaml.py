"""Each type of source, named in YAML, from `train` to `data`: the commands of a new user."""

import functools
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from official_trainer.config import ExperimentConfig, SourceConfig, resolve
from official_trainer.tracking.jsonl import read_rows
from tests import ROOT
from tests.support.forked import Child
from tests.support.source_cases import files, tables

EXPERIMENT = ROOT / "tests" / "support" / "rows_experiment.py"
COUNT = 48
TYPES = ("parquet", "hf", "csv", "npy", "images", "tfrecord", "array_record", "mixture")
TRAINED = ("mixture",)


def section_of(kind, folder):
    """Writes the data of a type; returns its section as a user writes it."""
    if kind == "mixture":
        parts = {name: {"source": section_of(name, folder), "weight": 1} for name in ("parquet", "npy")}
        return {"type": "mixture", "parts": {name: _of_ids(part) for name, part in parts.items()}}
    folder = folder / kind
    folder.mkdir()
    if kind in tables.CASES or kind == "npy":
        section = {**tables.CASES, **files.CASES}[kind](folder, COUNT)
        return {name: value for name, value in section.as_dict().items() if value}
    {"images": files.write_images, "tfrecord": files.write_tfrecords, "array_record": files.write_array_records}[kind](
        folder, COUNT
    )
    return {"type": kind, **({"folder": str(folder)} if kind == "images" else {"files": f"{folder}/part-*"})}


def _of_ids(part):
    """Leaves one field to a part, which all have."""
    section = part["source"]
    if section["type"] == "npy":
        section["files"] = {"id": section["files"]["id"]}
    else:
        section["columns"] = ["id"]
    return part


def commands(lists, folder):
    """Runs commands in a process; after each their exit codes, in a file."""
    from official_trainer import cli

    codes = []
    for words in lists:
        print(f"--- {words[0]}", flush=True)
        codes.append(cli.main(words))
    (Path(folder) / "codes.json").write_text(json.dumps(codes))


def test_each_type_is_here():
    """N41"""
    assert SourceConfig.names().keys() == {*TYPES}


def test_the_guide_has_a_section_of_each():
    """N41: which a config takes."""
    guide = (ROOT / "docs" / "guides" / "sources.md").read_text()
    blocks = re.findall(r"^source: \{.*\}$|^source:\n(?:  .*\n)+", guide, re.MULTILINE)
    sections = [yaml.safe_load(block)["source"] for block in blocks]
    assert sorted(section["type"] for section in sections) == sorted(TYPES)
    for section in sections:
        config = resolve(ExperimentConfig(), sets=[f"task.train_data.source={json.dumps(section)}"]).config
        assert config.task.train_data.source.type == section["type"]


@pytest.mark.parametrize("kind", TYPES)
def test_a_source_of_a_config(kind, tmp_path):
    """N41: show and data; train, resume, evaluate, predict: each example once in an epoch, and in an evaluation."""
    for name in ("experiments", "configs", "written"):
        (tmp_path / name).mkdir()
    shutil.copy(EXPERIMENT, tmp_path / "experiments" / "rows.py")
    source = section_of(kind, tmp_path / "written")
    count = 2 * COUNT if kind == "mixture" else COUNT
    config = {"task": {name: {"source": source} for name in ("train_data", "validation_data")}}
    (tmp_path / "configs" / "rows.yaml").write_text(json.dumps(config, indent=1))
    of_file, run = "--config_file=configs/rows.yaml", "--model_dir=run"
    train = ["train", "rows", "--mode=train_and_eval", of_file, run]
    half = count // 8
    lists = [["show", "rows", of_file], ["data", "rows", of_file]]
    runs = [
        [*train, "trainer.train_steps=6"],
        [*train, f"trainer.train_steps={2 * half}"],
        ["eval", run, "--json"],
        ["predict", run, "--format=jsonl"],
    ]
    lists += runs if kind in TRAINED else []
    done = Child(functools.partial(commands, lists, tmp_path), cwd=tmp_path, folder=tmp_path).wait()
    assert done.code == 0 and json.loads((tmp_path / "codes.json").read_text()) == [0] * len(lists), done.err
    shown, seen, *said = done.out.split("--- ")[1:]
    assert f"type: {kind}  # configs/rows.yaml:" in shown
    check_seen(seen, kind, count)
    if kind not in TRAINED:
        return
    assert "restored run/ckpt-6 (step 6)" in done.err
    mean = (count - 1) / 2 if kind != "mixture" else (COUNT - 1) / 2
    assert json.loads(said[2].splitlines()[1])["number"] == pytest.approx(mean)
    rows = list(read_rows(str(tmp_path / "run" / "metrics.jsonl")))
    means = [row["number"] for row in rows if row["split"] == "train"]
    assert [sum(means[first : first + half // 6]) / (half // 6) for first in (0, half // 6)] == pytest.approx(
        [mean] * 2
    )
    (predictions,) = (tmp_path / "run" / "predictions").glob("*.jsonl")
    assert len(predictions.read_text().splitlines()) == count


def check_seen(text, kind, count):
    """Both sections, with the number of examples, each field of a batch, and the speeds."""
    for section in text.split("task.")[1:]:
        assert f"_data: {count} examples from {kind}, in batches of 8" in section
        lines = [line.split() for line in section.splitlines()]
        types = {words[0]: words[1] for words in lines if len(words) > 2}
        assert types.items() >= {"[0]": "float32", "[1]": "float32"}.items()
        assert "examples/s, without a model" in section
    assert text.count("task.") == 2
    assert max(map(len, text.splitlines())) <= 120
