"""ArrayRecord files by the number of a record: values, every kind of damage."""

import pickle

import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config import DataConfig
from official_trainer.sources.array_record import ArrayRecordConfig
from tests.support.source_cases.files import record_of, write_array_records

COUNT = 20


def build(folder):
    return ArrayRecordConfig(files=str(folder / "part-*")).build()


def test_records_of_several_files_by_their_number(tmp_path):
    """N41: in any order, after pickling; the place of each is known."""
    paths = write_array_records(tmp_path, COUNT)
    source = pickle.loads(pickle.dumps(build(tmp_path)))
    order = [19, 0, 7, 6, 7, 13]
    assert source.take(order).tolist() == [record_of(number) for number in order]
    assert source.where(8) == f"{paths[1]}: record 1"


def test_examples_of_tensorflow_are_parsed(tmp_path):
    """N41: `tf.train.Example` in ArrayRecord, by one parse_fn."""
    from array_record.python import array_record_module

    writer = array_record_module.ArrayRecordWriter(str(tmp_path / "part-0"), "group_size:1")
    for number in range(5):
        feature = {"id": tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))}
        writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    writer.close()

    def parse(record):
        return tf.io.parse_single_example(record, {"id": tf.io.FixedLenFeature([], tf.int64)})

    source = ArrayRecordConfig(files=str(tmp_path / "part-0"))
    params = DataConfig(source=source, global_batch_size=3, is_training=False)
    batches = [batch["id"].tolist() for batch in inputs.from_tfrecords(params, parse_fn=parse).as_numpy_iterator()]
    assert batches == [[0, 1, 2], [3, 4]]


def test_an_empty_file_has_no_record(tmp_path):
    """N41: and is not taken for a damaged one."""
    write_array_records(tmp_path, 0, files=1)
    assert len(build(tmp_path)) == 0


AT = 7
CHUNK_HEADER = 40  # bytes of Riegeli's header of a chunk


def flipped(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)


def chunks(path):
    """Where each chunk of a file begins, by its headers: of the signature, the records, the end."""
    content, at, offsets = path.read_bytes(), 64, []
    while at < len(content) and any(content[at : at + CHUNK_HEADER]):
        offsets.append(at)
        at += CHUNK_HEADER + int.from_bytes(content[at + 8 : at + 16], "little")
    return offsets


@pytest.mark.parametrize("damaged", ["header", "data"])
def test_a_damaged_chunk_names_the_record(tmp_path, damaged):
    """N45: a chunk is a record; the other records can be read."""
    (path,) = write_array_records(tmp_path, COUNT, files=1, options="group_size:1,uncompressed")
    start = chunks(path)[AT]
    flipped(path, start + (3 if damaged == "header" else CHUNK_HEADER + 2))
    source = build(tmp_path)
    with pytest.raises(inputs.DataError, match=f"{path}: record {AT}: Corrupted Riegeli/records file") as caught:
        source.take(range(COUNT))
    assert ("chunk header hash" if damaged == "header" else "chunk data hash") in str(caught.value)
    for number in {*range(COUNT)} - {AT}:
        assert source[number] == record_of(number)


def footer(path):
    """Where the footer begins, and the last block, that leads to it."""
    return chunks(path)[COUNT], path.stat().st_size - (64 << 10)


@pytest.mark.parametrize(
    "where", ["header of the footer", "data of the footer", "last block", "cut", "cut to 64 KiB", "cut to nothing"]
)
def test_a_damaged_end_names_the_file(tmp_path, where):
    """N45: the library itself says that such a file has no record."""
    (path,) = write_array_records(tmp_path, COUNT, files=1)
    start, last = footer(path)
    if where.startswith("cut"):
        path.write_bytes(path.read_bytes()[: {"cut": -1, "cut to 64 KiB": 64 << 10, "cut to nothing": 0}[where]])
    else:
        flipped(
            path, {"header of the footer": start + 3, "data of the footer": start + 45, "last block": last + 3}[where]
        )
    with pytest.raises(inputs.DataError, match="its end, which says where records are, cannot be read") as caught:
        build(tmp_path)
    assert str(caught.value).startswith(f"files: {path}: ")


@pytest.mark.parametrize("content", [b"text", bytes(200_000)])
def test_what_is_no_array_record_file_is_refused(tmp_path, content):
    """N45"""
    (tmp_path / "part-0").write_bytes(content)
    with pytest.raises(inputs.DataError, match=f"{tmp_path / 'part-0'}: its end, which says"):
        build(tmp_path)
