"""Bad data through the whole engine: one clear error with exit code 3, and nothing saved that is not good."""

import re

import pytest
import tensorflow as tf

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.errors import ExitCode
from official_trainer.inputs import DataError
from tests.support.record_runs import RecordsTask, do, write_all


@pytest.fixture
def folder(tmp_path):
    return write_all(tmp_path)


def test_a_damaged_record_is_named_with_file_and_offset(folder):
    """G6, N6: exit code 3; what was good before stays saved."""
    path = folder / "train-1.tfrecord"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"train-1.tfrecord: .*offset \d+") as caught:
        do(folder, "task.train_data.shuffle=false", "task.train_data.cycle_length=1")
    assert caught.value.exit_code == ExitCode.DATA
    assert committed_steps(str(folder / "run")) == (5,)


def test_damaged_validation_data_is_named_too(folder):
    """N6: the checkpoint from before the evaluation is there."""
    path = folder / "dev.tfrecord"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataError, match=r"dev.tfrecord: .*offset \d+"):
        do(folder)
    assert committed_steps(str(folder / "run")) == (5, 10)


@pytest.mark.parametrize("section", ["task.train_data", "task.validation_data"])
def test_no_file_matches(section, folder):
    """G6: the field, the pattern, and where it was looked for."""
    pattern = f"{folder}/none-*.tfrecord"
    with pytest.raises(DataError, match=rf"^{re.escape(f'{section}.input_path: no file matches {pattern!r}')}"):
        do(folder, f"{section}.input_path={pattern}")


def test_records_of_another_form(folder):
    """G6: names the function that could not read them."""
    with tf.io.TFRecordWriter(str(folder / "train-1.tfrecord")) as writer:
        writer.write(b"not an example")
    message = r"parse_fn failed on a record: Could not parse example input, value: 'not an example'"
    with pytest.raises(DataError, match=message):
        do(folder)


def test_wrong_element_structure_names_the_method(folder, monkeypatch):
    """G6: what build_inputs returned instead of batches."""
    monkeypatch.setattr(RecordsTask, "build_inputs", lambda self, params, input_context=None: tf.data.Dataset.range(9))
    with pytest.raises(DataError, match=r"RecordsTask.build_inputs must yield batches, but element is a single int64"):
        do(folder)
