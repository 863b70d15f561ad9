"""N25: a run that goes on with other replicas keeps the examples of each step."""

from unittest import mock

import numpy as np
import tensorflow as tf

from official_trainer import inputs
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.runs import train
from official_trainer.tracking.jsonl import read_rows
from tests.support import toy
from tests.support.record_files import write

BATCH, EXAMPLES = 12, 30


SEEN = []


class ElasticTask(toy.Undropped):
    """Learns from numbered examples, in memory or in files, without dropout, and notes which examples a step had."""

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


_run = toy.runs_of(
    "elastic_run", ElasticTask, batch=BATCH, eval_batch=30, train_steps=12, steps_per_loop=2, summary_interval=2,
    checkpoint_interval=2, export=toy.NO_EXPORT,
)  # fmt: skip


def do(model_dir, *sets, allow=False):
    """Trains; the task sees the global step of the trainer that is built."""
    with mock.patch.object(train, "build", _noting(train.build)):
        _run(model_dir, *sets, mode="train", allow_config_change=allow)
    kept_step.clear()


def _noting(build):
    def noting(*args, **kwargs):
        trainer = build(*args, **kwargs)
        kept_step["variable"] = trainer.global_step
        return trainer

    return noting


def written(folder):
    """Writes three record files of uneven sizes; returns the settings of training data that reads them."""
    for number, (first, last) in enumerate([(0, 14), (14, 22), (22, EXAMPLES)]):
        write(folder / f"part-{number}", range(first, last))
    return (f"task.train_data.input_path={folder}/part-*",)


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


def test_another_number_of_replicas_keeps_the_examples_of_every_step(tmp_path):
    """N25: of record files; two replicas, one, two again: the examples of an unbroken run, and the loss agrees."""
    data = written(tmp_path)
    two = ("runtime.distribution_strategy=mirrored", *data)
    SEEN.clear()
    do(tmp_path / "whole", *two)
    whole = examples_by_step()
    assert len(whole) == 12 and all(len(ids) == BATCH for ids in whole.values())
    SEEN.clear()
    do(tmp_path / "broken", *two, "trainer.train_steps=4")
    do(tmp_path / "broken", "runtime.distribution_strategy=off", *data, "trainer.train_steps=8", allow=True)
    do(tmp_path / "broken", *two, allow=True)
    assert examples_by_step() == whole
    np.testing.assert_allclose(losses(tmp_path / "broken"), losses(tmp_path / "whole"), rtol=1e-5)
    expected = [{"replicas": n, "pipelines": 1, "order": "by_pipeline"} for n in (2, 1, 2)]
    assert [layout(tmp_path / "broken", step) for step in (4, 8, 12)] == expected
