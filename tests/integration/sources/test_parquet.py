"""Parquet files: values, row groups that are decoded once, damage that names the file."""

import concurrent.futures
import itertools
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.sources.parquet import ParquetConfig
from tests.support.source_cases import tables


def written(path, data, **options):
    pq.write_table(data if isinstance(data, pa.Table) else pa.table(data), path, **options)
    return str(path)


def build(*files, **fields):
    return ParquetConfig(files=tuple(map(str, files)), **fields).build()


def evaluated(source, batch=8):
    """Reads all; returns the batches, or the error of the first example that cannot be read."""
    context = inputs.InputContext()
    params = DataConfig(global_batch_size=batch, is_training=False, workers=2)
    try:
        return list(inputs.from_source(source, params, context).as_numpy_iterator())
    except tf.errors.InvalidArgumentError:
        raise context.failure() from None


IDS = list(range(40))
COLUMNS = {
    "i8": (pa.array(IDS, pa.int8()), "int8", ()),
    "u64": (pa.array(IDS, pa.uint64()), "uint64", ()),
    "f16": (pa.array(np.arange(40, dtype=np.float16)), "float16", ()),
    "f64": ([number / 3 for number in IDS], "float64", ()),
    "flag": ([number % 3 == 0 for number in IDS], "bool", ()),
    "text": ([f"é{number}" for number in IDS], "object", ()),
    "bytes": ([b"\0%d\0" % number for number in IDS], "object", ()),
    "word": (pa.array(["a", "b"] * 20).dictionary_encode(), "object", ()),
    "list": (pa.array([[number, -number] for number in IDS], pa.list_(pa.int16())), "int16", (2,)),
    "fixed": (pa.array([[number] * 3 for number in IDS], pa.list_(pa.float32(), 3)), "float32", (3,)),
    "deep": (pa.array([[[number, 1], [2, 3]] for number in IDS], pa.list_(pa.list_(pa.int32()))), "int32", (2, 2)),
}


def test_values_keep_their_types(tmp_path):
    """N41: numbers, text, lists, structs, dictionaries; in any order, over row groups, after pickling."""
    data = {name: column for name, (column, *_) in COLUMNS.items()}
    data["struct"] = pa.array([{"a": number, "b": {"c": [str(number)] * 2}} for number in IDS])
    source = build(written(tmp_path / "a.parquet", data, row_group_size=7))
    order = np.random.RandomState(0).permutation(40).tolist()
    batch = pickle.loads(pickle.dumps(source)).take(order)
    struct = batch.pop("struct")
    assert {name: (str(value.dtype), value.shape[1:]) for name, value in batch.items()} == {
        name: (dtype, shape) for name, (_, dtype, shape) in COLUMNS.items()
    }
    assert batch["u64"].tolist() == order and batch["f64"].tolist() == [number / 3 for number in order]
    assert batch["text"].tolist() == [f"é{number}".encode() for number in order]
    assert batch["bytes"].tolist() == [b"\0%d\0" % number for number in order]
    assert batch["deep"][:, 0].tolist() == [[number, 1] for number in order]
    assert struct["a"].tolist() == order
    assert struct["b"]["c"].tolist() == [[str(number).encode()] * 2 for number in order]


@pytest.fixture
def decoded(monkeypatch):
    """The row groups that are decoded, as they come."""
    calls, read = [], pq.ParquetFile.read_row_group
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda self, *a, **k: calls.append(a) or read(self, *a, **k))
    return calls


def test_row_groups_are_shuffled_and_decoded_once(tmp_path, decoded):
    """N41: an epoch decodes each row group once, although threads ask for the same at the same time."""
    written(tmp_path / "a.parquet", tables.table(4000), row_group_size=100)
    source = build(tmp_path / "a.parquet")
    params = DataConfig(global_batch_size=50, is_training=True, shuffle_buffer_size=300, workers=4)
    ids = [batch["id"] for batch in itertools.islice(inputs.from_source(source, params).as_numpy_iterator(), 80)]
    assert sorted(np.concatenate(ids).tolist()) == list(range(4000))
    assert np.concatenate(ids[:6]).max() - np.concatenate(ids[:6]).min() > 300  # of groups in several places
    assert 40 <= len(decoded) <= 40 + 40  # those of the next epoch are read ahead


def test_few_row_groups_are_held(tmp_path, decoded):
    """N41: memory is bounded by what is expected, not by the files."""
    written(tmp_path / "a.parquet", tables.table(1000), row_group_size=100)
    source = build(tmp_path / "a.parquet")
    source.expect(200)
    barrier = threading.Barrier(4)

    def ask(_):
        barrier.wait(timeout=60)
        return source.take([0, 150])["id"].tolist()

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(4))) == [[0, 150]] * 4
    assert len(decoded) == 2
    source.take(list(range(0, 1000, 100)))
    source.take([0])
    assert len(decoded) > 10  # the first was given up, and read again


def test_only_the_columns_that_are_named_are_read(tmp_path):
    """N41: so a column that no tensor holds is no hindrance."""
    data = {"id": [1, 2], "when": pa.array([1, 2], pa.timestamp("s"))}
    path = written(tmp_path / "a.parquet", data)
    assert build(path, columns=("id",)).take([1, 0]) == {"id": pytest.approx([2, 1])}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            pa.array([1], pa.timestamp("us")),
            "column 'c' is timestamp[us], which no tensor holds; write it as numbers or text",
        ),
        (pa.array([1], pa.decimal128(5)), "column 'c' is decimal128(5, 0), which no tensor holds; write it as numbers"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())), "column 'c' is map<"),
        (pa.array([None], pa.null()), "column 'c' is null, which no tensor holds"),
    ],
)
def test_what_no_tensor_holds_is_refused(tmp_path, column, message):
    """N45: before the first step, with file, column and fix."""
    path = written(tmp_path / "a.parquet", {"id": [1], "c": column})
    with pytest.raises(inputs.DataError) as caught:
        build(path)
    assert f"{path}: {message}" in str(caught.value)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            [1, None, 3],
            "row 1: c is null; write what takes its place into the source, as in fill_null: {c: 0}, or leave",
        ),
        ([[1], [1, 2], [1]], "row 1: c has shape [2], and in the first example [1]"),
        (["a", None, "b"], "row 1: c is null; write what takes its place into the source, as in fill_null: {c: ''}"),
        ([{"d": 1}, {"d": None}, {"d": 1}], "row 1: c.d is null"),
        ([[1], [None], [1]], "row 1: c is null"),
        ([1, None, "fill_null"], None),
    ],
)
@pytest.mark.parametrize("rows_of_group", [3, 1])
def test_a_row_that_cannot_be_read_is_named(tmp_path, column, message, rows_of_group):
    """N45: with file, row and column, also where the rows before are in other groups; the others can be read."""
    fields = {"fill_null": {"c": 7}} if message is None else {}
    path = written(tmp_path / "a.parquet", {"c": [1, None] if fields else column}, row_group_size=rows_of_group)
    source = build(path, **fields)
    if message is None:
        assert source.take([0, 1])["c"].tolist() == [1, 7]
        return
    with pytest.raises(inputs.DataError) as caught:
        evaluated(source)
    assert f"{path}, {message}" in str(caught.value)
    source.take([0])
    source.take([2])


@pytest.mark.parametrize(
    ("second", "fields", "message"),
    [
        ({"id": [1.5]}, {}, "b.parquet: column 'id' is float64, and in {folder}/a.parquet int64"),
        ({"di": [1]}, {}, "files: {folder}/b.parquet has no column 'id'; there are di"),
        (
            {"id": [1]},
            {"columns": ("ids",)},
            "columns: {folder}/a.parquet has no column 'ids'; did you mean id?",
        ),
        ({"id": [1]}, {"fill_null": {"id": "x"}}, "fill_null: 'x' is no value of column 'id', which is int64"),
    ],
)
def test_files_that_differ_are_refused_before_the_first_step(tmp_path, second, fields, message):
    """N45: file and column are named."""
    written(tmp_path / "a.parquet", {"id": [0]})
    written(tmp_path / "b.parquet", second)
    with pytest.raises(inputs.DataError) as caught:
        build(tmp_path / "*.parquet", **fields)
    assert message.format(folder=tmp_path) in str(caught.value)


def test_the_fingerprint_is_that_of_the_data(tmp_path):
    """N45: a copy has the same; other values, another row, another file have another."""
    first = build(written(tmp_path / "a.parquet", {"id": [1, 2]})).fingerprint()
    (tmp_path / "copy").mkdir()
    assert build(written(tmp_path / "copy" / "a.parquet", {"id": [1, 2]})).fingerprint() == first
    others = [{"id": [1, 3]}, {"id": [1, 2, 3]}, {"ib": [1, 2]}]
    fingerprints = {build(written(tmp_path / "a.parquet", other)).fingerprint() for other in others}
    assert len(fingerprints | {first}) == 4


def test_files_at_a_url_are_read():
    """N41: through TensorFlow's file systems."""
    sink = pa.BufferOutputStream()
    pq.write_table(tables.table(30), sink, row_group_size=10)
    with tf.io.gfile.GFile("ram://tables/a.parquet", "wb") as file:
        file.write(sink.getvalue().to_pybytes())
    source = build("ram://tables/*.parquet")
    assert source.take([25, 3])["id"].tolist() == [25, 3] and source.where(3) == "ram://tables/a.parquet, row 3"


# Damage.


def places(path):
    """Returns an offset in each part of a file of one row group and one column."""
    column = pq.read_metadata(path).row_group(0).column(0)
    size = os.path.getsize(path)
    footer = size - 8 - int.from_bytes(Path(path).read_bytes()[-8:-4], "little")
    end = column.data_page_offset + column.total_compressed_size
    return {
        "first magic": 1,
        "page header": column.data_page_offset + 1,
        "payload": end - 10,
        "footer": footer + 2,
        "footer's length": size - 7,
        "last magic": size - 2,
    }


@pytest.mark.parametrize("part", ["first magic", "page header", "payload", "footer", "footer's length", "last magic"])
def test_a_damaged_byte_names_the_file(tmp_path, part):
    """N45: a page has a checksum where the writer was asked for it."""
    options = {"write_page_checksum": True, "use_dictionary": False, "compression": "none"}
    path = written(tmp_path / "a.parquet", {"id": np.arange(500)}, **options)
    good = written(tmp_path / "b.parquet", {"id": np.arange(500)}, **options)
    data = bytearray(Path(path).read_bytes())
    data[places(path)[part]] ^= 0xFF
    Path(path).write_bytes(data)
    with pytest.raises(inputs.DataError) as caught:
        evaluated(build(path, good))
    assert path in str(caught.value) and good not in str(caught.value)
    assert "write or copy the file again" in str(caught.value)


@pytest.mark.parametrize("size", [0, 3, 11, 100, -1, -8, -100])
def test_a_truncated_file_is_named(tmp_path, size):
    """N45"""
    path = written(tmp_path / "a.parquet", {"id": np.arange(500)})
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:size])
    with pytest.raises(inputs.DataError, match=f"{path}: .*; write or copy the file again") as caught:
        build(path)
    assert caught.value.field == "files"


def test_a_file_that_is_cut_while_it_is_read_is_named(tmp_path):
    """N45: after the footers were read."""
    path = written(tmp_path / "a.parquet", {"id": np.arange(50_000)}, row_group_size=10_000, use_dictionary=False)
    source = build(path)
    source.take([0])
    os.truncate(path, 50_000)
    with pytest.raises(inputs.DataError, match=f"{path}, row .*its row group .* cannot be decoded"):
        evaluated(source, batch=1000)
