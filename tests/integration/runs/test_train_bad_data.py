"""Bad data through the whole engine: one clear error with exit code 3, and nothing saved that is not good."""

import json
from pathlib import Path

import pytest
import tensorflow as tf

from official_trainer import inputs
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import schema
from official_trainer.engine.train_iterator import DatasetBuilder
from official_trainer.errors import ExitCode
from official_trainer.inputs import DataError
from tests.support import toy


class RecordsTask(toy.ToyTask):
    """The toy task, from TFRecord files."""

    def build_inputs(self, params, input_context=None):
        def parse(record):
            spec = {"x": tf.io.FixedLenFeature([6], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
            example = tf.io.parse_single_example(record, spec)
            return example["x"], example["y"]

        return inputs.from_tfrecords(params, input_context, parse_fn=parse)


do = toy.runs_of(
    "records_run", RecordsTask, batch=8, eval_batch=8, train_steps=20, steps_per_loop=5, summary_interval=5,
    checkpoint_interval=5, validation_interval=10, export=toy.NO_EXPORT,
)  # fmt: skip


def train(folder, *sets, config_files=()):
    """Trains on the files of a folder."""
    paths = {"train_data": "train-*.tfrecord", "validation_data": "dev.tfrecord"}
    data = {"task": {name: {"input_path": f"{folder}/{path}"} for name, path in paths.items()}}
    (folder / "data.yaml").write_text(json.dumps(data))
    return do(folder / "run", *sets, config_files=[str(folder / "data.yaml"), *config_files])


def write(path, count=40):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for x, y in zip(toy.FEATURES[:count], toy.LABELS[:count], strict=True):
            features = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=x)),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[y])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def write_all(folder):
    """Leaves files of training and validation records in a folder, and returns it."""
    for name in ("train-0.tfrecord", "train-1.tfrecord", "dev.tfrecord"):
        write(folder / name)
    return folder


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
        train(folder, "task.train_data.shuffle=false", "task.train_data.cycle_length=1")
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
        train(folder, "task.validation_data.global_batch_size=41", config_files=[str(overlay)])
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
        train(folder)
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
        train(folder)
