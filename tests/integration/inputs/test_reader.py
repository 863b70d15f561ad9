"""Examples that cannot be read, or differ from the first: named with their place."""

import errno

import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.config.schema import DataConfig
from official_trainer.errors import ExitCode
from official_trainer.inputs import Source
from tests.support.sources import Numbers, kills_its_worker


def evaluation(batch=8, **fields):
    return DataConfig(global_batch_size=batch, is_training=False, **fields)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"id": 1, "x": [1.0, 2.0]}, "example 1 of list: x has shape [2], and in the first example [1]"),
        ({"id": 1.5, "x": [1.0]}, "example 1 of list: id is float32, and in the first example int64"),
        ({"id": 1}, "example 1 of list: it has id, and the first example id, x"),
        ({"id": 1, "x": [1.0], "y": 2}, "example 1 of list: it has id, x, y, and the first example id, x"),
        ({"id": 1, "x": None}, "example 1 of list: x is None, which no tensor holds"),
    ],
)
def test_an_example_that_differs_from_the_first_is_named(second, message):
    """N45: with its place and field, not TensorFlow's message alone."""
    context = inputs.InputContext()
    dataset = inputs.from_source([{"id": 0, "x": [0.0]}, second], evaluation(2), context)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(dataset)
    assert message in str(context.failure())


@pytest.mark.parametrize("processes", [False, True])
def test_an_example_that_cannot_be_read_is_named(processes):
    """N45: among those of its batch, in a thread or in a process."""
    context = inputs.InputContext()
    params = evaluation(16, use_multiprocessing=processes, workers=1)
    examples = [{"id": None if number == 21 else number} for number in range(53)]
    dataset = inputs.from_source(examples, params, context)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(dataset)
    assert str(context.failure()).startswith("example 21 of list: id is None, which no tensor holds; fill in")


class OfServer(Source):
    """A source whose reading fails as that of a server may."""

    def __init__(self, error):
        self._error = error

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index == 5:
            raise ValueError("the response is cut") from self._error
        return {"id": index}


class Timeout(OSError):
    """As those of libraries that ask servers."""


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError("reset"), TimeoutError(), MemoryError(), Timeout(), OSError(errno.EMFILE, "too many files")],
)
def test_no_example_is_bad_because_of_the_network_or_memory(error):
    """N45: the run ends, to be started again, and so does a scan; the error may be behind another one."""
    context = inputs.InputContext()
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(inputs.from_source(OfServer(error), evaluation(), context))
    assert context.failure().exit_code == ExitCode.RETRY
    assert "example 0 or one after it could not be reached: the response is cut, so" in str(context.failure())
    with pytest.raises(inputs.DataError, match="example 5 could not be reached") as caught:
        list(context.scan())
    assert caught.value.exit_code == ExitCode.RETRY


@pytest.mark.parametrize("error", [OSError("image file is truncated"), FileNotFoundError(errno.ENOENT, "no such file")])
def test_an_example_whose_file_is_damaged_or_gone_is_bad(error):
    """N45: errors of decoders are often those of the operating system by class."""
    context = inputs.InputContext()
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(inputs.from_source(OfServer(error), evaluation(), context))
    assert context.failure().exit_code == ExitCode.DATA
    assert list(context.scan()) == ["example 5: the response is cut"]


def test_a_scan_lists_each_bad_example():
    """N45: also the first, and those that differ from the first good one; the source's and those of transforms."""
    examples = [{"x": None}, {"x": 1}, {"x": 2.5}, {"x": 3}, {"x": 4}] + [{"x": number} for number in range(5, 200)]

    def inverse(example):
        return {"x": example["x"], "y": 1 // (example["x"] - 150)} if example["x"] else example

    context = inputs.InputContext()
    with pytest.raises(inputs.DataError, match="example 0 of list: x is None"):
        inputs.from_source(examples, evaluation(), context, transforms=[inverse])
    fix = "fill in what is missing, or convert it to numbers or text"
    assert list(context.scan()) == [
        f"example 0 of list: x is None, which no tensor holds; {fix}",
        "example 2 of list: x is float32, and in the first example int64",
        "example 150 of list: ZeroDivisionError: integer division or modulo by zero",
    ]


def test_a_scan_lists_each_record_that_cannot_be_parsed():
    """N45: beside those that cannot be read."""
    context = inputs.InputContext()
    records = [b"1", b"2", b"x", b"4", "y", b"6"]
    inputs.from_source(records, evaluation(2), context, parse_fn=lambda record: tf.strings.to_number(record))
    said = "StringToNumberOp could not correctly convert string: "
    assert [*context.scan()] == [f"example 2 of list: {said}x", f"example 4 of list: {said}y"]


def test_transforms_of_processes_must_be_pickled():
    with pytest.raises(inputs.DataError, match=r"use_multiprocessing: cannot be sent to processes.*top level"):
        inputs.from_source(Numbers(9), evaluation(use_multiprocessing=True), transforms=[lambda example: example])


def test_a_worker_process_that_is_killed_is_said_with_its_section():
    """N41: and the run does not hang."""
    context = inputs.InputContext()
    context.section = "task.validation_data"
    params = evaluation(16, use_multiprocessing=True, workers=1)
    dataset = inputs.from_source(Numbers(53), params, context, transforms=[kills_its_worker])
    with pytest.raises(tf.errors.OpError):
        list(dataset)
    assert str(context.failure()).startswith(
        "task.validation_data.workers: one of the processes that read examples was killed"
    )


class Files(Numbers):
    """Three files of five examples; those of the last are other ones."""

    def __init__(self, other):
        super().__init__(15)
        self._other = other

    def __getitem__(self, index):
        return super().__getitem__(index) if index < 10 else self._other

    def where(self, index):
        return f"file {index // 5}, record {index % 5}"

    def samples(self):
        return [0, 5, 10]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"id": 1}, "file 2, record 0: it has id, and the first example id, text"),
        ({"id": 1.5, "text": ""}, "file 2, record 0: id is float32, and in the first example int64"),
        ({"id": [1], "text": ""}, "file 2, record 0: id has shape [1], and in the first example []"),
    ],
)
def test_a_file_with_another_schema_is_named_before_training(other, message):
    """N45: when the data is built, not when its first record is due."""
    with pytest.raises(inputs.DataError) as caught:
        inputs.from_source(Files(other), evaluation(5))
    assert message in str(caught.value)
    inputs.from_source(Files(Numbers(1)[0]), evaluation(5))


def test_few_of_many_files_are_read_before_training():
    """N45: sixteen, also of a million."""

    class Many(Numbers):
        read = 0

        def __getitem__(self, index):
            self.read += 1
            return super().__getitem__(index)

        def samples(self):
            return range(1_000_000)

    source = Many(1_000_000)
    inputs.from_source(source, evaluation(5))
    assert 16 <= source.read <= 17


def parse(record):
    return tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature([], tf.int64)})


def test_a_file_whose_records_are_of_another_schema_is_named_before_training(tmp_path):
    """N45: with the record, and the line of parse_fn."""
    from official_trainer.sources.tfrecord import TfrecordConfig

    for number, name in enumerate(["x", "x", "y"]):
        feature = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))}
        with tf.io.TFRecordWriter(str(tmp_path / f"{number}.tfrecord")) as writer:
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    source = TfrecordConfig(files=str(tmp_path / "*.tfrecord"))
    with pytest.raises(inputs.DataError, match=r"2.tfrecord: record 0, offset 0") as caught:
        inputs.from_source(source, evaluation(1), parse_fn=parse)
    assert "parse_fn: " in str(caught.value)
