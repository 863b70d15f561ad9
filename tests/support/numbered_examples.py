"""Runs on numbered examples, which say what examples each step had."""

from unittest import mock

import numpy as np
import tensorflow as tf

from official_trainer import config as configuration
from official_trainer import inputs
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import schema
from official_trainer.lazy import keras
from official_trainer.runs import run, train
from official_trainer.tasks import registry
from official_trainer.tracking.jsonl import read_rows
from tests.support import toy
from tests.support.record_files import write

BATCH, EXAMPLES = 12, 30


SEEN = []


class ElasticConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(ElasticConfig)
class ElasticTask(toy.ToyTask):
    """Learns from numbered examples, in memory or in files, without dropout, and notes which examples a step had."""

    def build_model(self):
        features = keras.Input((6,), name="features")
        hidden = keras.layers.Dense(8, "tanh")(features)
        return keras.Model(features, keras.layers.Dense(3, name="logits")(hidden))

    def build_inputs(self, params, input_context=None):
        if not params.input_path:
            numbers = np.arange(EXAMPLES)
            return inputs.from_arrays((toy.FEATURES[numbers], toy.LABELS[numbers], numbers), params, input_context)

        def parse(record):
            number = tf.io.decode_raw(record, tf.int32)[0]
            return tf.gather(toy.FEATURES, number), tf.gather(toy.LABELS, number), tf.cast(number, tf.int64)

        return inputs.from_tfrecords(params, input_context, parse_fn=parse)

    def train_step(self, batch, *args, **kwargs):
        features, labels, numbers = batch
        tf.numpy_function(lambda step, ids: SEEN.append((int(step), ids.tolist())), [self._step(), numbers], [])
        return super().train_step((features, labels), *args, **kwargs)

    def validation_step(self, batch, *args, **kwargs):
        return super().validation_step(batch[:2], *args, **kwargs)

    def _step(self):
        return kept_step["variable"]


kept_step = {}


@registry.register_config_factory("elastic_run")
def elastic_run():
    """Twelve steps."""
    base = toy.experiment(batch=BATCH, steps_per_loop=2, summary_interval=2, checkpoint_interval=2)
    task = ElasticConfig(
        train_data=schema.DataConfig(global_batch_size=BATCH), validation_data=schema.DataConfig(global_batch_size=30)
    )
    return base.replace(task=task, trainer=base.trainer.replace(train_steps=12))


def do(model_dir, *sets, allow=False, quiet=True):
    """Trains; the task sees the global step of the trainer that is built."""
    keras.backend.clear_session()
    sets = ("trainer.export.at_end=false", *sets)
    resolved = configuration.resolve(registry.get_config("elastic_run"), experiment="elastic_run", sets=sets)
    with mock.patch.object(train, "build", _noting(train.build)):
        run.run("elastic_run", resolved, mode="train", model_dir=str(model_dir), quiet=quiet, allow_config_change=allow)
    kept_step.clear()


def _noting(build):
    def noting(*args, **kwargs):
        trainer = build(*args, **kwargs)
        kept_step["variable"] = trainer.global_step
        return trainer

    return noting


def settings(data, folder):
    """Returns the settings of training data that is `arrays`, `files` or `cached files`: three of uneven sizes."""
    if data == "arrays":
        return ()
    for number, (first, last) in enumerate([(0, 14), (14, 22), (22, EXAMPLES)]):
        write(folder / f"part-{number}", range(first, last))
    cached = "true" if data.startswith("cached") else "false"
    return (f"task.train_data.input_path={folder}/part-*", f"task.train_data.cache={cached}")


def examples_by_step():
    """Returns which examples each step had, whichever replica had them."""
    found = {}
    for step, ids in SEEN:
        found.setdefault(step, []).extend(ids)
    return {step: sorted(ids) for step, ids in sorted(found.items())}


def losses(model_dir):
    return [row["training_loss"] for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] == "train"]


def layout(model_dir, step=None):
    return manifest.read(str(model_dir), step or max(committed_steps(str(model_dir)))).run.data
