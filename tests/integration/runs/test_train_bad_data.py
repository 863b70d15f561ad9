"""Bad data through the whole engine: one clear error with exit code 3, and nothing saved that is not good."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer import inputs
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import schema
from official_trainer.errors import ExitCode
from official_trainer.inputs import DataError
from official_trainer.lazy import keras
from official_trainer.runs import run
from official_trainer.tasks import registry
from tests.support import toy


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordsConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(RecordsConfig)
class RecordsTask(toy.ToyTask):
    """The toy task, from TFRecord files."""

    def build_inputs(self, params, input_context=None):
        def parse(record):
            spec = {"x": tf.io.FixedLenFeature([6], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
            example = tf.io.parse_single_example(record, spec)
            return example["x"], example["y"]

        return inputs.from_tfrecords(params, input_context, parse_fn=parse)


@registry.register_config_factory("records_run")
def records_run():
    """Twenty steps on records."""
    base = toy.experiment(steps_per_loop=5, summary_interval=5, checkpoint_interval=5, validation_interval=10)
    return base.replace(task=RecordsConfig(), trainer=base.trainer.replace(train_steps=20))


def write(path, count=40):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for x, y in zip(toy.FEATURES[:count], toy.LABELS[:count], strict=True):
            features = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=x)),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[y])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


@pytest.fixture
def folder(tmp_path):
    """A folder with training and validation records."""
    for name in ("train-0.tfrecord", "train-1.tfrecord", "dev.tfrecord"):
        write(tmp_path / name)
    return tmp_path


def do(folder, *sets, train="train-*.tfrecord"):
    keras.backend.clear_session()
    paths = [f"task.train_data.input_path={folder}/{train}", f"task.validation_data.input_path={folder}/dev.tfrecord",
             "task.train_data.global_batch_size=8", "task.validation_data.global_batch_size=8"]  # fmt: skip
    resolved = configuration.resolve(
        registry.get_config("records_run"),
        experiment="records_run",
        sets=[*paths, "trainer.export.at_end=false", *sets],
    )
    return run.run("records_run", resolved, mode="train_and_eval", model_dir=str(folder / "run"), quiet=True)


def test_records_train_and_resume_exactly(folder, tmp_path_factory):
    """N1: a run on files in two parts equals one in one."""
    do(folder, "trainer.train_steps=7")
    do(folder)
    other = tmp_path_factory.mktemp("whole")
    for name in ("train-0.tfrecord", "train-1.tfrecord", "dev.tfrecord"):
        write(other / name)
    do(other)
    ours, theirs = (tf.train.load_checkpoint(str(f / "run" / "ckpt-20")) for f in (folder, other))
    names = [n for n in ours.get_variable_to_shape_map() if n.startswith(("model/", "optimizer/"))]
    assert len(names) > 10
    for name in names:
        assert np.asarray(ours.get_tensor(name)).tobytes() == np.asarray(theirs.get_tensor(name)).tobytes(), name


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


def test_no_file_matches(folder):
    """G6: the pattern, and where it was looked for."""
    with pytest.raises(DataError, match=r"none-\*.tfrecord"):
        do(folder, train="none-*.tfrecord")


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
