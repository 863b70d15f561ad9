"""The verb `data`: which sections, and how what was read is printed."""

import types

import numpy as np
import pytest

from official_trainer import cli
from official_trainer.cli.verbs import data
from official_trainer.config import DataConfig, ExperimentConfig, TaskConfig
from official_trainer.runs import seen_data


def config(**sections):
    return ExperimentConfig(task=TaskConfig(**sections))


SET = DataConfig(global_batch_size=8)


@pytest.mark.parametrize(
    ("sections", "shown"),
    [
        ({}, ["train_data", "validation_data"]),
        ({"train_data": SET}, ["train_data"]),
        ({"validation_data": SET}, ["train_data", "validation_data"]),
        ({"train_data": SET, "validation_data": SET}, ["train_data", "validation_data"]),
    ],
)
def test_validation_data_that_nothing_sets_is_left_out(sections, shown):
    """N45: beside training data that something sets, as of a task that has no validation data."""
    assert data._sections(config(**sections).task, None) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"short", "'short'"),
        (b"a\x1b[31m line\n" + b"x" * 50, "'a\\x1b[31m li…xxxxxxxxxx'"),
        (b"\xff\xfe", "'��'"),
        (np.int64(7), "7"),
        (np.float32(1 / 3), "0.3333"),
        (np.bool_(True), "True"),
        (np.array([1.5, 2]), "[1.5, 2]"),
        (np.arange(12, dtype=np.uint8).reshape(2, 2, 3), "0 to 11"),
        (np.array([b"a", b"b"], object), "2 values"),
        (np.zeros(0), "[]"),
    ],
)
def test_a_value_is_short(value, shown):
    """N45: on one line, without control characters; of many numbers the range."""
    assert data._value(value) == shown


SEEN = types.SimpleNamespace(
    section="task.train_data",
    examples=1234,
    fields=[("name", "string", (), [b"x" * 99]), ("[0]", "float32", (None, 8), [np.arange(8.0)])],
    speed=10_000.4,
)


def test_what_was_read_is_printed(workspace, monkeypatch, capsys):
    """N45: count, schema, values and speed, in 80 columns."""
    asked = []
    monkeypatch.setattr(seen_data, "read", lambda job, names, _: (asked.append((job.mode, names)), [SEEN])[1])
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["data", "my_experiment", "--split=train_data"]) == 0
    assert asked == [("eval", ["train_data"])]
    assert capsys.readouterr().out.splitlines() == [
        "task.train_data: 1,234 examples, in batches of 32",
        "  field  dtype    shape  first examples",
        "  name   text     -      'xxxxxxxxxxxx…xxxxxxxxxx'",
        "  [0]    float32  ?×8    0 to 7",
        "  reading: 10,000 examples/s, without a model",
        "",
    ]
    assert cli.main(["data", "my_experiment", "--split=test"]) == 2
    assert "--split=test: expected one of train_data, validation_data" in capsys.readouterr().err


def test_a_scan_ends_with_the_code_of_data(workspace, monkeypatch, capsys):
    """N45: each bad example is a line, each section has its number."""

    def scan(task, section, path, *, report):
        count = 2 if path == "task.train_data" else 0
        for number in range(count):
            report(f"{path}: a.csv:{number}: x is null")
        return path, count

    def read(job, names, reader):
        return [reader(None, None, f"task.{name}") for name in names]

    monkeypatch.setattr(seen_data, "scan", scan)
    monkeypatch.setattr(seen_data, "read", read)
    assert cli.main(["data", "my_experiment", "--scan"]) == 3
    assert capsys.readouterr().out.splitlines() == [
        "task.train_data: a.csv:0: x is null",
        "task.train_data: a.csv:1: x is null",
        "task.train_data: 2 examples cannot be read",
        "task.validation_data: is whole",
    ]
    assert cli.main(["data", "my_experiment", "--scan", "--split=validation_data"]) == 0
