"""Bad data through the whole engine: one clear error with exit code 3, and nothing saved that is not good."""

import json
from pathlib import Path

import pytest
import tensorflow as tf

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import schema
from official_trainer.engine.train_iterator import DatasetBuilder
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


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("input_path", "none-*", "no file matches 'none-\\*'"),
        ("drop_remainder", "true", "the evaluation data hold 40"),
    ],
)
def test_the_line_of_the_config_that_set_a_field_is_named(field, value, message, folder, monkeypatch):
    """G6, N28: as for any other mistake in a file of the config; also in the record."""
    monkeypatch.chdir(folder)
    overlay = Path("over.yaml")
    overlay.write_text(f"task:\n  validation_data:\n    {field}: {value}\n")
    expected = rf"over.yaml:3: task.validation_data.{field}: {message}"
    with pytest.raises(DataError, match=rf"^{expected}") as caught:
        do(folder, "task.validation_data.global_batch_size=41", config_files=[str(overlay)])
    assert json.loads((folder / "run/run.json").read_text())["error"] == str(caught.value)


def test_records_of_another_form(folder):
    """G6, N28: names the section, the function that could not read them, and the file."""
    with tf.io.TFRecordWriter(str(folder / "train-1.tfrecord")) as writer:
        writer.write(b"not an example")
    message = (
        r"^task.train_data: parse_fn failed on a record: Could not parse example input, value: 'not an example'\n"
        r"  .*/train-1.tfrecord: record 0\n  parse_fn: "
    )
    with pytest.raises(DataError, match=message) as caught:
        do(folder)
    assert caught.value.exit_code == ExitCode.DATA
    assert json.loads((folder / "run/run.json").read_text())["error"] == str(caught.value)


LISTS = {"float": tf.train.FloatList, "int64": tf.train.Int64List}


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"x": ("float", 6), "z": ("int64", 1)}, r"x float\[6\], z int64\[1\]"),
        ({"x": ("int64", 6), "y": ("int64", 1)}, r"x int64\[6\], y int64\[1\]"),
        ({"x": ("float", 5), "y": ("int64", 1)}, r"x float\[5\], y int64\[1\]"),
    ],
)
def test_records_of_another_schema(features, message, folder):
    """G6, N28: names the section, the file, the record, and what it holds."""
    held = {
        key: tf.train.Feature(**{f"{kind}_list": LISTS[kind](value=[1] * size)})
        for key, (kind, size) in features.items()
    }
    record = tf.train.Example(features=tf.train.Features(feature=held)).SerializeToString()
    with tf.io.TFRecordWriter(str(folder / "dev.tfrecord")) as writer:
        writer.write(record)
    params = schema.DataConfig(input_path=f"{folder}/dev.tfrecord", global_batch_size=8, is_training=False)
    builder = DatasetBuilder(RecordsTask(None), params, training=False, seed=0, section="task.validation_data")
    said = r"^task.validation_data: parse_fn failed.*\n  .*/dev.tfrecord: record 0 holds " + f"{message}\n  parse_fn: "
    with pytest.raises(DataError, match=said), builder.errors_explained():
        list(builder.build())


def test_wrong_element_structure_names_the_method(folder, monkeypatch):
    """G6: what build_inputs returned instead of batches."""
    monkeypatch.setattr(RecordsTask, "build_inputs", lambda self, params, input_context=None: tf.data.Dataset.range(9))
    with pytest.raises(DataError, match=r"RecordsTask.build_inputs must yield batches, but element is a single int64"):
        do(folder)
