import itertools
import os

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.errors import ExitCode
from official_trainer.inputs.files import find_files
from tests.support.cases import full
from tests.support.record_files import contexts, parse, write

RECORD_BYTES = 8 + 4 + 4 + 4  # length, checksum, an int32, checksum


def write_parts(folder):
    """Writes four files with 7, 5, 0 and 11 records, numbered 0 to 22 in order."""
    first = 0
    for number, records in enumerate([7, 5, 0, 11]):
        write(folder / f"part-{number}.tfrecord", range(first, first + records))
        first += records
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The four files; no test may change them."""
    return write_parts(tmp_path_factory.mktemp("records"))


@pytest.fixture
def own_folder(tmp_path):
    """The four files, for a test that changes them."""
    return write_parts(tmp_path)


def section(folder, batch=4, training=True, **settings):
    settings = {"input_path": f"{folder}/part-*.tfrecord", "shuffle_buffer_size": 6} | settings
    return DataConfig(global_batch_size=batch, is_training=training, **settings)


def read(params, count, context=None, **settings):
    dataset = inputs.from_tfrecords(params, context, parse_fn=parse, **settings)
    return [element["id"] for element in itertools.islice(dataset.as_numpy_iterator(), count)]


def batch_of(job):
    """Returns a batch that divides over the replicas of a job, and of which an epoch holds several if it can."""
    return 4 if 4 % job[1] == 0 else 24


@pytest.mark.parametrize(
    ("job", "pipeline", "cache", "start"),
    [((1, 1), 0, True, 1), full(((1, 2), 0, False, 7)), ((2, 2), 0, False, 7), full(((8, 8), 7, True, 1))],
)
def test_starts_at_any_step(folder, job, pipeline, cache, start):
    """N1: the order does not depend on where the run was restarted, in any epoch, for any pipeline."""
    each = job[1] // job[0]
    params = section(folder, batch=batch_of(job), cache=cache)
    whole = read(params, (start + 3) * each, contexts(job)[pipeline])
    context = contexts(job, start_step=start)[pipeline]
    np.testing.assert_array_equal(read(params, 3 * each, context), whole[start * each :])
    assert context.starts_here
    assert context.examples_per_epoch == 23, "those of all pipelines, in each of them"


@pytest.mark.parametrize(
    ("job", "pipeline", "settings", "start"),
    [
        ((1, 1), 0, {"cache": True}, 30),
        full(((1, 2), 0, {"shuffle": True}, 4)),
        ((2, 2), 1, {}, 4),
        ((2, 2), 0, {"drop_remainder": True}, 1),
    ],
)
def test_evaluation_starts_at_any_step(folder, job, pipeline, settings, start):
    """N18: predictions go on where they were broken off, also behind the last batch."""
    params = section(folder, training=False, **settings)
    whole = read(params, None, contexts(job)[pipeline])
    context = contexts(job, start_step=start)[pipeline]
    rest = read(params, None, context)
    assert [element.tolist() for element in rest] == [e.tolist() for e in whole[start * job[1] // job[0] :]]
    assert context.starts_here


def test_order_depends_on_the_seed_alone(folder):
    """The data's own seed goes before that of the context; without either it is 0."""
    params = section(folder)
    first = read(params, 12, contexts((2, 2))[0])
    other = contexts((2, 2), seed=1)[0]
    tf.random.set_seed(123)
    np.testing.assert_array_equal(read(params.replace(seed=0), 12, other), first)
    assert not np.array_equal(read(params, 12, other), first)


def test_files_change_their_order_too(folder):
    """With a buffer of one record, only the order of files differs between epochs."""
    orders = np.concatenate(read(section(folder, shuffle_buffer_size=1, cycle_length=1), 92 // 4)).reshape(4, 23)
    assert len({tuple(order) for order in orders}) > 1
    for order in orders:
        assert {tuple(order[i : i + 5]) for i in range(19)} >= {(7, 8, 9, 10, 11)}


def test_cycle_and_block_length(folder):
    def in_order(**settings):
        return np.concatenate(read(section(folder, training=False, **settings), None)).tolist()

    assert in_order(cycle_length=1) == list(range(23))
    assert in_order(cycle_length=2, block_length=2)[:6] == [0, 1, 7, 8, 2, 3]
    assert in_order() == in_order(cycle_length=4)


def test_pipelines_without_sharding_read_everything(folder):
    seen = [read(section(folder, sharding=False), 12, context) for context in contexts((2, 2))]
    assert set(np.concatenate(seen[0])) == set(np.concatenate(seen[1])) == set(range(23))
    assert not np.array_equal(*seen)


def test_drop_remainder_keeps_whole_steps_only(folder):
    elements = read(section(folder, training=False, drop_remainder=True), None, contexts((1, 2))[0])
    assert [len(element) for element in elements] == [2] * (23 // 4 * 2)


def test_cache_reads_the_files_once(own_folder):
    dataset = inputs.from_tfrecords(section(own_folder, cache=True), parse_fn=parse)
    for file in own_folder.glob("part-*"):
        file.unlink()
    seen = np.concatenate([element["id"] for element in itertools.islice(dataset.as_numpy_iterator(), 30)])
    assert set(seen) == set(range(23))


def test_augmentation_is_exact(folder):
    """N1: augmentation draws the same after a restart."""

    def build(start):
        context = inputs.InputContext(start_step=start)
        dataset = inputs.from_tfrecords(
            section(folder), context, parse_fn=parse, transform_fn=lambda batch, seeds: (batch["id"], seeds)
        )
        return list(itertools.islice(dataset.as_numpy_iterator(), 12))

    for (want, seeds), (found, seeds_found) in zip(build(0)[4:], build(4), strict=False):
        np.testing.assert_array_equal(found, want)
        np.testing.assert_array_equal(seeds_found, seeds)


def test_patterns_in_all_their_forms(folder):
    paths = [f"{folder}/part-{number}.tfrecord" for number in (3, 0)]
    for path in (tuple(paths), ", ".join(paths), f"{folder}/part-[03].tfrecord", (paths[0], paths[0], paths[1])):
        assert [file.path for file in find_files(path)] == sorted(paths)
    elements = read(section(folder, training=False, input_path=", ".join(paths), cycle_length=1), None)
    assert np.concatenate(elements).tolist() == [*range(7), *range(12, 23)]


def problem(params, context=None, parse_fn=parse):
    with pytest.raises(inputs.DataError) as caught:
        inputs.from_tfrecords(params, context, parse_fn=parse_fn)
    assert caught.value.exit_code == ExitCode.DATA
    return str(caught.value)


def test_no_file_matches(folder, monkeypatch):
    monkeypatch.chdir(folder)
    text = problem(section(folder, input_path=("part-0.tfrecord", "data/nope-*")))
    assert "input_path: no file matches 'data/nope-*'" in text
    assert "of the value ['part-0.tfrecord', 'data/nope-*']" in text
    assert os.path.join(folder, "data/nope-*") in text and "nope-*," not in text
    assert "input_path: is empty; set it to a file" in problem(section(folder, input_path=""))


def test_file_that_cannot_be_opened(own_folder):
    (own_folder / "part-9.tfrecord").mkdir()
    assert problem(section(own_folder)) == f"input_path: cannot read {own_folder}/part-9.tfrecord: Is a directory"


def test_folder_that_cannot_be_listed(folder, monkeypatch):
    def refuse(pattern):
        raise tf.errors.PermissionDeniedError(None, None, f"{pattern}; Permission denied")

    monkeypatch.setattr(tf.io.gfile, "glob", refuse)
    assert "input_path: cannot list 'gs://bucket/x-*'" in problem(section(folder, input_path="gs://bucket/x-*"))


def test_no_records(folder):
    empty = section(folder, input_path=f"{folder}/part-2.tfrecord")
    assert problem(empty) == f"the training data hold no record: {folder}/part-2.tfrecord"
    both = section(folder, training=False, input_path=(f"{folder}/part-2.tfrecord", f"{folder}/part-2.tfrecord"))
    assert problem(both) == f"the evaluation data hold no record: {folder}/part-2.tfrecord"
    assert "no record for input pipeline 2 of 3" in problem(
        section(folder, batch=6, input_path=f"{folder}/part-[012].tfrecord"), contexts((3, 3))[2]
    )


def test_fewer_records_than_a_batch(folder):
    text = problem(section(folder, batch=64, training=False, drop_remainder=True))
    assert "hold 23 records, fewer than one batch of 64" in text and "set drop_remainder: false" in text
    assert f"4 files, {folder}/part-0.tfrecord to {folder}/part-3.tfrecord" in text


def parse_example(record):
    return tf.io.parse_single_example(record, {"label": tf.io.FixedLenFeature([], tf.int64)})


def test_record_that_the_task_cannot_parse(own_folder):
    path = str(own_folder / "examples")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(tf.train.Example().SerializeToString())
    text = problem(section(own_folder, input_path=path), parse_fn=parse_example)
    assert text == (
        "parse_fn failed on a record: Feature: label (data type: int64) is required but could not be found.\n"
        f"  {path}: record 0 holds no feature\n  parse_fn: tests/system/inputs/test_records.py:"
        f"{parse_example.__code__.co_firstlineno}"
    )


def flip(path, byte):
    content = bytearray(path.read_bytes())
    content[byte] ^= 255
    path.write_bytes(content)


def drained_error(params, **settings):
    """What training on damaged data raises, explained."""
    dataset = inputs.from_tfrecords(params, **settings)
    with pytest.raises(tf.errors.OpError) as caught:
        for _ in itertools.islice(dataset, 20):
            pass
    return caught.value


@pytest.mark.parametrize(
    ("byte", "offset"), [(4 * RECORD_BYTES + 13, 4 * RECORD_BYTES + 12), (4 * RECORD_BYTES + 2, 4 * RECORD_BYTES)]
)
def test_damaged_record_is_named_by_file_and_offset(own_folder, byte, offset):
    """Of the data and of the length; as training comes upon it, and of several patterns."""
    flip(own_folder / "part-3.tfrecord", byte)
    params = section(own_folder)
    error = drained_error(params, parse_fn=parse)
    for place in (params, [params.input_path]):
        explained = inputs.explain_data_error(error, place)
        assert isinstance(explained, inputs.DataError)
        found = f"{own_folder}/part-3.tfrecord: corrupted record at offset {offset}, record 4; all records before"
        assert found in str(explained)


def test_truncated_file(own_folder):
    path = own_folder / "part-0.tfrecord"
    path.write_bytes(path.read_bytes()[: 2 * RECORD_BYTES + 14])
    params = section(own_folder)
    explained = inputs.explain_data_error(drained_error(params, parse_fn=parse), params)
    assert f"{path}: truncated record at offset {2 * RECORD_BYTES}" in str(explained)
    context = inputs.InputContext()
    inputs.from_tfrecords(params, context, parse_fn=parse)
    with pytest.raises(inputs.DataError, match=f"truncated record at offset {2 * RECORD_BYTES}"):
        context.examples_per_epoch  # noqa: B018
    with pytest.raises(inputs.DataError, match="truncated record"):
        inputs.from_tfrecords(params, inputs.InputContext(start_step=3), parse_fn=parse)


def test_file_of_another_kind(own_folder):
    (own_folder / "part-0.tfrecord").write_text("these are not records\n" * 9)
    assert "part-0.tfrecord: corrupted record at offset 0, record 0; this may not be a TFRecord file" in problem(
        section(own_folder)
    )


def test_file_that_vanishes(own_folder):
    params = section(own_folder, cycle_length=1)
    dataset = inputs.from_tfrecords(params, parse_fn=parse)
    files = sorted(own_folder.glob("part-*"))
    files[3].rename(own_folder / "moved")
    with pytest.raises(tf.errors.NotFoundError) as caught:
        list(itertools.islice(dataset, 20))
    explained = inputs.explain_data_error(caught.value, [str(path) for path in files])
    assert "no file matches" in str(explained) and "part-3.tfrecord" in str(explained)


def test_file_that_becomes_unreadable(folder, monkeypatch):
    from official_trainer.inputs import files

    remote = [files.RecordFile(f"{folder}/part-0.tfrecord"), files.RecordFile(f"{folder}/gone")]
    monkeypatch.setattr(files, "find_files", lambda path: remote)
    error = tf.errors.NotFoundError(None, None, "gone; No such file or directory")
    explained = inputs.explain_data_error(error, "gs://bucket/data")
    assert str(explained) == f"cannot read {folder}/gone: No such file or directory; it was readable when the run began"
    explained = inputs.explain_data_error(tf.errors.DataLossError(None, None, "corrupted record"), "gs://bucket/data")
    assert str(explained).startswith(f"cannot read {folder}/gone: ")


def test_errors_of_the_users_functions_name_them(folder):
    """A record or batch that breaks the task's own function in the middle of a run."""

    def late(record):
        value = tf.io.decode_raw(record, tf.int32)[0]
        return {"id": tf.ensure_shape(tf.range(tf.where(value == 9, 3, 2)), [None])[tf.where(value == 9, 5, 1)]}

    params = section(folder)
    text = str(inputs.explain_data_error(drained_error(params, parse_fn=late), params))
    assert text.startswith("parse_fn failed on a record: ")

    def transform(batch, seeds):
        return tf.debugging.check_numerics(tf.cast(batch["id"], tf.float32) / 0.0, "augmented")

    error = drained_error(params, parse_fn=parse, transform_fn=transform)
    text = str(inputs.explain_data_error(error, params))
    assert text.startswith("transform_fn failed on a batch: ") and "augmented" in text


def test_other_errors_are_not_explained(folder):
    params = section(folder)
    for error in (
        tf.errors.InvalidArgumentError(None, None, "Incompatible shapes: [4,10] vs. [3,10]"),
        tf.errors.NotFoundError(None, None, "Resource localhost/w does not exist"),
        tf.errors.DataLossError(None, None, "a checkpoint is damaged"),
        ValueError("something else"),
    ):
        assert inputs.explain_data_error(error, params) is None
        assert inputs.explain_data_error(error, DataConfig()) is None
