"""Runs of twenty steps on record files."""

import dataclasses

import tensorflow as tf

from official_trainer import config as configuration
from official_trainer import inputs
from official_trainer.config import schema
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


def write_all(folder):
    """Leaves files of training and validation records in a folder, and returns it."""
    for name in ("train-0.tfrecord", "train-1.tfrecord", "dev.tfrecord"):
        write(folder / name)
    return folder


def do(folder, *sets, train="train-*.tfrecord", config_files=()):
    keras.backend.clear_session()
    base = registry.get_config("records_run")
    train_data, validation_data = (
        schema.DataConfig(input_path=f"{folder}/{name}", global_batch_size=8) for name in (train, "dev.tfrecord")
    )
    base = base.replace(task=base.task.replace(train_data=train_data, validation_data=validation_data))
    resolved = configuration.resolve(
        base,
        experiment="records_run",
        config_files=config_files,
        sets=["trainer.export.at_end=false", *sets],
    )
    return run.run("records_run", resolved, mode="train_and_eval", model_dir=str(folder / "run"), quiet=True)
