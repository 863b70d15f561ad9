"""TensorFlow's files, written by us: they are those of TensorFlow, for each kind of value and each disk."""

import errno
import fcntl
import os

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import files
from official_trainer.checkpoints import bundle
from official_trainer.checkpoints.store import Snapshot
from official_trainer.errors import ExitCode

DTYPES = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
DTYPES += ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
STRINGS = [["", "a", "é"], ["x" * 70_000, ""]]


def contents(prefix):
    return {end: open(f"{prefix}.{end}", "rb").read() for end in ("data-00000-of-00001", "index")}


def write_theirs(prefix, tensors):
    names, values = list(tensors), list(tensors.values())
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)


def assert_same_files(tmp_path, tensors):
    write_theirs(str(tmp_path / "theirs"), tensors)
    assert bundle.is_writable(tensors)
    bundle.Bundle(dict(tensors), bundle.Memory()).write(str(tmp_path / "ours"))
    assert contents(tmp_path / "ours") == contents(tmp_path / "theirs")
    stored = bundle.stored_checksums(contents(tmp_path / "theirs")["index"])
    assert stored.keys() == tensors.keys()
    assert [key for key, value in tensors.items() if bundle.checksum_of(value) != stored[key]] == []


def test_what_is_no_index_is_refused(tmp_path):
    """N51: also one that is cut."""
    write_theirs(str(tmp_path / "theirs"), {"a": tf.constant(1)})
    with pytest.raises(ValueError, match="not an index of a checkpoint"):
        bundle.stored_checksums(contents(tmp_path / "theirs")["index"][:-1])


def test_every_dtype_and_shape_is_written_as_by_tensorflow(tmp_path):
    shapes = [(), (3,), (0,), (2, 0, 3), (2, 3, 5)]
    values = {f"{name}/{shape}": tf.cast(tf.ones(shape) * 2, name) for name in DTYPES for shape in shapes}
    values |= {f"string/{number}": tf.constant(strings) for number, strings in enumerate(STRINGS)}
    assert_same_files(tmp_path, {"z_first": tf.constant("graph"), **values, "a_last": tf.range(5)})


def test_an_index_of_many_blocks_is_that_of_tensorflow(tmp_path):
    """Blocks end at 256 KiB, between keys of which one begins like another, differs early, or ends high."""
    keys = [f"{'layer' * (number % 7)}/{number:05}/{'x' * (number * 37 % 600)}" for number in range(3000)]
    keys += ["a" * 400_000, "a" * 400_000 + "b", "a" * 400_001, "b" * 600_000, "ÿ" * 10]
    assert_same_files(tmp_path, {key: tf.constant(number) for number, key in enumerate(keys)})


@pytest.mark.parametrize("refusal", ["none", "switch", "write"])
def test_data_of_many_writes_is_whole_wherever_the_page_cache_cannot_be_avoided(tmp_path, monkeypatch, refusal):
    """N3: also on file systems that refuse to write around the page cache, or refuse the first such write."""
    monkeypatch.setattr(bundle, "_CHUNK_BYTES", 8192)
    set_direct, pwrite, refused = bundle._set_direct, os.pwrite, []

    def refuse_first(*args):
        if not refused:
            refused.append(args)
            raise OSError(errno.EINVAL, "Invalid argument")
        return pwrite(*args)

    if refusal == "switch":
        monkeypatch.setattr(bundle, "_set_direct", lambda descriptor, *, on: set_direct(descriptor, on=False))
    if refusal == "write":
        monkeypatch.setattr(os, "pwrite", refuse_first)
    sizes = [1, 8191, 8192, 100_003, 0, 4096]
    random = np.random.default_rng(0)
    assert_same_files(tmp_path, {str(size): tf.constant(random.bytes(size)) for size in sizes})
    assert bool(refused) == (refusal == "write")


def test_a_write_that_the_disk_cuts_short_is_continued(tmp_path, monkeypatch):
    """N3: a nearly full disk takes a part of a write."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, start: pwrite(file, data[: max(4096, len(data) // 3)], start))
    assert_same_files(tmp_path, {"a": tf.range(50_000), "b": tf.range(7)})


@pytest.mark.parametrize("taken", [0, 512])
def test_a_disk_that_takes_no_whole_page_is_written_through_the_page_cache(tmp_path, monkeypatch, taken):
    """N3: a write around the page cache that makes no progress is not tried for ever."""
    pwrite, calls = os.pwrite, []

    def takes_little(descriptor, data, start):
        calls.append(start)
        assert len(calls) < 10, "it does not end"
        is_direct = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
        return taken if is_direct else pwrite(descriptor, data, start)

    monkeypatch.setattr(os, "pwrite", takes_little)
    assert_same_files(tmp_path, {"a": tf.range(50_000), "b": tf.range(7)})


def test_a_disk_that_takes_nothing_is_a_fault_of_the_disk(tmp_path, monkeypatch):
    """N3: a save that cannot go on ends, and says so as for any disk that fails."""
    calls = iter([0] * 10)
    monkeypatch.setattr(os, "pwrite", lambda *_: next(calls))
    with pytest.raises(OSError, match="Input/output error") as caught:
        Snapshot(tf.train.Checkpoint(v=tf.Variable(tf.range(5000))), bundle.Memory()).write(str(tmp_path / "ckpt-1"))
    fault = files.as_storage_error(caught.value, str(tmp_path / "ckpt-1"))
    assert fault.exit_code == ExitCode.RETRY


def test_memory_is_kept_and_the_values_are_those_of_each_moment(tmp_path):
    """N3: a save leaves nothing of the one before, also when it is smaller or larger."""
    memory = bundle.Memory()
    for number, size in enumerate([1000, 10, 100_000]):
        variable = tf.Variable(tf.random.stateless_normal([size], seed=[1, number]))
        checkpoint = tf.train.Checkpoint(v=variable)
        snapshot = Snapshot(checkpoint, memory)
        expected = variable.numpy()
        variable.assign(tf.zeros([size]))
        snapshot.write(str(tmp_path / str(number)))
        variable.assign(tf.ones([size]))
        checkpoint.read(str(tmp_path / str(number))).assert_consumed()
        np.testing.assert_array_equal(variable.numpy(), expected)


def test_what_has_a_format_of_its_own_is_written_by_tensorflow(tmp_path):
    """N3: slices of a variable, and dtypes that are not known here."""
    variable = tf.Variable(tf.cast([1, 2, 3], tf.qint8))
    snapshot = Snapshot(tf.train.Checkpoint(v=variable), bundle.Memory())
    variable.assign(tf.cast([0, 0, 0], tf.qint8))
    snapshot.write(str(tmp_path / "a"))
    found = tf.train.load_variable(str(tmp_path / "a"), "v/.ATTRIBUTES/VARIABLE_VALUE")
    assert [int(each) for each in found.reshape(-1).view("int8")] == [1, 2, 3]
