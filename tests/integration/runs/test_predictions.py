"""Predictions in files: five formats, what is in a file, going on, several processes, and what is refused."""

import json
import math
from pathlib import Path

import numpy as np
import pandas
import pytest
import tensorflow as tf

from official_trainer.checkpoints.manifest import signed
from official_trainer.runs import prediction_formats
from official_trainer.runs.predictions import MANIFEST, PredictionFiles, PredictionsError, Share, read_continuable
from tests.support.cases import cases
from tests.support.runs import contents

SETTINGS = {"experiment": "toy", "format": "jsonl", "shard_size": 4, "checkpoint": 100, "task.held_out": 0.2}
FORMATS = prediction_formats.FORMATS


def columns(start, stop):
    """Rows that say which they are, of every kind that all formats hold."""
    numbers = np.arange(start, stop)
    return {
        "logits": (numbers[:, None] + np.array([0.5, 0.1])).astype("float32"),
        "label": numbers.astype("int32"),
        "is_odd": numbers % 2 == 1,
        "box/corners": np.tile(numbers[:, None, None], [1, 2, 3]).astype("float32"),
    }


def opened(directory, share=(0, 1), **settings):
    """The files of batches of two rows, two batches in each unless `shard_size` says otherwise."""
    index, count = share
    Path(directory).mkdir(exist_ok=True)
    return PredictionFiles(
        str(directory), {**SETTINGS, **settings}, batch_size=2, share=Share(index=index, count=count)
    )


def fill(target, num_batches, most=None):
    """Writes the files of a share, at most so many; then the data has ended."""
    size, number, written = target.batches_per_file, target.next_number(), 0
    while number is not None and number * size < num_batches and written != most:
        stop = min(num_batches, (number + 1) * size)
        target.write(number, [columns(2 * batch, 2 * batch + 2) for batch in range(number * size, stop)])
        number, written = target.next_number(number + 1), written + 1
    return target.finish(-(-num_batches // size)) if most is None else None


def names(directory):
    return sorted(path.name for path in Path(directory).glob("predictions-*"))


def manifest_in(directory):
    return json.loads((Path(directory) / MANIFEST).read_text())


# Formats.


def written(format, tmp_path, *chunks):
    path = str(tmp_path / f"rows.{format}")
    prediction_formats.write(format, path, chunks)
    return path


TEXT = np.array([b"a", "é,\n".encode()], object)


def test_jsonl_gives_every_value_back(tmp_path):
    """N18: an object a line; strict JSON for numbers that are not finite; text as text."""
    strange = np.array([[0.1, np.nan], [np.inf, -np.inf]], "float32")
    path = written("jsonl", tmp_path, {**columns(0, 2), "strange": strange, "name": TEXT})
    rows = [json.loads(line, parse_constant=pytest.fail) for line in Path(path).read_text().splitlines()]
    assert [row["name"] for row in rows] == ["a", "é,\n"]
    assert [row["is_odd"] for row in rows] == [False, True]
    assert np.array([[float(v) for v in row["strange"]] for row in rows], "float32").tobytes() == strange.tobytes()
    assert np.array([row["box/corners"] for row in rows], "float32").tobytes() == columns(0, 2)["box/corners"].tobytes()


def test_tfrecord_gives_every_value_back(tmp_path):
    """N18: Examples, with the shape of what has several dimensions, which may differ from row to row."""
    other = {**columns(4, 5), "box/corners": np.ones([1, 4, 3], "float32"), "name": np.array([[b"x\xff", b""]], object)}
    path = written("tfrecord", tmp_path, columns(0, 2), columns(2, 4), other)
    examples = [tf.train.Example.FromString(r.numpy()).features.feature for r in tf.data.TFRecordDataset(path)]
    assert [list(example["label"].int64_list.value) for example in examples] == [[n] for n in range(5)]
    assert [list(example["is_odd"].int64_list.value) for example in examples] == [[0], [1], [0], [1], [0]]
    assert np.array(examples[1]["logits"].float_list.value, "float32").tobytes() == columns(1, 2)["logits"].tobytes()
    assert "logits/shape" not in examples[1]
    assert [list(example["box/corners/shape"].int64_list.value) for example in examples] == [[2, 3]] * 4 + [[4, 3]]
    assert list(examples[4]["name"].bytes_list.value) == [b"x\xff", b""]


@pytest.mark.parametrize("only", [(), ("logits",)])
def test_npy_gives_every_value_back(only, tmp_path):
    """N18: one array, or several by name; nothing is pickled."""
    chunks = [{name: part[name] for name in only or part} for part in (columns(0, 3), columns(3, 5))]
    loaded = np.load(written("npy", tmp_path, *chunks))
    for name in chunks[0]:
        found, expected = loaded if only else loaded[name], columns(0, 5)[name]
        assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())


def test_csv_gives_every_value_back(tmp_path):
    """N18: to pandas; a column for each number of an output, also those that are not finite, and text."""
    strange = np.array([np.nan, -np.inf], "float32")
    table = pandas.read_csv(written("csv", tmp_path, columns(0, 2), columns(2, 4)))
    assert [*table] == [
        "logits/0",
        "logits/1",
        "label",
        "is_odd",
        *(f"box/corners/{i}/{j}" for i in (0, 1) for j in range(3)),
    ]
    assert table[["logits/0", "logits/1"]].to_numpy("float32").tobytes() == columns(0, 4)["logits"].tobytes()
    assert table["is_odd"].tolist() == [False, True, False, True]
    assert table["box/corners/1/2"].tolist() == [0, 1, 2, 3]
    table = pandas.read_csv(written("csv", tmp_path, {"strange": strange, "id": TEXT}))
    assert table["strange"].to_numpy("float32").tobytes() == strange.tobytes()
    assert table["id"].tolist() == ["a", "é,\n"]


def test_parquet_gives_every_value_back(tmp_path):
    """N18: to pandas, with types; rows that are arrays are lists, which may differ in length."""
    other = {**columns(4, 5), "box/corners": np.ones([1, 1, 2], "float32")}
    table = pandas.read_parquet(written("parquet", tmp_path, columns(0, 2), columns(2, 4), other))
    assert [str(table[name].dtype) for name in table] == ["object", "int32", "bool", "object"]
    logits = np.stack(table["logits"])
    assert (logits.dtype, logits.tobytes()) == (np.float32, columns(0, 5)["logits"].tobytes())
    assert [len(box) for box in table["box/corners"]] == [2, 2, 2, 2, 1]
    assert np.stack(table["box/corners"][3]).tolist() == columns(3, 4)["box/corners"][0].tolist()
    table = pandas.read_parquet(written("parquet", tmp_path, {"id": TEXT, "none": np.zeros([2, 0], "float32")}))
    assert table["id"].tolist() == ["a", "é,\n"] and [*map(len, table["none"])] == [0, 0]


BYTES, WIDE, RAGGED = np.array([b"\xff"], object), np.zeros([1], "complex64"), (np.zeros([1, 2]), np.zeros([1, 3]))
REFUSED = [
    ("tfrecord", [np.zeros([2])], r"'x' is float64, which it cannot hold; use --format=jsonl or npy or csv or parquet"),
    ("tfrecord", [WIDE], r"--format=tfrecord: the output 'x' is complex64, .*use --format=npy$"),
    ("jsonl", [WIDE], r"--format=jsonl: the output 'x' is complex64, which it cannot hold; use --format=npy"),
    ("csv", [WIDE], r"--format=csv: the output 'x' is complex64"),
    ("parquet", [WIDE], r"--format=parquet: the output 'x' is complex64"),
    *((format, [BYTES], r"bytes that are not UTF-8 text .*tfrecord$") for format in ("jsonl", "csv", "parquet")),
    ("npy", [BYTES], r"--format=npy: the output 'x' holds bytes, which it cannot hold; use --format=tfrecord"),
    *((format, RAGGED, r"has rows of the shapes \[2\], \[3\], .*jsonl or parquet") for format in ("npy", "csv")),
]  # fmt: skip


def test_what_a_format_cannot_hold_is_refused(tmp_path):
    """N18: with the name of the output and the formats that can; no half file stays, and nothing is begun."""
    for format, batches, message in REFUSED:
        target = opened(tmp_path, format=format)
        with pytest.raises(PredictionsError, match=message):
            target.write(0, [{"x": values} for values in batches])
        assert contents(tmp_path) == {}, (format, message)


# Files.


def test_a_file_holds_the_same_batches_whoever_writes_it(tmp_path):
    """N18: in order, the last one has the rest; the manifest has the settings, and that all are there."""
    target = opened(tmp_path, shard_size=6)
    assert (target.batches_per_file, target.next_number()) == (3, 0)
    assert fill(target, 8)
    assert names(tmp_path) == [f"predictions-0000{number}.jsonl" for number in range(3)]
    lines = [(tmp_path / name).read_text().splitlines() for name in names(tmp_path)]
    assert [len(of_file) for of_file in lines] == [6, 6, 4]
    assert [json.loads(line)["label"] for of_file in lines for line in of_file] == list(range(16))
    manifest = manifest_in(tmp_path)
    assert (manifest["done"], manifest["num_files"]) == (True, 3)
    assert manifest["settings"] == {**SETTINGS, "shard_size": 6}


def test_files_are_large_unless_told_otherwise(tmp_path):
    """N18: 32 MiB of rows, but no more than a hundred thousand; batches are whole."""

    def chosen(row):
        target = opened(tmp_path, shard_size=None)
        return target.choose_size([{"x": np.stack([row, row])}]), target.batches_per_file

    assert chosen(np.zeros([1 << 20], "float32")) == (4, 4)
    assert chosen(np.zeros([], "int32")) == (50_000, 50_000)
    assert chosen(np.zeros([1 << 24], "float32")) == (1, 1)


BROKEN = [(format, most, share) for format in FORMATS for most in (0, 1, 3) for share in ((0, 1), (1, 2))]


@pytest.mark.parametrize(
    ("format", "most", "first"),
    cases(BROKEN, *(("npy", 1, (0, 1)), ("csv", 3, (0, 1)), ("parquet", 1, (1, 2)), ("tfrecord", 0, (0, 1)))),
)
def test_what_was_broken_off_ends_with_the_same_bytes(format, most, first, tmp_path):
    """N18: files that are there are not written again, and what a killed process left goes; by other processes, too."""
    fill(opened(tmp_path / "whole", format=format), 9)
    folder = tmp_path / "broken"
    fill(opened(folder, first, format=format), 9, most)
    there = {name: (folder / name).stat().st_mtime_ns for name in names(folder)}
    assert len(there) == min(most, 5 if first == (0, 1) else 2)
    for suffix in FORMATS:  # of processes that were killed while they wrote
        (folder / f"predictions-00004.{suffix}.tmp-12-0123abcd").write_text("x")
    again = opened(folder, format=format, shard_size=None if there else 4)
    assert fill(again, 9)
    assert contents(folder) == contents(tmp_path / "whole")
    assert there.items() <= {name: (folder / name).stat().st_mtime_ns for name in names(folder)}.items()
    assert opened(folder, format=format).next_number() is None


@pytest.mark.parametrize(
    ("num_batches", "count"), cases([(n, c) for n in (1, 4, 8, 9) for c in (2, 3, 7)], (9, 2), (4, 7))
)
def test_any_number_of_processes_write_what_one_does(num_batches, count, tmp_path):
    """N18: in any order, with more processes than files; the one that sees all files says that they are there."""
    fill(opened(tmp_path / "whole"), num_batches)
    said = [fill(opened(tmp_path / "shared", (index, count)), num_batches) for index in reversed(range(count))]
    assert said == [False] * (count - 1) + [True]
    assert contents(tmp_path / "shared") == contents(tmp_path / "whole")


def test_a_file_that_is_gone_is_written_again(tmp_path):
    """N18: of predictions that were done, and their manifest stays as it is."""
    fill(opened(tmp_path), 9)
    before = contents(tmp_path)
    for name in names(tmp_path)[1:4:2]:
        (tmp_path / name).unlink()
    target = opened(tmp_path)
    assert [target.next_number(start) for start in (0, 2, 4)] == [1, 3, None]
    assert fill(target, 9)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("num_batches", [3, 20])
def test_other_data_is_noticed_by_the_number_of_files(num_batches, tmp_path):
    """N18: where the data has become shorter or longer since; nothing says that all is there."""
    fill(opened(tmp_path), 9)
    (tmp_path / names(tmp_path)[2]).unlink()
    with pytest.raises(
        PredictionsError, match=r"was begun with other data: this data makes \d+ files, not 5; name anot"
    ):
        fill(opened(tmp_path), num_batches)


# What is refused.


OTHER_SETTINGS = [
    ({"format": "npy"}, "--format: jsonl -> npy"),
    ({"shard_size": 6}, "--shard_size: 4 -> 6"),
    ({"checkpoint": 200}, "--checkpoint: 100 -> 200"),
    ({"task.held_out": 0.5}, "task.held_out: 0.2 -> 0.5"),
    ({"gin f.x": "2"}, "gin f.x: not set -> 2"),
]


def test_predictions_made_with_other_settings_are_not_mixed(tmp_path):
    """N18: refused with the setting and both values; nothing is changed."""
    fill(opened(tmp_path), 3)
    before = contents(tmp_path)
    said = rf"--output={tmp_path} holds predictions that were made with other settings:"
    for settings, line in OTHER_SETTINGS:
        with pytest.raises(PredictionsError) as caught:
            opened(tmp_path, **settings)
        assert str(caught.value).splitlines() == [
            said, f"  {line}", "Use those to continue, or name another --output"
        ]  # fmt: skip
        assert caught.value.exit_code == 2
    assert contents(tmp_path) == before


def test_a_setting_that_is_nan_is_no_other_one(tmp_path):
    """N18: as of `fill_null: {age: .nan}`."""
    fill(opened(tmp_path, fill_null=math.nan), 9)
    assert opened(tmp_path, fill_null=math.nan).next_number() is None


def test_processes_that_start_together_with_other_settings_do_not_mix(tmp_path):
    """N18: the one that has its first file later is refused."""
    late = opened(tmp_path, (1, 2), checkpoint=200)
    fill(opened(tmp_path, (0, 2)), 9, 1)
    with pytest.raises(PredictionsError, match=r"--checkpoint: 100 -> 200"):
        fill(late, 9)
    assert names(tmp_path) == ["predictions-00000.jsonl"]


def test_other_directories_are_refused(tmp_path):
    """N18: one of other files, a file, a manifest that cannot be read, or was changed."""
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").touch()
    with pytest.raises(
        PredictionsError, match=r"holds chapter1.tex, but no predictions of official-trainer; name a new"
    ):
        opened(tmp_path / "thesis")
    (tmp_path / "file").touch()
    with pytest.raises(PredictionsError, match=r"--output=.*file is not a directory; name another"):
        read_continuable(str(tmp_path / "file"), SETTINGS)
    (tmp_path / "bad").mkdir()
    for text, what in (
        ("{", "Expecting"),
        (signed({"format_version": 2}), "format version is 2"),
        ("{}", "its own checksum"),
    ):
        (tmp_path / "bad" / MANIFEST).write_text(text)
        with pytest.raises(
            PredictionsError, match=rf"predictions.json cannot be read \(.*{what}.*name another --output"
        ):
            opened(tmp_path / "bad")
    (tmp_path / "bad" / MANIFEST).unlink()
    (tmp_path / "bad" / MANIFEST).symlink_to("nothing")
    with pytest.raises(PredictionsError, match=r"predictions.json cannot be read \(.*No such file"):
        opened(tmp_path / "bad")
