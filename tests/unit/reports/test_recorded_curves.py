"""The numbers of a run by step, from whatever is in its directory."""

import json
import re

import pytest

from official_trainer.reports import recorded_curves as curves
from tests.support.reports import kinds


@pytest.fixture
def read(tmp_path):
    def read(name):
        kinds.KINDS[name](tmp_path / name)
        return curves.read(str(tmp_path / name))

    return read


def steps(recorded, split="validation", name="accuracy"):
    curve = recorded.get(split, name)
    return None if curve is None else curve.steps


def test_values_by_split_and_name(read):
    """N29: each metric is a curve by rising step; a line that is being written is left out."""
    recorded = read("done")
    curve = recorded.get("validation", "accuracy")
    assert curve.steps == [10, 20, 30, 40]
    assert curve.values == [kinds.accuracy(1, step) for step in curve.steps]
    assert (curve.at(20), curve.at(25)) == (kinds.accuracy(1, 20), None)
    assert {*recorded.by_split} == {"train", "time", "validation"}
    assert recorded.get("dev", "accuracy") is None


def test_the_final_history_counts(read):
    """N29: what a run had recorded before it went back, from that step on, is left out; what came earlier stays."""
    recorded = read("restarted")
    curve = recorded.get("validation", "accuracy")
    assert curve.steps == [10, 20, 30, 40]
    assert curve.values == [kinds.accuracy(seed, step) for seed, step in ((7, 10), (7, 20), (1, 30), (1, 40))]
    assert steps(recorded, "train", "training_loss") == list(range(5, 45, 5))


def test_what_other_splits_recorded_after_that_step_does_not_count(tmp_path):
    """N29: an evaluation of the history that was left is not shown beside the training that replaced it."""
    lines = [(10, "train"), (20, "train"), (25, "validation"), (30, "train"), (15, "train"), (20, "train")]
    text = "".join(f'{{"step": {step}, "split": "{split}", "loss": {i}}}\n' for i, (step, split) in enumerate(lines))
    (tmp_path / "metrics.jsonl").write_text(text)
    recorded = curves.read(str(tmp_path))
    assert recorded.get("validation", "loss") is None
    assert recorded.get("train", "loss").steps == [10, 15, 20]
    assert recorded.get("train", "loss").values == [0, 4, 5]


def test_rows_of_an_evaluator_beside_the_run(read):
    """N29: evaluations of another process belong to the run."""
    recorded = read("with_evaluator")
    assert steps(recorded) == [10, 20, 30, 40]
    assert steps(recorded, "train", "training_loss") == list(range(5, 45, 5))


def test_numbers_that_are_not_finite(tmp_path):
    """N29: NaN and infinity are numbers; text and objects are none."""
    values = {"a": "NaN", "b": "Infinity", "c": True, "d": "text", "e": {"a": 1}, "f": 10**400, "g": 3}
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 5, "split": "train", **values}))
    recorded = curves.read(str(tmp_path)).by_split["train"]
    assert {name: str(curve.at(5)) for name, curve in recorded.items()} == {"a": "nan", "b": "inf", "g": "3.0"}


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("damaged_rows", "4 damaged lines of metrics.jsonl left out"),
        ("without_metrics", "there is no metrics.jsonl"),
        ("empty_metrics", "metrics.jsonl is empty"),
        ("unreadable_metrics", "metrics.jsonl cannot be read: .*is a directory"),
        ("garden", "no metrics.jsonl: the metrics are those of TensorBoard's files"),
        ("damaged_events", "no metrics.jsonl: the metrics are those of TensorBoard's files"),
    ],
)
def test_damaged_and_foreign_files(read, kind, note):
    """N29: what is whole is read, and what is not is said."""
    recorded = read(kind)
    (noted,) = recorded.notes
    assert re.search(note, noted)
    assert (steps(recorded) is not None) == (kind not in ("without_metrics", "empty_metrics", "unreadable_metrics"))


def test_model_gardens_numbers(tmp_path, monkeypatch):
    """N29: those of TensorBoard's files, by folder and tag; a disk that refuses them is said."""
    kinds.garden(tmp_path / "run")
    recorded = curves.read(str(tmp_path / "run"))
    assert recorded.get("validation", "accuracy").values == pytest.approx(
        [kinds.accuracy(1, s) for s in (10, 20, 30, 40)]
    )
    assert recorded.get("train", "loss").steps == [10, 20, 30, 40]

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(curves.EventFiles, "events", fail)
    assert curves.read(str(tmp_path / "run")).notes == ("TensorBoard's files cannot be read: Input/output error",)
