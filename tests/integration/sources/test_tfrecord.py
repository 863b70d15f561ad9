"""TFRecord files by the number of a record: values, the index, every kind of damage."""

import itertools
import os
import pickle
import struct
import threading

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config import DataConfig
from official_trainer.sources import records
from official_trainer.sources.tfrecord import TfrecordConfig
from tests.support.source_cases.files import record_of, write_tfrecords

COUNT = 20


def build(folder, **fields):
    return TfrecordConfig(files=str(folder / "part-*.tfrecord"), **fields).build()


def record_start(number):
    """Where a record of the first of one file begins."""
    return sum(16 + len(record_of(index)) for index in range(number))


def parse(record):
    return {"id": tf.io.decode_raw(tf.strings.substr(record, 0, 8), tf.int64)[0]}


def ids(dataset, count=None):
    return [batch["id"].tolist() for batch in itertools.islice(dataset.as_numpy_iterator(), count)]


def test_records_of_several_files_by_their_number(tmp_path):
    """N41: one by one, in any order, many at once, after pickling; the place of each is known."""
    paths = write_tfrecords(tmp_path, COUNT)
    source = build(tmp_path)
    expected = [record_of(number) for number in range(COUNT)]
    assert len(source) == COUNT and [source[number] for number in range(COUNT)] == expected
    order = [19, 0, 7, 6, 7, 13]
    assert source.take(order).tolist() == source.__getitems__(order) == [expected[number] for number in order]
    assert pickle.loads(pickle.dumps(source)).take(order).tolist() == source.take(order).tolist()
    assert source.where(7) == f"{paths[1]}: record 0, offset 0"
    assert source.where(6) == f"{paths[0]}: record 6, offset {record_start(6)}"
    with pytest.raises(IndexError, match="there is no record 20; there are 20"):
        source[COUNT]


def test_files_without_records_and_empty_records(tmp_path):
    """N41"""
    write_tfrecords(tmp_path, 2, files=4)
    with tf.io.TFRecordWriter(str(tmp_path / "part-9.tfrecord")) as writer:
        writer.write(b"")
    source = build(tmp_path)
    assert source.take([0, 1, 2]).tolist() == [record_of(0), record_of(1), b""]


def test_a_file_that_leaves_the_cache_stays_open_while_it_is_read(tmp_path, monkeypatch):
    """N41: as where two threads open it at once, or more files are read than are kept open."""
    monkeypatch.setattr(records, "_MOST_OPEN", 0)
    write_tfrecords(tmp_path, COUNT)
    source = build(tmp_path)
    assert source.take(range(COUNT)).tolist() == [record_of(number) for number in range(COUNT)]


# The index.


def test_an_index_is_made_once_and_again_when_its_file_changes(tmp_path):
    """N41: also where size and time are those of another state; a damaged index does no harm."""
    (path,) = write_tfrecords(tmp_path, COUNT, files=1)
    build(tmp_path)
    index = tmp_path / ".part-0.tfrecord.index"
    before = index.stat()
    build(tmp_path)
    assert index.stat().st_mtime_ns == before.st_mtime_ns and index.stat().st_ino == before.st_ino
    content = index.read_bytes()
    for damaged in (content[:-3], content[:40], b"", content[:50] + bytes([content[50] ^ 1]) + content[51:]):
        index.write_bytes(damaged)
        assert build(tmp_path)[5] == record_of(5) and index.read_bytes() == content
    write_tfrecords(tmp_path, 2 * COUNT, files=1)
    assert len(build(tmp_path)) == 2 * COUNT
    assert path.exists()


def test_a_file_that_changed_with_size_and_time_unchanged_is_named(tmp_path):
    """N45: the index then leads to another place."""
    (path,) = write_tfrecords(tmp_path, COUNT, files=1)
    build(tmp_path)
    before = path.stat()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in reversed(range(COUNT)):
            writer.write(record_of(number))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(inputs.DataError, match=r"record 1, offset \d+: its length .* was changed .*; remove the index"):
        build(tmp_path)[1]


def test_an_index_that_cannot_be_kept_is_made_anew(tmp_path, caplog):
    """N41: the data may lie where nothing can be written."""
    write_tfrecords(tmp_path, COUNT)
    (tmp_path / "file").write_text("")
    source = build(tmp_path, index_folder=str(tmp_path / "file" / "below"))
    assert source[3] == record_of(3)
    assert "the index of 3 TFRecord files cannot be kept" in caplog.text and "set index_folder" in caplog.text


def test_an_index_folder_keeps_files_of_one_name_apart(tmp_path):
    """N41: nothing is written beside the data."""
    for name, count in (("a", 4), ("b", 9)):
        (tmp_path / name).mkdir()
        write_tfrecords(tmp_path / name, count, files=1)
    section = TfrecordConfig(files=str(tmp_path / "?" / "*.tfrecord"), index_folder=str(tmp_path / "kept"))
    assert [len(section.build()), len(section.build())] == [13, 13]
    assert len(list((tmp_path / "kept").iterdir())) == 2
    assert [path.name for path in sorted((tmp_path / "a").iterdir())] == ["part-0.tfrecord"]


def test_processes_that_make_an_index_at_the_same_time(tmp_path):
    """N42: each finds a whole one, and none is left half written."""
    write_tfrecords(tmp_path, 500, files=1)
    start, lengths = threading.Barrier(6), []

    def make():
        start.wait()
        lengths.append(len(build(tmp_path)))

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lengths == [500] * 6
    assert sorted(path.name for path in tmp_path.iterdir()) == [".part-0.tfrecord.index", "part-0.tfrecord"]


# Damage.

AT = 7
KINDS = {"length": 0, "its checksum": 8, "data": 12, "their checksum": -4}


def damage(path, damaged):
    """Flips a bit of record AT; returns where it begins."""
    start, size = record_start(AT), 16 + len(record_of(AT))
    content = bytearray(path.read_bytes())
    content[start + KINDS[damaged] % size] ^= 0x40
    path.write_bytes(content)
    return start


@pytest.mark.parametrize("damaged", KINDS)
@pytest.mark.parametrize("is_indexed", [False, True])
def test_each_kind_of_byte_that_is_damaged_is_named(tmp_path, damaged, is_indexed):
    """N45: file, record and offset; the other records can be read."""
    (path,) = write_tfrecords(tmp_path, COUNT, files=1)
    source = build(tmp_path) if is_indexed else None
    start = damage(path, damaged)
    with pytest.raises(inputs.DataError) as caught:
        source = source or build(tmp_path)
        source.take(range(COUNT))
    assert str(caught.value).removeprefix("files: ").startswith(f"{path}: record {AT}, offset {start}: ")
    if source:
        assert [source[index] for index in range(COUNT) if index != AT] == [
            record_of(index) for index in range(COUNT) if index != AT
        ]


@pytest.mark.parametrize("cut", [1, 5, 14, 20])
@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_file_that_was_cut_is_named(tmp_path, cut, is_indexed):
    """N45: within the last record, or in the header of one."""
    (path,) = write_tfrecords(tmp_path, COUNT, files=1)
    source = build(tmp_path) if is_indexed else None
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    last = COUNT - 1
    with pytest.raises(inputs.DataError, match=f"record {last}, offset {record_start(last)}: the file ends within it"):
        (source or build(tmp_path)).take([last])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"this is some text, not records",
            "record 0, offset 0: its length does not fit its checksum; this may not be",
        ),
        (b"\x1f\x8b" + bytes(40), "it is compressed by gzip; write it without compression"),
        (struct.pack("<Q", 1 << 62), "record 0, offset 0: the file ends within it"),
    ],
)
def test_what_is_no_tfrecord_file_is_refused(tmp_path, content, message):
    """N45"""
    (tmp_path / "part-0.tfrecord").write_bytes(content)
    with pytest.raises(inputs.DataError) as caught:
        build(tmp_path)
    assert message in str(caught.value)


# Sections.


def test_a_pattern_without_files_names_the_field_of_the_section(tmp_path):
    """N45"""
    write_tfrecords(tmp_path, 3)
    section = TfrecordConfig(files=str(tmp_path / "prat-0.tfrecord"))
    with pytest.raises(inputs.DataError) as caught:
        inputs.from_source(section, DataConfig(is_training=False))
    assert caught.value.field == "source.files"
    assert "no file matches" in str(caught.value) and "did you mean" in str(caught.value)


# Parsed by TensorFlow.


def params_for(folder, batch=4, **fields):
    source = TfrecordConfig(files=str(folder / "part-*.tfrecord"))
    return DataConfig(source=source, global_batch_size=batch, **fields)


def test_from_tfrecords_reads_a_source(tmp_path):
    """N41, N42: the examples of each step are those of `from_source` without a parser, from any step on."""
    write_tfrecords(tmp_path, COUNT)
    params = params_for(tmp_path, is_training=True, seed=3)
    batches = ids(inputs.from_tfrecords(params, parse_fn=parse), 12)
    raw = inputs.from_source(params.source, params)
    assert batches == [
        [int.from_bytes(example[:8], "little") for example in batch] for batch in raw.take(12).as_numpy_iterator()
    ]
    assert sorted(itertools.chain.from_iterable(batches[:5])) == list(range(COUNT))
    later = inputs.InputContext(start_step=7)
    assert ids(inputs.from_tfrecords(params, later, parse_fn=parse), 5) == batches[7:]
    assert later.examples_per_epoch == COUNT and not later.order_depends_on_pipelines


def strict(record):
    tf.debugging.assert_less(tf.strings.length(record), 14)
    return parse(record)


def test_a_record_that_cannot_be_parsed_is_found(tmp_path):
    """N45: by the place of the source; all after the first are found when they are read."""
    write_tfrecords(tmp_path, COUNT)
    params, context = params_for(tmp_path, is_training=False), inputs.InputContext()
    dataset = inputs.from_source(params.source, params, context, parse_fn=strict)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        ids(dataset)
    explained = inputs.explain_data_error(caught.value, params, "task.train_data", context.find_record)
    assert "parse_fn failed on a record" in str(explained)
    assert f"{tmp_path / 'part-0.tfrecord'}: record 6, offset " in str(explained)


def test_parse_fn_needs_records():
    """N41"""
    with pytest.raises(
        inputs.DataError, match="parse_fn parses serialized records, and an example of the source has x"
    ):
        inputs.from_source([{"x": np.zeros(3)}], DataConfig(is_training=False), parse_fn=parse)
