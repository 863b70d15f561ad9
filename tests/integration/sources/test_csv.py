"""CSV files: values, errors with file, row and field."""

import gzip
import math
import os
import pickle

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.sources import csv
from official_trainer.sources.csv import CsvConfig
from tests.support.source_cases import tables


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    """Rows are read in small blocks."""
    monkeypatch.setattr(csv, "_BLOCK_BYTES", 400)


def written(path, text, encoding="utf8"):
    path.write_bytes(text.encode(encoding))
    return str(path)


def build(*files, **fields):
    return CsvConfig(files=tuple(map(str, files)), **fields).build()


def test_values_places_and_pickling(tmp_path):
    """N41: in any order, over files; a quoted text may hold a line end."""
    source = tables.csv(tmp_path, 60).build()
    order = np.random.RandomState(0).permutation(60).tolist()
    for rows in (source, pickle.loads(pickle.dumps(source))):
        batch = rows.take(order)
        assert batch["id"].tolist() == order and batch["x"].dtype == np.float32
        assert batch["text"].tolist() == [f"row\n{number}".encode() for number in order]
    assert source.where(2) == f"{tmp_path}/part-0.csv, row 4"
    assert source.where(59) == f"{tmp_path}/part-1.csv, row 31"


def test_types_are_found_or_given(tmp_path):
    """N41"""
    text = "a,b,c,d,e\n1,1.5,true,x,7\n2,NaN,false,,8\n"
    batch = build(written(tmp_path / "a.csv", text), column_types={"e": "uint8"}).take([1, 0])
    assert {name: str(value.dtype) for name, value in batch.items()} == {
        "a": "int64",
        "b": "float64",
        "c": "bool",
        "d": "object",
        "e": "uint8",
    }
    assert np.isnan(batch["b"][0]) and batch["d"].tolist() == [b"", b"x"]


def test_what_takes_the_place_of_missing_values(tmp_path):
    """N41: of numbers, texts, and a column that has no value at all; a text without it is what stands there."""
    path = written(tmp_path / "a.csv", "age,plan,note,none\n7,NA,NA,\n,,,\n1,a,b,\n")
    fill = {"age": math.nan, "plan": "unknown", "none": -1.0}
    batch = build(path, fill_null=fill, column_types={"age": "float32", "none": "float32"}).take([0, 1, 2])
    np.testing.assert_equal(batch["age"], [7, np.nan, 1])
    assert batch["plan"].tolist() == [b"unknown", b"unknown", b"a"]
    assert batch["note"].tolist() == [b"NA", b"", b"b"]
    assert batch["none"].tolist() == [-1, -1, -1]


def test_options_of_the_format(tmp_path):
    """N41: delimiter, encoding, names, columns, values for what is missing, gzip, one column with a strange name."""
    path = written(tmp_path / "a.csv", "1;é;\n2;ü;5\n", "latin1")
    options = {"delimiter": ";", "encoding": "latin1", "column_names": ("id", "text", "x")}
    source = build(path, **options, columns=("x", "text"), fill_null={"x": -1})
    assert source[0] == {"x": -1, "text": "é".encode()} and source[1] == {"x": 5, "text": "ü".encode()}
    assert source.where(0) == f"{path}, row 1"
    assert build(written(tmp_path / "c.csv", "a;b\n1\n"), columns=("a;b",))[0] == {"a;b": 1}
    with gzip.open(tmp_path / "b.csv.gz", "wb") as file:
        file.write(b"id\n4\n")
    assert build(tmp_path / "b.csv.gz")[0] == {"id": 4}
    with tf.io.gfile.GFile("ram://csv/a.csv", "w") as remote:
        remote.write("id\n5\n")
    assert build("ram://csv/a.csv")[0] == {"id": 5}


def test_a_file_is_read_as_it_is_now(tmp_path, monkeypatch):
    """N41: also with the size and the time that it had before, as in containers; nothing of it is kept elsewhere."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = written(tmp_path / "a.csv", "id\n1\n2\n")
    before, stat = build(path), os.stat(path)
    written(tmp_path / "a.csv", "id\n3\n4\n")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert build(path).take([0, 1])["id"].tolist() == [3, 4]
    assert before.take([0, 1])["id"].tolist() == [1, 2] and os.listdir(tmp_path) == ["a.csv"]
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"id\n1\n2\n")[:-3])
    with pytest.raises(inputs.DataError, match=r"a\.csv\.gz: "):
        build(tmp_path / "a.csv.gz")


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        (
            'id,t\n1,"a\nb"\n\nx,c\n',
            {"column_types": {"id": "int64"}},
            "{path}: field 'id': Row #3: CSV conversion error to",
        ),
        ("id,t\n1,a\n2\n", {}, "{path}: CSV parse error: Row #3: Expected 2 columns, got 1: 2; correct"),
        ("id,t\n1,a\nx,b\n", {"column_types": {"id": "int8"}}, "correct it, or say the type of the column, such as"),
        ("id,t\n1,a\n", {"columns": ("tt",)}, "columns: {path} has no column 'tt'; there are id, t"),
        ("id,id\n1,2\n", {}, "files: {path} has 2 columns 'id'; rename them"),
        ("id,t\n1,2020-01-01\n", {}, "t' is date32[day], which no tensor holds; set its type (string for dates"),
        ("id,t\n1,2\n", {"fill_null": {"it": 0}}, "fill_null: columns has no column 'it'"),
        (
            "id,t\n1,2\n",
            {"fill_null": {"id": "x"}},
            "fill_null: 'x' is no value of column 'id', which is int64; write one that is, or set",
        ),
        (
            "id,t\n1,2\n",
            {"column_types": {"ids": "int8"}},
            "column_types: {path} has no column 'ids'; did you mean id?",
        ),
        ("", {}, "{path}: Empty CSV file; correct"),
        ("id;t\n1;2\n", {}, "delimiter: {path} has one column, 'id;t'; set delimiter: \";\""),
        ("id,t\n1,2\n", {"delimiter": ";"}, "{path} has one column, 'id,t'; set delimiter: \",\""),
        ("id;t\n1,5;2\n", {}, 'got 2: 1,5;2; correct or copy the file; the delimiter is ","'),
        ("id,t\n", {}, "{path}: column 'id' is null, which no tensor holds"),
        ("id\n1\n", {"encoding": "utf-16"}, "the file is not utf-16: say its encoding, such as encoding: latin1"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, text, fields, message):
    """N45: before the first step, with the file, and the row and field where one is wrong."""
    path = written(tmp_path / "a.csv", text)
    with pytest.raises(inputs.DataError) as caught:
        build(path, **fields)
    assert message.format(path=path) in str(caught.value)


def test_a_column_of_text_stays_text(tmp_path):
    """N41: also with numbers in it; `column_types` makes numbers of it, and an error of what is none."""
    path = written(tmp_path / "a.csv", "t\nabc\n1\n2\n")
    assert build(path)[1] == {"t": b"1"}
    with pytest.raises(inputs.DataError, match=r"field 't': Row #2: .* invalid value 'abc'"):
        build(path, column_types={"t": "float32"})


def test_text_of_another_encoding_is_refused(tmp_path):
    """N45: in the first file as in a later one, with file, row and field, and in the header."""
    good, bad = written(tmp_path / "a.csv", "t\nü\n"), written(tmp_path / "b.csv", "t\nu\nü\n", "latin1")
    message = f"{bad}: field 't': Row #3: .* invalid UTF8 data; the file is not utf8: say its encoding, such as enc"
    for files in ([bad], [good, bad]):
        with pytest.raises(inputs.DataError, match=message):
            build(*files)
    with pytest.raises(inputs.DataError, match="the file is not utf8: say its encoding, such as encoding: latin1"):
        build(written(tmp_path / "c.csv", "ü\n1\n", "latin1"))
    assert build(bad, encoding="latin1")[1] == {"t": "ü".encode()}


def test_a_later_file_has_the_types_of_the_first(tmp_path):
    """N45: one that differs is named, with the row."""
    first, second = written(tmp_path / "a.csv", "id\n1\n"), written(tmp_path / "b.csv", "id\n2\n2.5\n")
    with pytest.raises(inputs.DataError, match=f"{second}: field 'id': Row #3: CSV conversion error to int64"):
        build(first, second)
    third = written(tmp_path / "c.csv", "ids\n1\n")
    with pytest.raises(inputs.DataError, match=f"{third} has no column 'id'; did you mean ids?"):
        build(first, third)


def test_a_last_line_without_an_end_is_a_warning(tmp_path, caplog):
    """N45: it may be half a line; of lines alone that are missing nothing tells."""
    for name, text, encoding in (("a", "id\n12\n", "utf8"), ("b", "id\r\n12\r\n", "utf-16"), ("c", "id\n1", "utf8")):
        build(written(tmp_path / f"{name}.csv", text, encoding), encoding=encoding)
        assert ("its last line has no end: is it cut off?" in caplog.text) == (name == "c")
